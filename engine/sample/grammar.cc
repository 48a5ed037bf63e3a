#include "engine/sample/grammar.h"

#include <algorithm>
#include <utility>

#include "base/index.h"

namespace quire {

using Kind = Grammar::Kind;

namespace {

/// Texts of a choice that are parts of their own; a matcher follows some more at once.
constexpr std::size_t kMostApart = 64;
/// How deep parts of common beginnings stand in each other; what reads grammars follows them.
constexpr int kMostShared = 200;

}  // namespace

GrammarBuilder::Part GrammarBuilder::add(Grammar::Node node) {
  if (node.automaton) num_states_ += to_size(node.automaton->size());
  nodes_.push_back(std::move(node));
  return static_cast<Part>(nodes_.size() - 1);
}

GrammarBuilder::Part GrammarBuilder::bytes(const ByteSet& set) {
  Grammar::Node n;
  n.kind = Kind::kBytes;
  n.bytes = set;
  return add(std::move(n));
}

GrammarBuilder::Part GrammarBuilder::range(unsigned char first, unsigned char last) {
  ByteSet set;
  for (unsigned b = first; b <= last; ++b) set.set(b);
  return bytes(set);
}

GrammarBuilder::Part GrammarBuilder::literal(std::string text) {
  Grammar::Node n;
  n.kind = Kind::kLiteral;
  n.text = std::move(text);
  return add(std::move(n));
}

GrammarBuilder::Part GrammarBuilder::sequence(std::vector<Part> parts) {
  Grammar::Node n;
  n.kind = Kind::kSequence;
  n.parts = std::move(parts);
  return add(std::move(n));
}

GrammarBuilder::Part GrammarBuilder::choice(std::vector<Part> parts) {
  Grammar::Node n;
  n.kind = Kind::kChoice;
  n.parts = std::move(parts);
  return add(std::move(n));
}

GrammarBuilder::Part GrammarBuilder::one_of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.size() > kMostApart) return endings(texts, 0, kMostShared);
  // Undivided, a text is spelled by the fewest tokens (ShortestEnd).
  std::vector<Part> parts;
  for (std::string& text : texts) parts.push_back(literal(std::move(text)));
  return choice(std::move(parts));
}

GrammarBuilder::Part GrammarBuilder::endings(std::span<const std::string> texts, std::size_t from,
                                             int levels) {
  const auto rest_of = [&](const std::string& text) {
    return text.size() == from ? sequence({}) : literal(text.substr(from));
  };
  const std::string &first = texts.front(), &last = texts.back();
  if (texts.size() == 1) return rest_of(first);
  if (levels == 0) {
    std::vector<Part> apart;
    for (const std::string& text : texts) apart.push_back(rest_of(text));
    return choice(std::move(apart));
  }
  std::size_t alike = from;
  while (alike < first.size() && first[alike] == last[alike]) ++alike;
  std::vector<Part> ways;
  std::size_t begin = 0;
  if (first.size() == alike) {
    ways.push_back(sequence({}));
    ++begin;
  }
  while (begin < texts.size()) {
    std::size_t end = begin + 1;
    while (end < texts.size() && texts[end][alike] == texts[begin][alike]) ++end;
    ways.push_back(endings(texts.subspan(begin, end - begin), alike, levels - 1));
    begin = end;
  }
  const Part rest = choice(std::move(ways));
  if (alike == from) return rest;
  return sequence({literal(first.substr(from, alike - from)), rest});
}

GrammarBuilder::Part GrammarBuilder::repeat(Part part, std::int32_t min, std::int32_t max) {
  Grammar::Node n;
  n.kind = Kind::kRepeat;
  n.parts = {part};
  n.min = min;
  n.max = max;
  return add(std::move(n));
}

GrammarBuilder::Part GrammarBuilder::automaton(Automaton automaton) {
  Grammar::Node n;
  n.kind = Kind::kAutomaton;
  n.automaton = std::make_shared<const Automaton>(std::move(automaton));
  return add(std::move(n));
}

GrammarBuilder::Part GrammarBuilder::forward() { return choice({}); }

void GrammarBuilder::define(Part forward, Part meaning) { nodes_[at(forward)].parts = {meaning}; }

GrammarBuilder::Part GrammarBuilder::include(const Grammar& grammar) {
  const auto shift = static_cast<Part>(nodes_.size());
  for (Grammar::Node n : grammar.nodes_) {
    for (Part& p : n.parts) p += shift;
    add(std::move(n));
  }
  return grammar.root_ + shift;
}

Result<std::shared_ptr<const Grammar>> GrammarBuilder::finish(Part root) {
  // Parts that match at least one finite text, computed as the least fixed point.
  std::vector<bool> finite(nodes_.size(), false);
  const auto known = [&](Part p) { return static_cast<bool>(finite[at(p)]); };
  const auto matches_something = [&](const Grammar::Node& n) {
    switch (n.kind) {
      case Kind::kBytes:
        return n.bytes.any();
      case Kind::kLiteral:
        return true;
      case Kind::kSequence:
        return std::all_of(n.parts.begin(), n.parts.end(), known);
      case Kind::kChoice:
        return std::any_of(n.parts.begin(), n.parts.end(), known);
      case Kind::kRepeat:
        return n.min == 0 || known(n.parts[0]);
      case Kind::kAutomaton:
        return !n.automaton->empty();
    }
    return false;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (finite[i] || !matches_something(nodes_[i])) continue;
      finite[i] = changed = true;
    }
  }
  if (!known(root)) return Status(Code::kInvalidArgument, "no finite text has this form");
  for (Grammar::Node& n : nodes_) {
    if (n.kind == Kind::kChoice) std::erase_if(n.parts, [&](Part p) { return !known(p); });
    if (n.kind == Kind::kRepeat && !known(n.parts[0])) n.max = 0;
  }
  auto grammar = std::make_shared<Grammar>();
  grammar->nodes_ = std::move(nodes_);
  grammar->root_ = root;
  nodes_.clear();
  num_states_ = 0;
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

}  // namespace quire
