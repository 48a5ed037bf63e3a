/// Compresses whole bodies as gzip.
#pragma once

#include <string>
#include <string_view>

namespace quire {

/// Returns the text as one gzip member (RFC 1952), as small as zlib makes it. The same text gives
/// the same bytes, because no time is written. Threads: any.
std::string gzip_of(std::string_view text);

}  // namespace quire
