/// This file computes which tokens may come next in an answer that must belong to a grammar.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/index.h"
#include "engine/sample/grammar.h"
#include "engine/sample/shortest_end.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// A trie of the vocabulary's byte strings, without special tokens but the markers, in the order of
/// a traversal. Immutable; threads: any.
class TokenTrie {
 public:
  /// `markers` are special tokens that a grammar may use by their spelling, such as those around
  /// tool calls. An answer whose text does not show them must not use them.
  explicit TokenTrie(const Tokenizer& tokenizer, std::vector<std::int32_t> markers = {});
  /// Builds the trie from byte strings, for vocabularies without a file; an empty string is no
  /// token.
  TokenTrie(std::span<const std::string_view> tokens, bool strips_first_space);

  /// Nodes in depth-first order; node i spells the bytes on its path.
  struct Node {
    std::int32_t depth;  ///< number of bytes on the path, from 1
    std::int32_t next;   ///< index of the first node after this one that is not below it
    /// Range of token_ids() with the tokens that are exactly these bytes.
    std::int32_t tokens_begin, tokens_end;
    std::uint8_t byte;  ///< last byte of the path
  };
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<std::int32_t>& token_ids() const { return token_ids_; }
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(bytes_of_.size()); }
  std::int32_t max_depth() const { return max_depth_; }
  /// Returns the token's bytes; empty if it is not in the trie.
  std::string_view bytes_of(std::int32_t id) const { return bytes_of_[at(id)]; }
  /// Calls `found(length)` for each token that is a prefix of `text`, shortest first.
  template <class Found>
  void for_each_beginning(std::string_view text, Found found) const {
    // [at, end): the subtree of nodes that may match the next byte.
    std::size_t at = 0, end = nodes_.size();
    for (std::size_t depth = 0; depth < text.size(); ++depth) {
      while (at < end && nodes_[at].byte != static_cast<std::uint8_t>(text[depth]))
        at = to_size(nodes_[at].next);
      if (at >= end) return;
      if (nodes_[at].tokens_begin != nodes_[at].tokens_end) found(depth + 1);
      end = to_size(nodes_[at].next);
      ++at;
    }
  }
  /// Returns whether a space before the answer's first byte is not part of its text.
  bool strips_first_space() const { return strips_first_space_; }
  const std::vector<std::int32_t>& markers() const { return markers_; }

 private:
  void build();
  std::vector<std::int32_t> markers_;
  std::vector<std::string_view> bytes_of_;  ///< indexed by id; the bytes belong to the tokenizer
  std::vector<Node> nodes_;
  std::vector<std::int32_t> token_ids_;
  std::int32_t max_depth_ = 0;
  bool strips_first_space_ = false;
};

/// Follows one answer through a grammar. A state is the set of all ways to read the text so far;
/// states, their byte transitions and their token masks are computed once and cached. If a state
/// would have more than kMaxWays ways, because the grammar is ambiguous or has that many
/// alternatives that are no plain texts (GrammarBuilder::one_of), the others are dropped: the
/// answer still belongs to the grammar, but not every text of it can be reached. FirstWays tells
/// grammars with that many alternatives.
///
/// Threads: one at a time. Grammar and trie must outlive it.
class GrammarMatcher {
 public:
  static constexpr std::size_t kMaxWays = 256;

  /// With `continues` no space comes before the text; see SamplingOptions.
  GrammarMatcher(const Grammar& grammar, const TokenTrie& trie, bool continues = false);

  /// Returns the tokens that may come next: token t is bit t % 64 of word t / 64; valid until the
  /// next call of a method. `room` is how many tokens the answer may still have. If an end fits
  /// into it, only tokens after which one still fits are allowed, so that the answer ends in time.
  /// If none is known to fit (ShortestEnd), `room` has no effect.
  std::span<const std::uint64_t> allowed(std::int64_t room = ShortestEnd::kNever);
  /// Returns whether `room` reduced the last allowed().
  bool narrowed() const { return narrowed_; }
  /// Returns whether `room` removed this token from the last allowed().
  bool withheld(std::int32_t token_id) const;
  /// Appends this token to the answer. Returns false, with nothing changed, if it is not allowed.
  bool advance(std::int32_t token_id);
  /// Returns whether the text so far belongs to the grammar.
  bool complete() const { return states_[current()].complete; }
  /// Returns whether the text is complete and no longer text of the grammar begins with it.
  bool finished() const { return complete() && states_[current()].ways.empty(); }

 private:
  using StateId = std::int32_t;
  using FrameId = std::int32_t;
  static constexpr StateId kUnknown = -2, kDead = -1;
  static constexpr FrameId kBottom = -1;
  static constexpr std::size_t kMaxStates = 4096, kMaxMasks = 128;

  /// Stack frame: what follows once a part is read. It is the rest of a sequence from `index`, or a
  /// repetition that has been read `index` times.
  struct Frame {
    Grammar::Part part;
    std::int32_t index;
    FrameId below;
    auto operator<=>(const Frame&) const = default;
  };
  /// An expected byte, of a byte set, byte `offset` of a literal or at the state `offset` of an
  /// automaton; frame `then` follows.
  struct Way {
    Grammar::Part part;
    std::int32_t offset;
    FrameId then;
    auto operator<=>(const Way&) const = default;
  };
  struct State {
    std::vector<Way> ways;  ///< ascending
    bool complete = false;
    std::int64_t tokens_left = 0;  ///< tokens that suffice for the nearest end
    std::array<StateId, 256> next;
  };
  struct StateKey {
    bool first, complete;  ///< first: the answer is still empty
    std::vector<Way> ways;
    auto operator<=>(const StateKey&) const = default;
  };

  struct Mask {
    std::vector<std::uint64_t> tokens;
    std::int64_t most_left = 0;  ///< largest tokens_left after any allowed token
    bool empty = true;
  };

  std::size_t current() const { return to_size(current_); }
  FrameId frame(Grammar::Part part, std::int32_t index, FrameId below);
  static void add(const Way& way, StateKey& out);
  void enter(Grammar::Part part, FrameId then, StateKey& out);
  void leave(FrameId frame, StateKey& out);
  void repeat(Grammar::Part part, std::int32_t count, FrameId below, StateKey& out);
  /// Goes on at a state of the automaton `part`, which is not empty.
  void arrive(Grammar::Part part, Automaton::State state, FrameId then, StateKey& out);
  StateId intern(StateKey key);
  StateId step(StateId state, std::uint8_t byte);
  /// Returns the tokens after which the nearest end needs at most `most_left` more.
  Mask walk(StateId from, std::int64_t most_left);
  std::int64_t tokens_left(const Way& way) const;
  void forget_all_but_current();

  /// Returns true the first time it is called for the state in work, as the closure of a part and a
  /// frame is computed only once.
  bool first_time(Grammar::Part part, FrameId frame);

  const Grammar& grammar_;
  const TokenTrie& trie_;
  const ShortestEnd shortest_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<Frame> frames_;
  /// Indexed by frame: tokens that suffice from it to the end.
  std::vector<std::int64_t> frame_tokens_;
  std::map<Frame, FrameId> frame_ids_;
  std::vector<State> states_;
  std::map<StateKey, StateId> state_ids_;
  std::unordered_map<StateId, Mask> masks_;
  Mask narrow_;            ///< last mask that `room` reduced
  bool narrowed_ = false;  ///< the last allowed() returned narrow_
  StateId current_ = 0;
};

}  // namespace quire
