/// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::tokenizer_internal {

/// Length (1 to 4) of the character at the front of `text` and its code point, or 0 where the bytes
/// are no character.
int decode_utf8(std::string_view text, char32_t& code_point);

void append_utf8(char32_t code_point, std::string& out);

/// Bytes of the longest valid prefix.
std::size_t valid_utf8_prefix(std::string_view text);

}  // namespace quire::tokenizer_internal
