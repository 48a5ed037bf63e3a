#include "engine/sample/first_ways.h"

#include <algorithm>
#include <set>
#include <utility>

namespace quire {
namespace {

using Kind = Grammar::Kind;
using Part = Grammar::Part;

/// Numbers above are alike to all who ask.
constexpr std::int64_t kMany = 1 << 20;

}  // namespace

FirstWays::FirstWays(const Grammar& grammar) : starts_(to_size(grammar.num_parts())) {
  // A part is counted after those in it. `open`: parts on the way, and how many of theirs are done.
  std::vector<bool> entered(starts_.size(), false);
  for (Part root = 0; root < grammar.num_parts(); ++root) {
    if (entered[at(root)]) continue;
    std::vector<std::pair<Part, std::size_t>> open{{root, 0}};
    entered[at(root)] = true;
    while (!open.empty()) {
      auto& [part, done] = open.back();
      const Grammar::Node& node = grammar.node(part);
      if (done == node.parts.size()) {
        starts_[at(part)] = start(node);
        open.pop_back();
        continue;
      }
      const Part inner = node.parts[done++];
      if (entered[at(inner)]) continue;
      entered[at(inner)] = true;
      open.emplace_back(inner, 0);
    }
  }
}

FirstWays::Start FirstWays::start(const Grammar::Node& node) {
  Start out;
  const auto of_part = [this](Part part) { return starts_[at(part)]; };
  switch (node.kind) {
    case Kind::kBytes:
    case Kind::kLiteral:
      out.ways = 1;
      break;
    case Kind::kAutomaton:
      out = {1, !node.automaton->empty() && node.automaton->accepting(Automaton::kStart)};
      break;
    case Kind::kRepeat:
      out = of_part(node.parts[0]);
      out.empty = out.empty || node.min == 0;
      break;
    case Kind::kChoice:
      for (const Part part : std::set<Part>(node.parts.begin(), node.parts.end())) {
        out.ways += of_part(part).ways;
        out.empty = out.empty || of_part(part).empty;
      }
      break;
    case Kind::kSequence:
      out.empty = true;
      for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) {
        const Start one = of_part(*part);
        // What follows a part that may be empty begins in its place, too.
        out = {one.ways + (one.empty ? out.ways : 0), out.empty && one.empty};
        most_ = std::max(most_, out.ways);
      }
      break;
  }
  out.ways = std::min(out.ways, kMany);
  most_ = std::max(most_, out.ways);
  return out;
}

}  // namespace quire
