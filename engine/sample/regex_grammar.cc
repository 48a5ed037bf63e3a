#include "engine/sample/regex_grammar.h"

#include <algorithm>
#include <utility>

#include "engine/sample/pattern_automaton.h"
#include "engine/sample/pattern_tree.h"
#include "engine/sample/regex_tree.h"

namespace quire {
namespace {

using Kind = PatternNode::Kind;

/// Ways to go on in one place that parts may leave to a matcher, which drops those above its limit.
constexpr std::size_t kMostWays = 128;

bool is_text(const PatternNode& node) {
  if (node.kind == Kind::kSequence) return std::ranges::all_of(node.items, is_text);
  return node.kind == Kind::kSet && node.set.ranges().size() == 1 &&
         node.set.ranges()[0].first == node.set.ranges()[0].second;
}

/// In how many ways a text may begin, and whether it may be empty.
struct Beginning {
  std::size_t ways = 0;
  bool empty = false;
};

/// Returns how a text of the node may begin; `most` becomes the most ways there are in one place.
Beginning beginning(const PatternNode& node, std::size_t& most) {
  Beginning out;
  switch (node.kind) {
    case Kind::kSet:
      out.ways = node.set.ranges().size();
      break;
    case Kind::kRepeat:
      out = beginning(node.items[0], most);
      out.empty = out.empty || node.min == 0;
      break;
    case Kind::kChoice:
      // Texts share the parts of their beginnings.
      if (std::ranges::all_of(node.items, is_text)) return {1, false};
      for (const PatternNode& item : node.items) {
        const Beginning one = beginning(item, most);
        out.ways += one.ways;
        out.empty = out.empty || one.empty;
      }
      break;
    case Kind::kSequence:
    case Kind::kRule:
      out.empty = true;
      for (auto item = node.items.rbegin(); item != node.items.rend(); ++item) {
        const Beginning one = beginning(*item, most);
        // What follows an item that may be empty begins in its place, too.
        out = {one.ways + (one.empty ? out.ways : 0), out.empty && one.empty};
        most = std::max(most, out.ways);
      }
      break;
  }
  most = std::max(most, out.ways);
  return out;
}

}  // namespace

Result<Grammar::Part> regex_part(GrammarBuilder& builder, std::string_view regex, RegexUse use) {
  QUIRE_ASSIGN_OR_RETURN(const RegexTree tree, regex_tree(regex, use));
  const PatternRules none;
  // Parts spell long texts with fewer tokens than automata know of (ShortestEnd).
  std::size_t most_ways = 0;
  (void)beginning(tree.texts, most_ways);
  if (tree.looks.empty() && most_ways <= kMostWays)
    return PatternParts(builder, none, use.json_string).part(tree.texts);
  const auto automaton = regex_automaton(tree, builder.budget());
  auto bytes = automaton ? bytes_of(*automaton, use.json_string, builder.budget()) : std::nullopt;
  if (!bytes)
    return Status::invalid(
        "", tree.looks.empty()
                ? "the expression has too many alternatives in one place; write it as several"
                : "the expression takes too many states with its look-aheads; leave them out");
  if (bytes->empty()) return Status::invalid("", "no text matches the expression");
  return builder.automaton(std::move(*bytes));
}

Result<std::shared_ptr<const Grammar>> regex_grammar(std::string_view regex) {
  GrammarBuilder builder;
  QUIRE_ASSIGN_OR_RETURN(const Grammar::Part part, regex_part(builder, regex, {}));
  return builder.finish(part);
}

}  // namespace quire
