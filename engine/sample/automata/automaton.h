/// This file defines deterministic automata: regular languages whose texts are followed state by
/// state. Grammars have them as parts, where parts in sequence could not count or compare.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/index.h"

namespace quire {

/// What building automata may still cost, in steps of which each makes a state or an edge. All that
/// is built for one grammar shares it, so that no schema takes long.
class AutomatonBudget {
 public:
  /// Returns false once more steps are taken than there are.
  bool spend(std::size_t steps) {
    left_ -= static_cast<std::int64_t>(steps);
    return left_ >= 0;
  }

 private:
  std::int64_t left_ = 1 << 19;
};

/// A deterministic automaton over bytes, or over code points of Unicode. From each of its states a
/// text can end. Immutable; threads: any.
class Automaton {
 public:
  using State = std::int32_t;
  using Symbol = std::uint32_t;
  static constexpr State kStart = 0, kNone = -1;
  static constexpr std::int32_t kUnbounded = std::numeric_limits<std::int32_t>::max();
  /// An automaton that would have more states is not built.
  static constexpr std::size_t kMaxStates = 1 << 16;

  /// The symbols from `first` to `last`, both included, lead to `to`.
  struct Edge {
    Symbol first, last;
    State to;
    auto operator<=>(const Edge&) const = default;
  };
  struct Node {
    std::vector<Edge> edges;  ///< ascending; no symbol is in two of them
    bool accepting = false;   ///< a text may end here
  };

  /// Builds the automaton that begins at `nodes[0]`. Nodes that no text passes are left out.
  explicit Automaton(const std::vector<Node>& nodes);

  /// Returns whether there is no text at all; such an automaton has no start either.
  bool empty() const { return accepting_.empty(); }
  State size() const { return static_cast<State>(accepting_.size()); }
  bool accepting(State state) const { return accepting_[at(state)]; }
  std::span<const Edge> edges(State state) const {
    return std::span(edges_).subspan(begins_[at(state)],
                                     begins_[at(state) + 1] - begins_[at(state)]);
  }
  /// Returns the state after the symbol; kNone: no text goes on with it.
  State next(State state, Symbol symbol) const;

 private:
  std::vector<Edge> edges_;  ///< of all states in their order
  std::vector<std::size_t> begins_{0};
  std::vector<bool> accepting_;
};

/// Appends an edge to ascending ones, as a part of the last one where they touch and agree.
void append_edge(std::vector<Automaton::Edge>& edges, const Automaton::Edge& edge);

/// Returns the texts of both; nothing: it has too many states, or the budget is spent.
std::optional<Automaton> texts_of_both(const Automaton& a, const Automaton& b,
                                       AutomatonBudget& budget);

/// Returns the texts of at least `min` and at most `max` symbols (Automaton::kUnbounded: any
/// number); nothing: it has too many states, or the budget is spent.
std::optional<Automaton> texts_of_length(const Automaton& a, std::int32_t min, std::int32_t max,
                                         AutomatonBudget& budget);

/// Returns all texts of code points but those of `a`. Surrogates are no code points.
Automaton other_texts(const Automaton& a);

/// Returns the fewest and the most symbols of a text; Automaton::kUnbounded: there is no most.
std::pair<std::int32_t, std::int32_t> lengths_of(const Automaton& a);

}  // namespace quire
