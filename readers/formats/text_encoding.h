/// Text in any encoding to UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct DecodedText {
  std::string text;      ///< UTF-8 without byte order mark and NUL; lines end with \n
  std::string encoding;  ///< "UTF-8", "windows-1252", ...
  std::vector<std::string> warnings;
};

/// Decodes `bytes`. What says the encoding, in this order: a byte order mark, `told` (an IANA name
/// that the user gave; empty: none), being valid UTF-8, `declared` (what the file says of itself;
/// empty: nothing), the statistics of its bytes. Errors: kInvalidArgument (`told` is no known
/// encoding, or not that of the bytes), kUnimplemented (the bytes are no text).
Result<DecodedText> decode_text(std::string_view bytes, const std::string& told,
                                const std::string& declared = {});

}  // namespace quire
