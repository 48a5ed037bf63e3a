#include "engine/sample/shortest_end.h"

#include <algorithm>
#include <string_view>

#include "base/index.h"
#include "engine/sample/token_mask.h"

namespace quire {
namespace {

using Kind = Grammar::Kind;
using Part = Grammar::Part;

/// Returns, from each byte of `text` on, the fewest tokens that spell the rest.
std::vector<std::int64_t> spell(std::string_view text, const TokenTrie& trie) {
  std::vector<std::int64_t> left(text.size() + 1, ShortestEnd::kNever);
  left[text.size()] = 0;
  for (std::size_t i = text.size(); i-- > 0;) {
    trie.for_each_beginning(text.substr(i), [&](std::size_t num_bytes) {
      left[i] = std::min(left[i], ShortestEnd::joined(1, left[i + num_bytes]));
    });
  }
  return left;
}

/// Returns, from each state on, the fewest bytes to an end, of which each is a token.
std::vector<std::int64_t> bytes_left(const Automaton& automaton, const ByteSet& single) {
  using State = Automaton::State;
  std::vector<std::vector<State>> from(to_size(automaton.size()));
  std::vector<std::int64_t> left(to_size(automaton.size()), ShortestEnd::kNever);
  std::vector<State> order;
  for (State state = 0; state < automaton.size(); ++state) {
    for (const Automaton::Edge& edge : automaton.edges(state)) {
      bool spelled = false;
      for (auto byte = edge.first; byte <= edge.last; ++byte)
        spelled = spelled || single.test(byte);
      if (spelled) from[at(edge.to)].push_back(state);
    }
    if (!automaton.accepting(state)) continue;
    left[at(state)] = 0;
    order.push_back(state);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const State state : from[at(order[i])]) {
      if (left[at(state)] != ShortestEnd::kNever) continue;
      left[at(state)] = left[at(order[i])] + 1;
      order.push_back(state);
    }
  }
  return left;
}

}  // namespace

std::int64_t ShortestEnd::joined(std::int64_t a, std::int64_t b) {
  if (a == kNever || b == kNever) return kNever;
  return std::min(a + b, kNever - 1);
}

std::int64_t ShortestEnd::repeated(std::int64_t tokens, std::int32_t times) {
  if (times <= 0) return 0;
  if (tokens == kNever) return kNever;
  return tokens > 0 && times > (kNever - 1) / tokens ? kNever - 1 : tokens * times;
}

ShortestEnd::ShortestEnd(const Grammar& grammar, const TokenTrie& trie)
    : tokens_(to_size(grammar.num_parts()), kNever) {
  ByteSet single;  // bytes that are a token
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    trie.for_each_beginning(std::string_view(&byte, 1), [&](std::size_t) { single.set(b); });
  }
  for (Part p = 0; p < grammar.num_parts(); ++p) {
    const Grammar::Node& n = grammar.node(p);
    if (n.kind == Kind::kBytes && (n.bytes & single).any()) tokens_[at(p)] = 1;
    if (n.kind == Kind::kLiteral)
      tokens_[at(p)] = rests_.emplace(p, spell(n.text, trie)).first->second.front();
    if (n.kind == Kind::kAutomaton && !n.automaton->empty())
      tokens_[at(p)] = rests_.emplace(p, bytes_left(*n.automaton, single)).first->second.front();
  }
  // Computes the least fixed point; most parts come after those they consist of.
  for (bool changed = true; changed;) {
    changed = false;
    for (Part p = 0; p < grammar.num_parts(); ++p) {
      const Grammar::Node& n = grammar.node(p);
      if (n.kind == Kind::kBytes || n.kind == Kind::kLiteral || n.kind == Kind::kAutomaton)
        continue;
      const std::int64_t now = whole(n);
      std::int64_t& known = tokens_[at(p)];
      if (now >= known) continue;
      known = now;
      changed = true;
    }
  }
}

std::int64_t ShortestEnd::whole(const Grammar::Node& n) const {
  if (n.kind == Kind::kRepeat) return repeated(of(n.parts[0]), n.min);
  std::int64_t out = n.kind == Kind::kSequence ? 0 : kNever;
  for (const Part p : n.parts)
    out = n.kind == Kind::kSequence ? joined(out, of(p)) : std::min(out, of(p));
  return out;
}

std::int64_t ShortestEnd::of_rest(Part part, std::int32_t offset) const {
  const auto rest = rests_.find(part);
  return rest == rests_.end() ? of(part) : rest->second[at(offset)];
}

}  // namespace quire
