/// How many tokens a text of a grammar still needs, at least.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/sample/grammar.h"

namespace quire {

class TokenTrie;

/// For each part of a grammar, tokens that are enough to write the shortest text it matches,
/// spelling each literal for itself and each byte of a set with a token of its own. A real answer
/// can do with fewer, where tokens reach over these borders. Immutable once made: any thread. The
/// grammar must outlive it.
class ShortestEnd {
 public:
  /// Of what the vocabulary cannot write. Other numbers stay below it.
  static constexpr std::int64_t kNever = std::int64_t{1} << 40;

  ShortestEnd(const Grammar& grammar, const TokenTrie& trie);

  std::int64_t of(Grammar::Part part) const { return tokens_[static_cast<std::size_t>(part)]; }
  /// Of a byte set, or of a literal from byte `offset` on.
  std::int64_t of_rest(Grammar::Part part, std::int32_t offset) const;

  /// One after the other; kNever stays kNever.
  static std::int64_t joined(std::int64_t a, std::int64_t b);
  static std::int64_t repeated(std::int64_t tokens, std::int32_t times);

 private:
  std::int64_t whole(const Grammar::Node& node) const;

  std::vector<std::int64_t> tokens_;  ///< by part
  /// By byte: from there on
  std::unordered_map<Grammar::Part, std::vector<std::int64_t>> literals_;
};

}  // namespace quire
