/// The bytes in which the child process hands its result to the parent. The parent trusts none of
/// them: a reader that a hostile file took over may have written them.
///
/// Layout, integers little-endian: magic "QRD1", name of the format (u8 length), then u64 length of
/// the body and the body. The name comes first, before the file is parsed, so that a failure can
/// name its reader. A body is u8 0 and documents, or u8 code and a message.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "readers/read_document.h"

namespace quire {

std::string encode_format(std::string_view format);
std::string encode_result(const Result<std::vector<ReadDocument>>& result);

/// Returns the name of the format, or an empty text where `bytes` do not begin with one.
std::string decode_format(std::string_view bytes);
/// Reads all that the child wrote. Accepted documents keep the limits, and what read_document.h
/// says of them holds. Errors: those that the child reports; kCorruption (the bytes are no result).
Result<std::vector<ReadDocument>> decode_result(std::string_view bytes, const ReaderLimits& limits);

}  // namespace quire
