/// This file bounds how many tokens the rest of a grammar's text needs.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/index.h"
#include "engine/sample/grammar.h"

namespace quire {

class TokenTrie;

/// Computes, for each part of a grammar, a number of tokens that suffices for the shortest text it
/// matches. Each literal is spelled separately, and each byte of a set or an automaton takes its
/// own token, so a real answer may need fewer, with tokens that cross these borders. Immutable;
/// threads: any. The grammar must outlive it.
class ShortestEnd {
 public:
  /// Value for a text that the vocabulary cannot spell. Other values are below it.
  static constexpr std::int64_t kNever = std::int64_t{1} << 40;

  ShortestEnd(const Grammar& grammar, const TokenTrie& trie);

  std::int64_t of(Grammar::Part part) const { return tokens_[at(part)]; }
  /// Returns the value for a byte set, for a literal from byte `offset` on, or for an automaton
  /// from the state `offset` on.
  std::int64_t of_rest(Grammar::Part part, std::int32_t offset) const;

  /// Returns the value of a concatenation or a repetition; kNever stays kNever.
  static std::int64_t joined(std::int64_t a, std::int64_t b);
  static std::int64_t repeated(std::int64_t tokens, std::int32_t times);

 private:
  std::int64_t whole(const Grammar::Node& node) const;

  std::vector<std::int64_t> tokens_;  ///< indexed by part
  /// Values of literals from each byte on, and of automata from each state on.
  std::unordered_map<Grammar::Part, std::vector<std::int64_t>> rests_;
};

}  // namespace quire
