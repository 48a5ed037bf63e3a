/// Which tokens may come next in an answer that must belong to a grammar.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/sample/grammar.h"
#include "engine/sample/shortest_end.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// The byte strings of a vocabulary, without its special tokens, in the order a walk wants them.
/// Immutable: any thread.
class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer);
  /// The same from byte strings; an empty one is no token. For vocabularies that stand in no file.
  TokenTrie(std::span<const std::string_view> tokens, bool strips_first_space);

  /// Nodes in depth-first order; node i spells the bytes on its path.
  struct Node {
    std::int32_t depth;  ///< bytes on the path, from 1
    std::int32_t next;   ///< the first node that is not below this one
    /// Of token_ids(): the tokens that are exactly these bytes
    std::int32_t tokens_begin, tokens_end;
    std::uint8_t byte;  ///< the last one
  };
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<std::int32_t>& token_ids() const { return token_ids_; }
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(bytes_of_.size()); }
  std::int32_t max_depth() const { return max_depth_; }
  /// Empty: not in the trie.
  std::string_view bytes_of(std::int32_t id) const {
    return bytes_of_[static_cast<std::size_t>(id)];
  }
  /// Calls `found(length)` for each token that `text` begins with, shortest first.
  template <class Found>
  void for_each_beginning(std::string_view text, Found found) const {
    // The nodes that may come next: `at` and what stands beside it
    std::size_t at = 0, end = nodes_.size();
    for (std::size_t depth = 0; depth < text.size(); ++depth) {
      while (at < end && nodes_[at].byte != static_cast<std::uint8_t>(text[depth]))
        at = static_cast<std::size_t>(nodes_[at].next);
      if (at >= end) return;
      if (nodes_[at].tokens_begin != nodes_[at].tokens_end) found(depth + 1);
      end = static_cast<std::size_t>(nodes_[at].next);
      ++at;
    }
  }
  /// A space before the answer's first byte is not part of its text.
  bool strips_first_space() const { return strips_first_space_; }

 private:
  void build();
  std::vector<std::string_view> bytes_of_;  ///< by id; the bytes are the tokenizer's
  std::vector<Node> nodes_;
  std::vector<std::int32_t> token_ids_;
  std::int32_t max_depth_ = 0;
  bool strips_first_space_ = false;
};

/// Follows one answer through a grammar. A state is the set of all ways to read the text so far;
/// states, the bytes between them and the masks of tokens they allow are found once and remembered.
/// Where a grammar is so ambiguous that a state would have more than kMaxWays ways, the rest is
/// given up: the answer still belongs to the grammar, but not every text of it can be reached.
///
/// Threads: one at a time. Grammar and trie must outlive it.
class GrammarMatcher {
 public:
  static constexpr std::size_t kMaxWays = 256;

  GrammarMatcher(const Grammar& grammar, const TokenTrie& trie);

  /// One bit a token, token t in bit t % 64 of word t / 64: it may come next. Valid until the next
  /// call of a method. `room`: tokens the answer may still have. Where an end fits into it, only
  /// tokens are allowed behind which one still does, so that an answer ends before its room does;
  /// where none is known to fit (ShortestEnd), `room` changes nothing.
  std::span<const std::uint64_t> allowed(std::int64_t room = ShortestEnd::kNever);
  /// `room` made the last allowed() smaller.
  bool narrowed() const { return narrowed_; }
  /// Whether `room` took this token from it.
  bool withheld(std::int32_t token_id) const;
  /// The answer goes on with this token. False, and nothing changed: it may not.
  bool advance(std::int32_t token_id);
  /// The text so far belongs to the grammar.
  bool complete() const { return states_[current()].complete; }
  /// It does, and no longer text does that begins with it.
  bool finished() const { return complete() && states_[current()].ways.empty(); }

 private:
  using StateId = std::int32_t;
  using FrameId = std::int32_t;
  static constexpr StateId kUnknown = -2, kDead = -1;
  static constexpr FrameId kBottom = -1;
  static constexpr std::size_t kMaxStates = 4096, kMaxMasks = 128;

  /// What follows once a part is read: the rest of a sequence from `index`, or a repetition that
  /// has been read `index` times.
  struct Frame {
    Grammar::Part part;
    std::int32_t index;
    FrameId below;
    auto operator<=>(const Frame&) const = default;
  };
  /// A byte is due: of a byte set, or byte `offset` of a literal; then `then`.
  struct Way {
    Grammar::Part part;
    std::int32_t offset;
    FrameId then;
    auto operator<=>(const Way&) const = default;
  };
  struct State {
    std::vector<Way> ways;  ///< ascending
    bool complete = false;
    std::int64_t tokens_left = 0;  ///< enough for the nearest end
    std::array<StateId, 256> next;
  };
  struct StateKey {
    bool first, complete;  ///< first: nothing of the answer was read
    std::vector<Way> ways;
    auto operator<=>(const StateKey&) const = default;
  };

  struct Mask {
    std::vector<std::uint64_t> tokens;
    std::int64_t most_left = 0;  ///< tokens_left behind the token that leaves most to do
    bool empty = true;
  };

  std::size_t current() const { return static_cast<std::size_t>(current_); }
  FrameId frame(Grammar::Part part, std::int32_t index, FrameId below);
  static void add(const Way& way, StateKey& out);
  void enter(Grammar::Part part, FrameId then, StateKey& out);
  void leave(FrameId frame, StateKey& out);
  void repeat(Grammar::Part part, std::int32_t count, FrameId below, StateKey& out);
  StateId intern(StateKey key);
  StateId step(StateId state, std::uint8_t byte);
  /// The tokens behind which the nearest end needs at most `most_left` more.
  Mask walk(StateId from, std::int64_t most_left);
  std::int64_t tokens_left(const Way& way) const;
  void forget_all_but_current();

  /// True the first time for the state in work: what a part before a frame, or a frame, leads to
  /// need be found only once.
  bool first_time(Grammar::Part part, FrameId frame);

  const Grammar& grammar_;
  const TokenTrie& trie_;
  const ShortestEnd shortest_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<Frame> frames_;
  std::vector<std::int64_t> frame_tokens_;  ///< by frame: enough from it to the end
  std::map<Frame, FrameId> frame_ids_;
  std::vector<State> states_;
  std::map<StateKey, StateId> state_ids_;
  std::unordered_map<StateId, Mask> masks_;
  Mask narrow_;            ///< the last mask that `room` made narrower
  bool narrowed_ = false;  ///< the last allowed() gave it
  StateId current_ = 0;
};

}  // namespace quire
