/// Cuts a template into text, tags and the words within tags, with Jinja's rules for white space.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

enum class TokenKind : unsigned char {
  kText,
  kOutputBegin,
  kOutputEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;  ///< of strings the meaning, of all else the spelling
  int line;
};

/// trim_blocks and lstrip_blocks are on and a last line break is dropped, as transformers sets
/// them. Throws Error.
std::vector<Token> tokenize(std::string_view source);

}  // namespace quire::jinja
