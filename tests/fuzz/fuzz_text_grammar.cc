// Compiles clients' regular expressions and text grammars, and follows them. Nothing may crash. An
// accepted one can be followed from its first byte to an end.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sample/regex_grammar.h"
#include "engine/sample/text_grammar.h"
#include "engine/sample/token_mask.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t choices = std::min<std::size_t>(data[0] / 2, size - 1);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1 + choices,
                              size - 1 - choices);
  const auto grammar = data[0] % 2 == 0 ? regex_grammar(text) : text_grammar(text);
  if (!grammar.ok()) return 0;
  static const std::string every = [] {
    std::string s;
    for (int b = 0; b < 256; ++b) s.push_back(static_cast<char>(b));
    return s;
  }();
  std::vector<std::string_view> tokens;
  for (std::size_t b = 0; b < 256; ++b) tokens.push_back(std::string_view(every).substr(b, 1));
  const TokenTrie trie(tokens, false);
  GrammarMatcher matcher(**grammar, trie);
  for (std::size_t i = 0; i < choices && !matcher.finished(); ++i) {
    const auto allowed = matcher.allowed();
    std::vector<std::int32_t> ids;
    for (std::size_t id = 0; id < tokens.size(); ++id)
      if ((allowed[id / 64] >> (id % 64) & 1) != 0) ids.push_back(static_cast<std::int32_t>(id));
    if (ids.empty()) std::abort();  // the answer can neither end nor go on
    if (!matcher.advance(ids[data[1 + i] % ids.size()])) std::abort();
  }
  return 0;
}
