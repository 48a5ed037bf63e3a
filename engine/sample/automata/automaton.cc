#include "engine/sample/automata/automaton.h"

#include <algorithm>
#include <map>

namespace quire {
namespace {

using State = Automaton::State;
using Edge = Automaton::Edge;
using Node = Automaton::Node;

constexpr Automaton::Symbol kBeforeSurrogates = 0xd7ff, kAfterSurrogates = 0xe000,
                            kLastSymbol = 0x10ffff;

/// Returns which nodes lead to an end.
std::vector<bool> living(const std::vector<Node>& nodes) {
  std::vector<std::vector<State>> from(nodes.size());
  std::vector<State> open;
  std::vector<bool> alive(nodes.size(), false);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const Edge& edge : nodes[i].edges) from[at(edge.to)].push_back(static_cast<State>(i));
    if (!nodes[i].accepting) continue;
    alive[i] = true;
    open.push_back(static_cast<State>(i));
  }
  while (!open.empty()) {
    const State to = open.back();
    open.pop_back();
    for (const State state : from[at(to)]) {
      if (alive[at(state)]) continue;
      alive[at(state)] = true;
      open.push_back(state);
    }
  }
  return alive;
}

/// Numbers pairs of states, or of a state and a count, and keeps the nodes they become.
class Pairs {
 public:
  using Key = std::pair<State, std::int32_t>;

  State id(const Key& key) {
    const auto [it, fresh] = ids_.emplace(key, static_cast<State>(keys_.size()));
    if (fresh) keys_.push_back(key);
    return it->second;
  }
  /// Calls `make(key, node)` for each pair until there are no more; nothing: they are too many.
  template <class Make>
  std::optional<Automaton> automaton(AutomatonBudget& budget, Make make) {
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const Key key = keys_[i];
      make(key, nodes.emplace_back());
      if (keys_.size() > Automaton::kMaxStates || !budget.spend(1 + nodes.back().edges.size()))
        return std::nullopt;
    }
    return Automaton(nodes);
  }

 private:
  std::map<Key, State> ids_;
  std::vector<Key> keys_;
};

}  // namespace

Automaton::Automaton(const std::vector<Node>& nodes) {
  const std::vector<bool> alive = living(nodes);
  if (nodes.empty() || !alive[0]) return;
  std::vector<State> ids(nodes.size(), kNone), order{0};
  ids[0] = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Node& node = nodes[at(order[i])];
    accepting_.push_back(node.accepting);
    for (Edge edge : node.edges) {
      if (!alive[at(edge.to)]) continue;
      State& id = ids[at(edge.to)];
      if (id == kNone) {
        id = static_cast<State>(order.size());
        order.push_back(edge.to);
      }
      edge.to = id;
      edges_.push_back(edge);
    }
    begins_.push_back(edges_.size());
  }
}

State Automaton::next(State state, Symbol symbol) const {
  const auto all = edges(state);
  const auto edge = std::ranges::partition_point(
      all, [symbol](const Edge& e) { return e.last < symbol; });
  return edge == all.end() || edge->first > symbol ? kNone : edge->to;
}

void append_edge(std::vector<Edge>& edges, const Edge& edge) {
  if (!edges.empty() && edges.back().to == edge.to && edges.back().last + 1 == edge.first)
    edges.back().last = edge.last;
  else
    edges.push_back(edge);
}

std::optional<Automaton> texts_of_both(const Automaton& a, const Automaton& b,
                                       AutomatonBudget& budget) {
  if (a.empty() || b.empty()) return Automaton({});
  Pairs pairs;
  pairs.id({Automaton::kStart, Automaton::kStart});
  return pairs.automaton(budget, [&](const Pairs::Key& key, Node& node) {
    node.accepting = a.accepting(key.first) && b.accepting(key.second);
    const auto left = a.edges(key.first), right = b.edges(key.second);
    for (auto l = left.begin(), r = right.begin(); l != left.end() && r != right.end();) {
      const auto first = std::max(l->first, r->first), last = std::min(l->last, r->last);
      if (first <= last) append_edge(node.edges, {first, last, pairs.id({l->to, r->to})});
      if (l->last < r->last)
        ++l;
      else
        ++r;
    }
  });
}

std::optional<Automaton> texts_of_length(const Automaton& a, std::int32_t min, std::int32_t max,
                                         AutomatonBudget& budget) {
  if (a.empty()) return a;
  Pairs pairs;
  pairs.id({Automaton::kStart, 0});
  return pairs.automaton(budget, [&](const Pairs::Key& key, Node& node) {
    const auto [state, count] = key;
    node.accepting = a.accepting(state) && count >= min;
    if (count >= max) return;
    // Without a most, all counts from the least one on are equivalent.
    const std::int32_t then = max == Automaton::kUnbounded ? std::min(count + 1, min) : count + 1;
    for (const Edge& edge : a.edges(state))
      append_edge(node.edges, {edge.first, edge.last, pairs.id({edge.to, then})});
  });
}

Automaton other_texts(const Automaton& a) {
  std::vector<Node> nodes(at(a.size()) + 1);
  const State rest = a.size();
  // Fills what no edge has, so that the text is another one from there on.
  const auto fill = [rest](Node& node, Automaton::Symbol first, Automaton::Symbol last) {
    const auto add = [&](Automaton::Symbol from, Automaton::Symbol to) {
      if (from <= to) append_edge(node.edges, {from, to, rest});
    };
    add(first, std::min(last, kBeforeSurrogates));
    add(std::max(first, kAfterSurrogates), last);
  };
  for (State state = 0; state < a.size(); ++state) {
    Node& node = nodes[at(state)];
    node.accepting = !a.accepting(state);
    Automaton::Symbol next = 0;
    for (const Edge& edge : a.edges(state)) {
      if (edge.first > next) fill(node, next, edge.first - 1);
      node.edges.push_back(edge);
      next = edge.last + 1;
    }
    if (next <= kLastSymbol) fill(node, next, kLastSymbol);
  }
  nodes[at(rest)].accepting = true;
  fill(nodes[at(rest)], 0, kLastSymbol);
  return Automaton(nodes);
}

std::pair<std::int32_t, std::int32_t> lengths_of(const Automaton& a) {
  if (a.empty()) return {0, 0};
  std::vector<std::int32_t> fewest(at(a.size()), Automaton::kUnbounded), most(at(a.size()), 0);
  std::vector<std::size_t> entries(at(a.size()), 0);
  std::int32_t least = Automaton::kUnbounded, greatest = 0;
  std::vector<State> order{Automaton::kStart};
  fewest[0] = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (a.accepting(order[i])) least = std::min(least, fewest[at(order[i])]);
    for (const Edge& edge : a.edges(order[i])) {
      ++entries[at(edge.to)];
      if (fewest[at(edge.to)] != Automaton::kUnbounded) continue;
      fewest[at(edge.to)] = fewest[at(order[i])] + 1;
      order.push_back(edge.to);
    }
  }
  // A state is done once all that lead to it are; those of a circle never are.
  std::vector<State> done;
  if (entries[0] == 0) done.push_back(Automaton::kStart);
  for (std::size_t i = 0; i < done.size(); ++i) {
    const std::int32_t length = most[at(done[i])];
    if (a.accepting(done[i])) greatest = std::max(greatest, length);
    for (const Edge& edge : a.edges(done[i])) {
      most[at(edge.to)] = std::max(most[at(edge.to)], length + 1);
      if (--entries[at(edge.to)] == 0) done.push_back(edge.to);
    }
  }
  return {least, done.size() == order.size() ? greatest : Automaton::kUnbounded};
}

}  // namespace quire
