#include "engine/sample/pattern_automaton.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/sample/automata/character_bytes.h"

namespace quire {
namespace {

using State = Automaton::State;
using Symbol = Automaton::Symbol;
using Edge = Automaton::Edge;
using Node = Automaton::Node;

/// The expression as an automaton that may be in several places at once.
class Places {
 public:
  using Place = std::int32_t;

  explicit Places(AutomatonBudget& budget) : budget_(budget) {}

  /// Adds the texts of the node after a place, and returns the place behind them. False: they take
  /// too many places.
  bool add(const PatternNode& node, Place from, Place& behind) {
    switch (node.kind) {
      case PatternNode::Kind::kSet: {
        if (!make(behind)) return false;
        for (const auto& [first, last] : node.set.ranges())
          places_[at(from)].edges.push_back({first, last, behind});
        return budget_.spend(node.set.ranges().size());
      }
      case PatternNode::Kind::kSequence:
        behind = from;
        return std::ranges::all_of(
            node.items, [&](const PatternNode& item) { return add(item, Place{behind}, behind); });
      case PatternNode::Kind::kChoice: {
        if (!make(behind)) return false;
        for (const PatternNode& item : node.items) {
          Place end = 0;
          if (!add(item, from, end)) return false;
          skip(end, behind);
        }
        return true;
      }
      case PatternNode::Kind::kRepeat:
        return repeat(node, from, behind);
      case PatternNode::Kind::kRule:
        return false;
    }
    return false;
  }

  bool make(Place& place) {
    place = static_cast<Place>(places_.size());
    places_.emplace_back();
    return places_.size() <= kMostPlaces && budget_.spend(1);
  }

  /// Appends the places that are reached without a character.
  void close(std::vector<Place>& some) {
    closed_.assign(places_.size(), false);
    for (const Place place : some) closed_[at(place)] = true;
    for (std::size_t i = 0; i < some.size(); ++i) {
      for (const Place next : places_[at(some[i])].skips) {
        if (closed_[at(next)]) continue;
        closed_[at(next)] = true;
        some.push_back(next);
      }
    }
    std::ranges::sort(some);
  }
  const std::vector<Edge>& edges(Place place) const { return places_[at(place)].edges; }

 private:
  static constexpr std::size_t kMostPlaces = 1 << 14;

  struct Around {
    std::vector<Edge> edges;  ///< to places
    std::vector<Place> skips;
  };

  void skip(Place from, Place to) { places_[at(from)].skips.push_back(to); }

  bool repeat(const PatternNode& node, Place from, Place& behind) {
    const PatternNode& item = node.items[0];
    // A loop begins at a place of its own, so that nothing else that begins here goes round.
    Place here = 0;
    if (!make(here)) return false;
    skip(from, here);
    for (std::int32_t i = 0; i < node.min; ++i) {
      Place next = 0;
      if (!add(item, here, next)) return false;
      // The next round begins at a place of its own, too.
      if (!make(here)) return false;
      skip(next, here);
    }
    if (!make(behind)) return false;
    skip(here, behind);
    if (node.max == Grammar::kUnbounded) {
      Place end = 0;
      if (!add(item, here, end)) return false;
      skip(end, here);
      return true;
    }
    for (std::int32_t i = node.min; i < node.max; ++i) {
      Place next = 0;
      if (!add(item, here, next) || !make(here)) return false;
      skip(next, here);
      skip(here, behind);
    }
    return true;
  }

  AutomatonBudget& budget_;
  std::vector<Around> places_;
  std::vector<bool> closed_;  ///< by place, in close()
};

/// Makes the states of sets of places.
class Subsets {
 public:
  Subsets(Places& places, Places::Place end, AutomatonBudget& budget)
      : places_(places), end_(end), budget_(budget) {}

  std::optional<Automaton> automaton(std::vector<Places::Place> start) {
    places_.close(start);
    id(std::move(start));
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < subsets_.size(); ++i) {
      const std::vector<Places::Place> from = *subsets_[i];
      Node& node = nodes.emplace_back();
      node.accepting = std::ranges::binary_search(from, end_);
      if (!edges(from, node) || subsets_.size() > Automaton::kMaxStates ||
          !budget_.spend(1 + node.edges.size()))
        return std::nullopt;
    }
    return Automaton(nodes);
  }

 private:
  bool edges(const std::vector<Places::Place>& from, Node& node) {
    // At each border of a range, a place is reached from there on, or no more.
    struct Border {
      Symbol symbol;
      int change;
      Places::Place to;
    };
    std::vector<Border> borders;
    for (const Places::Place place : from) {
      for (const Edge& edge : places_.edges(place)) {
        borders.push_back({edge.first, 1, edge.to});
        borders.push_back({edge.last + 1, -1, edge.to});
      }
    }
    if (!budget_.spend(from.size() + borders.size())) return false;
    std::ranges::sort(borders, {}, &Border::symbol);
    std::map<Places::Place, int> reached;
    for (std::size_t i = 0; i < borders.size();) {
      const Symbol first = borders[i].symbol;
      for (; i < borders.size() && borders[i].symbol == first; ++i)
        if ((reached[borders[i].to] += borders[i].change) == 0) reached.erase(borders[i].to);
      if (reached.empty()) continue;
      if (!budget_.spend(reached.size())) return false;
      std::vector<Places::Place> to;
      for (const auto& [place, _] : reached) to.push_back(place);
      append_edge(node.edges, {first, borders[i].symbol - 1, closed(std::move(to))});
    }
    return true;
  }

  State closed(std::vector<Places::Place> some) {
    const auto known = closed_.find(some);
    if (known != closed_.end()) return known->second;
    std::vector<Places::Place> all = some;
    places_.close(all);
    budget_.spend(all.size());
    const State state = id(std::move(all));
    closed_.emplace(std::move(some), state);
    return state;
  }

  State id(std::vector<Places::Place> some) {
    const auto [it, fresh] = ids_.emplace(std::move(some), static_cast<State>(subsets_.size()));
    if (fresh) subsets_.push_back(&it->first);
    return it->second;
  }

  Places& places_;
  const Places::Place end_;
  AutomatonBudget& budget_;
  std::map<std::vector<Places::Place>, State> ids_, closed_;
  std::vector<const std::vector<Places::Place>*> subsets_;  ///< of ids_
};

/// Spells the characters of an automaton.
class Spelling {
 public:
  Spelling(const Automaton& texts, bool json_string, AutomatonBudget& budget)
      : texts_(texts), json_string_(json_string), budget_(budget), nodes_(at(texts.size())) {}

  std::optional<Automaton> automaton() {
    for (State state = 0; state < texts_.size(); ++state) {
      pieces_.clear();
      for (const Edge& edge : texts_.edges(state)) add(edge);
      // Pieces that begin alike follow each other.
      std::ranges::sort(pieces_);
      std::vector<Edge> edges;
      if (!spell(pieces_, 0, edges)) return std::nullopt;
      nodes_[at(state)] = {std::move(edges), texts_.accepting(state)};
    }
    return Automaton(nodes_);
  }

 private:
  using Piece = std::pair<BytePiece, State>;

  void add(const Edge& edge) {
    const auto plain = [&](Symbol first, Symbol last) {
      if (first <= last)
        pieces_.push_back(
            {{{static_cast<unsigned char>(first), static_cast<unsigned char>(last)}}, edge.to});
    };
    const Symbol last_ascii = std::min<Symbol>(edge.last, 0x7f);
    Symbol from = edge.first;
    for (Symbol c = edge.first; json_string_ && c <= last_ascii; ++c) {
      if (!needs_json_escape(c)) continue;
      if (c > from) plain(from, c - 1);
      from = c + 1;
      BytePiece escape;
      for (const char byte : json_escape(c))
        escape.emplace_back(static_cast<unsigned char>(byte), static_cast<unsigned char>(byte));
      pieces_.emplace_back(std::move(escape), edge.to);
    }
    plain(from, last_ascii);
    if (edge.last < 0x80) return;
    std::vector<BytePiece> higher;
    add_utf8(std::max<Symbol>(edge.first, 0x80), edge.last, higher);
    for (BytePiece& piece : higher) pieces_.emplace_back(std::move(piece), edge.to);
  }

  /// Makes the edges of pieces that are alike before `place`.
  bool spell(std::span<const Piece> pieces, std::size_t place, std::vector<Edge>& edges) {
    if (!budget_.spend(pieces.size())) return false;
    for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
      const auto& [bytes, to] = pieces[begin];
      const auto [first, last] = bytes[place];
      while (end < pieces.size() && pieces[end].first[place] == bytes[place]) ++end;
      State next = to;
      if (bytes.size() > place + 1) {
        std::vector<Edge> after;
        if (!spell(pieces.subspan(begin, end - begin), place + 1, after)) return false;
        next = within(std::move(after));
      }
      append_edge(edges, {first, last, next});
    }
    return true;
  }

  /// Returns the state within a character that goes on so.
  State within(std::vector<Edge> edges) {
    const auto [it, fresh] = ids_.emplace(edges, static_cast<State>(nodes_.size()));
    if (fresh) nodes_.push_back({std::move(edges), false});
    return it->second;
  }

  const Automaton& texts_;
  const bool json_string_;
  AutomatonBudget& budget_;
  std::vector<Node> nodes_;  ///< those of `texts_` first
  std::vector<Piece> pieces_;
  std::map<std::vector<Edge>, State> ids_;
};

}  // namespace

std::optional<Automaton> pattern_automaton(const PatternNode& tree, AutomatonBudget& budget) {
  Places places(budget);
  Places::Place start = 0, end = 0;
  if (!places.make(start) || !places.add(tree, start, end)) return std::nullopt;
  return Subsets(places, end, budget).automaton({start});
}

std::optional<Automaton> regex_automaton(const RegexTree& regex, AutomatonBudget& budget) {
  auto texts = pattern_automaton(regex.texts, budget);
  for (const RegexTree::Look& look : regex.looks) {
    if (!texts) return std::nullopt;
    const auto seen = pattern_automaton(look.texts, budget);
    if (!seen) return std::nullopt;
    texts = texts_of_both(*texts, look.wanted ? *seen : other_texts(*seen), budget);
  }
  return texts;
}

std::optional<Automaton> bytes_of(const Automaton& texts, bool json_string,
                                  AutomatonBudget& budget) {
  if (texts.empty()) return texts;
  return Spelling(texts, json_string, budget).automaton();
}

}  // namespace quire
