#include "engine/sample/token_mask.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/index.h"

namespace quire {

using Kind = Grammar::Kind;

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::vector<std::int32_t> markers)
    : markers_(std::move(markers)), strips_first_space_(tokenizer.strips_first_space()) {
  bytes_of_.resize(to_size(tokenizer.vocab_size()));
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) bytes_of_[at(id)] = tokenizer.token_bytes(id);
  }
  for (const std::int32_t id : markers_) bytes_of_[at(id)] = tokenizer.token_bytes(id);
  build();
}

TokenTrie::TokenTrie(std::span<const std::string_view> tokens, bool strips_first_space)
    : bytes_of_(tokens.begin(), tokens.end()), strips_first_space_(strips_first_space) {
  build();
}

void TokenTrie::build() {
  token_ids_.resize(bytes_of_.size());
  std::iota(token_ids_.begin(), token_ids_.end(), 0);
  std::erase_if(token_ids_, [this](std::int32_t id) { return bytes_of(id).empty(); });
  std::sort(token_ids_.begin(), token_ids_.end(), [this](std::int32_t a, std::int32_t b) {
    return std::pair(bytes_of(a), a) < std::pair(bytes_of(b), b);
  });
  std::vector<std::int32_t> path;  // the node of each byte of the previous token
  const auto close = [&](std::size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[at(path.back())].next = static_cast<std::int32_t>(nodes_.size());
  };
  std::string_view before;
  for (std::size_t i = 0; i < token_ids_.size(); ++i) {
    const std::string_view bytes = bytes_of(token_ids_[i]);
    const auto at = static_cast<std::int32_t>(i);
    if (i > 0 && bytes == before) {
      nodes_.back().tokens_end = at + 1;
      continue;
    }
    close(to_size(std::mismatch(bytes.begin(), bytes.end(), before.begin(), before.end()).first -
                  bytes.begin()));
    while (path.size() < bytes.size()) {
      Node n{};
      n.byte = static_cast<std::uint8_t>(bytes[path.size()]);
      n.depth = static_cast<std::int32_t>(path.size()) + 1;
      n.tokens_begin = n.tokens_end = at;
      path.push_back(static_cast<std::int32_t>(nodes_.size()));
      nodes_.push_back(n);
    }
    nodes_.back().tokens_end = at + 1;
    max_depth_ = std::max(max_depth_, static_cast<std::int32_t>(bytes.size()));
    before = bytes;
  }
  close(0);
}

GrammarMatcher::GrammarMatcher(const Grammar& grammar, const TokenTrie& trie, bool continues)
    : grammar_(grammar), trie_(trie), shortest_(grammar, trie) {
  StateKey start{true, false, {}};
  enter(grammar_.root(), kBottom, start);
  current_ = intern(start);
  if (!trie_.strips_first_space() || continues) return;
  // A space that is not part of the text may come first, once. After it the same start follows
  // without that choice.
  start.first = false;
  const StateId behind = intern(std::move(start));
  states_[current()].next[' '] = behind;
}

GrammarMatcher::FrameId GrammarMatcher::frame(Grammar::Part part, std::int32_t index,
                                              FrameId below) {
  const Frame f{part, index, below};
  const auto [it, fresh] = frame_ids_.emplace(f, static_cast<FrameId>(frames_.size()));
  if (fresh) {
    const Grammar::Node& n = grammar_.node(part);
    std::int64_t left = below == kBottom ? 0 : frame_tokens_[at(below)];
    if (n.kind == Kind::kRepeat) {
      left = ShortestEnd::joined(left,
                                 ShortestEnd::repeated(shortest_.of(n.parts[0]), n.min - index));
    } else {
      std::for_each(n.parts.begin() + index, n.parts.end(),
                    [&](Grammar::Part p) { left = ShortestEnd::joined(left, shortest_.of(p)); });
    }
    frames_.push_back(f);
    frame_tokens_.push_back(left);
  }
  return it->second;
}

void GrammarMatcher::add(const Way& way, StateKey& out) {
  const auto at = std::lower_bound(out.ways.begin(), out.ways.end(), way);
  if ((at == out.ways.end() || *at != way) && out.ways.size() < kMaxWays) out.ways.insert(at, way);
}

bool GrammarMatcher::first_time(Grammar::Part part, FrameId frame) {
  return seen_
      .insert(static_cast<std::uint64_t>(static_cast<std::uint32_t>(part)) << 32 |
              static_cast<std::uint32_t>(frame))
      .second;
}

void GrammarMatcher::enter(Grammar::Part part, FrameId then, StateKey& out) {
  if (!first_time(part, then)) return;
  const Grammar::Node& n = grammar_.node(part);
  switch (n.kind) {
    case Kind::kBytes:
    case Kind::kLiteral:
      return add({part, 0, then}, out);
    case Kind::kSequence:
      if (n.parts.empty()) return leave(then, out);
      // The last part needs no frame, as it is followed by what follows the sequence.
      return enter(n.parts[0], n.parts.size() == 1 ? then : frame(part, 1, then), out);
    case Kind::kChoice:
      for (const Grammar::Part p : n.parts) enter(p, then, out);
      return;
    case Kind::kRepeat:
      return repeat(part, 0, then, out);
    case Kind::kAutomaton:
      return arrive(part, Automaton::kStart, then, out);
  }
}

void GrammarMatcher::arrive(Grammar::Part part, Automaton::State state, FrameId then,
                            StateKey& out) {
  const Automaton& automaton = *grammar_.node(part).automaton;
  if (automaton.accepting(state)) leave(then, out);
  if (!automaton.edges(state).empty()) add({part, state, then}, out);
}

void GrammarMatcher::leave(FrameId id, StateKey& out) {
  if (id == kBottom) {
    out.complete = true;
    return;
  }
  if (!first_time(-1, id)) return;
  const Frame f = frames_[at(id)];
  const Grammar::Node& n = grammar_.node(f.part);
  if (n.kind == Kind::kRepeat) return repeat(f.part, f.index, f.below, out);
  const auto next = to_size(f.index);
  enter(n.parts[next], next + 1 == n.parts.size() ? f.below : frame(f.part, f.index + 1, f.below),
        out);
}

void GrammarMatcher::repeat(Grammar::Part part, std::int32_t count, FrameId below, StateKey& out) {
  const Grammar::Node& n = grammar_.node(part);
  if (count >= n.min) leave(below, out);
  if (count >= n.max) return;
  // Without an upper bound, all counts from the lower one on are equivalent.
  const std::int32_t after = n.max == Grammar::kUnbounded ? std::min(count + 1, n.min) : count + 1;
  enter(n.parts[0], frame(part, after, below), out);
}

GrammarMatcher::StateId GrammarMatcher::intern(StateKey key) {
  if (key.ways.empty() && !key.complete) return kDead;
  const auto [it, fresh] = state_ids_.emplace(std::move(key), static_cast<StateId>(states_.size()));
  if (fresh) {
    State& s = states_.emplace_back();
    s.ways = it->first.ways;
    s.complete = it->first.complete;
    s.tokens_left = s.complete ? 0 : ShortestEnd::kNever;
    for (const Way& way : s.ways) s.tokens_left = std::min(s.tokens_left, tokens_left(way));
    s.next.fill(kUnknown);
  }
  return it->second;
}

std::int64_t GrammarMatcher::tokens_left(const Way& way) const {
  const std::int64_t then = way.then == kBottom ? 0 : frame_tokens_[at(way.then)];
  return ShortestEnd::joined(shortest_.of_rest(way.part, way.offset), then);
}

GrammarMatcher::StateId GrammarMatcher::step(StateId from, std::uint8_t byte) {
  const StateId known = states_[at(from)].next[byte];
  if (known != kUnknown) return known;
  StateKey key{false, false, {}};
  seen_.clear();
  for (const Way& way : states_[at(from)].ways) {
    const Grammar::Node& n = grammar_.node(way.part);
    if (n.kind == Kind::kBytes) {
      if (n.bytes.test(byte)) leave(way.then, key);
    } else if (n.kind == Kind::kAutomaton) {
      const Automaton::State to = n.automaton->next(way.offset, byte);
      if (to != Automaton::kNone) arrive(way.part, to, way.then, key);
    } else if (static_cast<std::uint8_t>(n.text[at(way.offset)]) == byte) {
      if (to_size(way.offset) + 1 == n.text.size()) {
        leave(way.then, key);
      } else {
        add({way.part, way.offset + 1, way.then}, key);
      }
    }
  }
  const StateId to = intern(std::move(key));
  states_[at(from)].next[byte] = to;
  return to;
}

GrammarMatcher::Mask GrammarMatcher::walk(StateId from, std::int64_t most_left) {
  Mask mask;
  mask.tokens.resize((to_size(trie_.vocab_size()) + 63) / 64);
  std::vector<StateId> reached(to_size(trie_.max_depth()) + 1);
  reached[0] = from;
  const auto& nodes = trie_.nodes();
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& n = nodes[i];
    const auto depth = to_size(n.depth);
    reached[depth] = step(reached[depth - 1], n.byte);
    if (reached[depth] == kDead) {
      i = to_size(n.next);
      continue;
    }
    ++i;
    const std::int64_t left = states_[at(reached[depth])].tokens_left;
    if (n.tokens_begin == n.tokens_end || left > most_left) continue;
    mask.most_left = std::max(mask.most_left, left);
    mask.empty = false;
    for (std::int32_t t = n.tokens_begin; t < n.tokens_end; ++t) {
      const auto id = to_size(trie_.token_ids()[at(t)]);
      mask.tokens[id / 64] |= std::uint64_t{1} << (id % 64);
    }
  }
  return mask;
}

std::span<const std::uint64_t> GrammarMatcher::allowed(std::int64_t room) {
  narrowed_ = false;
  auto it = masks_.find(current_);
  if (it == masks_.end()) {
    if (states_.size() > kMaxStates) forget_all_but_current();
    if (masks_.size() >= kMaxMasks) masks_.clear();
    it = masks_.emplace(current_, walk(current_, ShortestEnd::kNever)).first;
  }
  const Mask& whole = it->second;
  if (whole.most_left < room || states_[current()].tokens_left > room) return whole.tokens;
  narrow_ = walk(current_, room - 1);
  // The mask is empty if the answer is complete and cannot be extended in time.
  if (narrow_.empty && !complete()) return whole.tokens;
  narrowed_ = true;
  return narrow_.tokens;
}

bool GrammarMatcher::withheld(std::int32_t token_id) const {
  if (!narrowed_ || token_id < 0 || token_id >= trie_.vocab_size()) return false;
  const auto word = to_size(token_id) / 64;
  const std::uint64_t bit = std::uint64_t{1} << (token_id % 64);
  return (masks_.at(current_).tokens[word] & ~narrow_.tokens[word] & bit) != 0;
}

bool GrammarMatcher::advance(std::int32_t token_id) {
  if (token_id < 0 || token_id >= trie_.vocab_size()) return false;
  const std::string_view bytes = trie_.bytes_of(token_id);
  if (bytes.empty()) return false;
  StateId to = current_;
  for (const char c : bytes) {
    to = step(to, static_cast<std::uint8_t>(c));
    if (to == kDead) return false;
  }
  current_ = to;
  return true;
}

/// Keeps only the current state. Frames are renumbered in the order they are reached, so that equal
/// answers lead to equal numbers.
void GrammarMatcher::forget_all_but_current() {
  StateKey key{false, states_[current()].complete, states_[current()].ways};
  const std::vector<Frame> old = std::exchange(frames_, {});
  frame_ids_.clear();
  frame_tokens_.clear();
  states_.clear();
  state_ids_.clear();
  masks_.clear();
  for (Way& way : key.ways) {
    std::vector<FrameId> chain;
    for (FrameId f = way.then; f != kBottom; f = old[at(f)].below) chain.push_back(f);
    FrameId then = kBottom;
    for (auto f = chain.rbegin(); f != chain.rend(); ++f)
      then = frame(old[at(*f)].part, old[at(*f)].index, then);
    way.then = then;
  }
  std::sort(key.ways.begin(), key.ways.end());
  current_ = intern(std::move(key));
}

}  // namespace quire
