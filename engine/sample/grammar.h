/// This file defines grammars: languages of bytes that an answer must belong to, as pushdown
/// automata. Their parts match bytes and are concatenated, chosen among, repeated, and referred to.
/// JSON Schemas become grammars (json_schema_grammar.h), and token masks are derived from them
/// (token_mask.h).
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/sample/automata/automaton.h"

namespace quire {

using ByteSet = std::bitset<256>;

/// A grammar; immutable. Threads: any.
class Grammar {
 public:
  using Part = std::int32_t;  ///< index of a part
  static constexpr std::int32_t kUnbounded = Automaton::kUnbounded;

  enum class Kind : std::uint8_t {
    kBytes,     ///< one byte of `bytes`
    kLiteral,   ///< `text`, at least one byte
    kSequence,  ///< all of `parts` in order; without parts, the empty text
    kChoice,    ///< one of `parts`
    kRepeat,    ///< parts[0], `min` to `max` times
    kAutomaton  ///< a text of `automaton`, over bytes
  };
  struct Node {
    Kind kind = Kind::kSequence;
    ByteSet bytes;
    std::string text;
    std::vector<Part> parts;
    std::int32_t min = 0, max = 0;
    std::shared_ptr<const Automaton> automaton;
  };

  const Node& node(Part part) const { return nodes_[at(part)]; }
  Part root() const { return root_; }
  Part num_parts() const { return static_cast<Part>(nodes_.size()); }

 private:
  friend class GrammarBuilder;
  std::vector<Node> nodes_;
  Part root_ = 0;
};

/// Collects the parts of one grammar. A repeated part must not match the empty text. No part may
/// contain itself before its first byte, except as a whole alternative of a choice.
class GrammarBuilder {
 public:
  using Part = Grammar::Part;

  Part bytes(const ByteSet& set);
  /// Returns a part for one byte from `first` to `last`, both included.
  Part range(unsigned char first, unsigned char last);
  Part literal(std::string text);
  Part sequence(std::vector<Part> parts);
  Part choice(std::vector<Part> parts);
  /// Returns a part for one of the texts, each of at least one byte. Many of them share the parts
  /// of their common beginnings, so that a matcher need not follow each of them.
  Part one_of(std::vector<std::string> texts);
  Part optional(Part part) { return choice({part, sequence({})}); }
  Part repeat(Part part, std::int32_t min, std::int32_t max = Grammar::kUnbounded);
  /// Returns a part for the texts of an automaton over bytes.
  Part automaton(Automaton automaton);
  /// Declares a part that define() defines later, for recursion.
  Part forward();
  void define(Part forward, Part meaning);

  /// What may still be spent on automata of this grammar.
  AutomatonBudget& budget() { return budget_; }

  /// Copies a finished grammar and returns the part of its texts.
  Part include(const Grammar& grammar);

  /// Returns the number of parts and of the states of automata.
  std::size_t size() const { return nodes_.size() + num_states_; }

  /// Returns the grammar of the texts that `root` matches. Alternatives that match no finite text
  /// are removed. Errors: kInvalidArgument if nothing is left.
  Result<std::shared_ptr<const Grammar>> finish(Part root);

 private:
  Part add(Grammar::Node node);
  /// Returns a part for what follows the first `from` bytes of one of the texts, which stands
  /// `levels` deep at most. The texts are ascending, different, and alike up to there.
  Part endings(std::span<const std::string> texts, std::size_t from, int levels);
  std::vector<Grammar::Node> nodes_;
  std::size_t num_states_ = 0;
  AutomatonBudget budget_;
};

}  // namespace quire
