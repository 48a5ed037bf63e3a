// Runs clients' JSON Schemas and answers that follow them. Nothing may crash. An accepted schema
// can be followed from its first byte to an end, and an answer that the grammar calls complete is
// JSON.
#include <boost/json/parse.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sample/json_schema_grammar.h"
#include "engine/sample/token_mask.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  // The first bytes choose the answer; the rest is the schema.
  const std::size_t choices = std::min<std::size_t>(data[0], size - 1);
  const auto grammar = json_schema_grammar(
      std::string_view(reinterpret_cast<const char*>(data) + 1 + choices, size - 1 - choices));
  if (!grammar.ok()) return 0;
  static const std::string every = [] {
    std::string s;
    for (int b = 0; b < 256; ++b) s.push_back(static_cast<char>(b));
    return s;
  }();
  std::vector<std::string_view> tokens;
  for (std::size_t b = 0; b < 256; ++b) tokens.push_back(std::string_view(every).substr(b, 1));
  tokens.insert(tokens.end(), {"\": ", "{\"", "}]", "\\u", "null"});
  const TokenTrie trie(tokens, false);
  GrammarMatcher matcher(**grammar, trie);
  const bool minds_room = data[0] % 2 != 0;  // for half of the inputs
  std::string text;
  for (std::size_t i = 0; i < choices && !matcher.finished(); ++i) {
    const auto allowed = minds_room ? matcher.allowed(static_cast<std::int64_t>(choices - i))
                                    : matcher.allowed();
    std::vector<std::int32_t> ids;
    for (std::size_t id = 0; id < tokens.size(); ++id)
      if ((allowed[id / 64] >> (id % 64) & 1) != 0) ids.push_back(static_cast<std::int32_t>(id));
    // Every continuation would be too long.
    if (ids.empty() && minds_room && matcher.complete()) break;
    if (ids.empty()) std::abort();  // the answer can neither end nor go on
    const std::int32_t id = ids[data[1 + i] % ids.size()];
    if (!matcher.advance(id)) std::abort();
    text += tokens[static_cast<std::size_t>(id)];
  }
  if (!matcher.complete()) return 0;
  boost::system::error_code ec;
  boost::json::parse_options deep;
  deep.max_depth = 1000;
  (void)boost::json::parse(text, ec, {}, deep);
  if (ec) std::abort();
  return 0;
}
