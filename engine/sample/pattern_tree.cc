#include "engine/sample/pattern_tree.h"

#include <algorithm>

#include "base/utf8.h"

namespace quire {

using Part = Grammar::Part;
using Kind = PatternNode::Kind;

namespace {

constexpr std::size_t kMaxParts = 200'000;
constexpr int kMaxDepth = 200;

Status too_large() { return Status::invalid("", "the expression is too large"); }
Status too_deep() {
  return Status::invalid(
      "", "the expression nests deeper than " + std::to_string(kMaxDepth) + " levels");
}

}  // namespace

std::uint32_t next_code_point(std::string_view text, std::size_t& at) {
  char32_t c = 0xfffd;
  const int length = tokenizer_internal::decode_utf8(text.substr(at), c);
  at += length > 0 ? static_cast<std::size_t>(length) : 1;
  return length > 0 ? static_cast<std::uint32_t>(c) : 0xfffd;
}

PatternNode set_node(CodePoints set) {
  PatternNode n;
  n.kind = Kind::kSet;
  n.set = std::move(set);
  return n;
}

PatternNode repeat_node(PatternNode item, std::int32_t min, std::int32_t max) {
  PatternNode n;
  n.kind = Kind::kRepeat;
  n.min = min;
  n.max = max;
  n.items.push_back(std::move(item));
  return n;
}

void CodePoints::add(std::uint32_t first, std::uint32_t last) {
  // Ranges from `begin` to `end` touch the new one and become part of it.
  const auto begin = std::ranges::partition_point(
      ranges_, [first](const auto& r) { return r.second + 1 < first; });
  const auto end = std::partition_point(begin, ranges_.end(),
                                        [last](const auto& r) { return r.first <= last + 1; });
  if (begin == end) {
    ranges_.emplace(begin, first, last);
    return;
  }
  *begin = {std::min(first, begin->first), std::max(last, std::prev(end)->second)};
  ranges_.erase(begin + 1, end);
}

void CodePoints::add(const CodePoints& other) {
  for (const auto& [first, last] : other.ranges_) add(first, last);
}

CodePoints CodePoints::inverted() const {
  CodePoints all = *this;
  all.add(0xd800, 0xdfff);
  CodePoints out;
  std::uint32_t next = 0;
  for (const auto& [first, last] : all.ranges_) {
    if (first > next) out.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) out.ranges_.emplace_back(next, kLast);
  return out;
}

Part PatternParts::bytes_from(std::span<const BytePiece> pieces, std::size_t place) {
  std::vector<Part> ways;
  ByteSet last;
  for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
    const auto [low, high] = pieces[begin][place];
    while (end < pieces.size() && pieces[end][place] == pieces[begin][place]) ++end;
    if (place + 1 == pieces[begin].size()) {
      for (unsigned b = low; b <= high; ++b) last.set(b);
      continue;
    }
    ways.push_back(b_.sequence(
        {b_.range(low, high), bytes_from(pieces.subspan(begin, end - begin), place + 1)}));
  }
  if (last.any()) ways.push_back(b_.bytes(last));
  return ways.size() == 1 ? ways[0] : b_.choice(std::move(ways));
}

Part PatternParts::character(const CodePoints& set) {
  const auto known = sets_.find(set.ranges());
  if (known != sets_.end()) return known->second;
  std::vector<Part> parts;
  ByteSet ascii;
  std::vector<BytePiece> pieces;
  for (const auto& [first, last] : set.ranges()) {
    for (std::uint32_t c = first; c <= std::min<std::uint32_t>(last, 0x7f); ++c) {
      if (json_string_ && needs_json_escape(c))
        parts.push_back(b_.literal(json_escape(c)));
      else
        ascii.set(c);
    }
    if (last >= 0x80) add_utf8(std::max<std::uint32_t>(first, 0x80), last, pieces);
  }
  if (!pieces.empty()) parts.push_back(bytes_from(pieces, 0));
  if (ascii.any()) parts.push_back(b_.bytes(ascii));
  const Part made = parts.size() == 1 ? parts[0] : b_.choice(std::move(parts));
  sets_.emplace(set.ranges(), made);
  return made;
}

bool PatternParts::spell(const PatternNode& node, std::string& out) const {
  if (node.kind == Kind::kSequence)
    return std::ranges::all_of(node.items,
                               [&](const PatternNode& item) { return spell(item, out); });
  if (node.kind != Kind::kSet || node.set.ranges().size() != 1) return false;
  const auto [first, last] = node.set.ranges().front();
  if (first != last) return false;
  if (json_string_ && needs_json_escape(first))
    out += json_escape(first);
  else
    tokenizer_internal::append_utf8(first, out);
  return true;
}

std::optional<std::vector<std::string>> PatternParts::texts_of(const PatternNode& choice) const {
  std::vector<std::string> texts;
  for (const PatternNode& item : choice.items)
    if (!spell(item, texts.emplace_back()) || texts.back().empty()) return std::nullopt;
  return texts;
}

bool PatternParts::may_be_empty(const PatternNode& node) const {
  switch (node.kind) {
    case Kind::kSet:
      return false;
    case Kind::kSequence:
      return std::all_of(node.items.begin(), node.items.end(),
                         [this](const PatternNode& n) { return may_be_empty(n); });
    case Kind::kChoice:
      return std::any_of(node.items.begin(), node.items.end(),
                         [this](const PatternNode& n) { return may_be_empty(n); });
    case Kind::kRepeat:
      return node.min == 0 || may_be_empty(node.items[0]);
    case Kind::kRule: {
      const auto known = empty_rules_.find(node.rule);
      return known != empty_rules_.end() && known->second;
    }
  }
  return false;
}

Status PatternParts::check_first(const PatternNode& node, std::set<std::string, std::less<>>& open,
                                 std::set<std::string, std::less<>>& done, int depth) const {
  if (depth > kMaxDepth) return too_deep();
  if (node.kind == Kind::kRule) {
    const auto found = rules_.find(node.rule);
    if (found == rules_.end())
      return Status::invalid(node.rule, "there is no rule '" + node.rule + "'");
    if (open.contains(node.rule))
      return Status(Code::kUnimplemented,
                    "the rule '" + node.rule +
                        "' contains itself before its first character (left recursion); write it "
                        "as a repetition",
                    node.rule);
    if (done.contains(node.rule)) return {};
    open.insert(node.rule);
    QUIRE_RETURN_IF_ERROR(check_first(found->second, open, done, depth + 1));
    open.erase(node.rule);
    done.insert(node.rule);
    return {};
  }
  for (const PatternNode& item : node.items) {
    QUIRE_RETURN_IF_ERROR(check_first(item, open, done, depth + 1));
    if (node.kind == Kind::kSequence && !may_be_empty(item)) break;
  }
  return {};
}

Status PatternParts::check_rules() {
  if (checked_) return {};
  checked_ = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [name, node] : rules_) {
      if (empty_rules_[name] || !may_be_empty(node)) continue;
      empty_rules_[name] = changed = true;
    }
  }
  std::set<std::string, std::less<>> done;
  for (const auto& [name, node] : rules_) {
    PatternNode all;
    all.kind = Kind::kRule;
    all.rule = name;
    std::set<std::string, std::less<>> open;
    QUIRE_RETURN_IF_ERROR(check_first(all, open, done, 0));
  }
  return {};
}

Result<Part> PatternParts::part(const PatternNode& node) {
  QUIRE_RETURN_IF_ERROR(check_rules());
  return any(node, 0);
}

Result<Part> PatternParts::rule(const std::string& name, bool may_be_empty, int depth) {
  const auto key = std::pair(name, may_be_empty);
  if (const auto known = made_.find(key); known != made_.end()) return known->second;
  const auto found = rules_.find(name);
  if (found == rules_.end()) return Status::invalid(name, "there is no rule '" + name + "'");
  const Part forward = b_.forward();
  made_.emplace(key, forward);
  QUIRE_ASSIGN_OR_RETURN(const Part meaning, may_be_empty ? any(found->second, depth + 1)
                                                          : not_empty(found->second, depth + 1));
  b_.define(forward, meaning);
  return forward;
}

Result<Part> PatternParts::any(const PatternNode& node, int depth) {
  if (b_.size() > kMaxParts) return too_large();
  if (depth > kMaxDepth) return too_deep();
  switch (node.kind) {
    case Kind::kSet:
      return character(node.set);
    case Kind::kRule:
      return rule(node.rule, true, depth);
    case Kind::kSequence:
    case Kind::kChoice: {
      if (node.kind == Kind::kChoice)
        if (auto texts = texts_of(node)) return b_.one_of(std::move(*texts));
      std::vector<Part> parts;
      for (const PatternNode& item : node.items) {
        QUIRE_ASSIGN_OR_RETURN(const Part part, any(item, depth + 1));
        parts.push_back(part);
      }
      return node.kind == Kind::kSequence ? b_.sequence(std::move(parts))
                                          : b_.choice(std::move(parts));
    }
    case Kind::kRepeat: {
      const PatternNode& item = node.items[0];
      const bool empty = may_be_empty(item);
      QUIRE_ASSIGN_OR_RETURN(const Part part,
                             empty ? not_empty(item, depth + 1) : any(item, depth + 1));
      return b_.repeat(part, empty ? 0 : node.min, node.max);
    }
  }
  return b_.sequence({});
}

Result<Part> PatternParts::not_empty(const PatternNode& node, int depth) {
  if (b_.size() > kMaxParts) return too_large();
  if (depth > kMaxDepth) return too_deep();
  if (!may_be_empty(node)) return any(node, depth + 1);
  switch (node.kind) {
    case Kind::kSet:
      break;
    case Kind::kRule:
      return rule(node.rule, false, depth);
    case Kind::kChoice: {
      std::vector<Part> parts;
      for (const PatternNode& item : node.items) {
        QUIRE_ASSIGN_OR_RETURN(const Part part, not_empty(item, depth + 1));
        parts.push_back(part);
      }
      return b_.choice(std::move(parts));
    }
    case Kind::kSequence: {
      // All items may be empty: the first that is not decides.
      std::vector<Part> ways;
      for (std::size_t i = 0; i < node.items.size(); ++i) {
        std::vector<Part> parts;
        QUIRE_ASSIGN_OR_RETURN(const Part first, not_empty(node.items[i], depth + 1));
        parts.push_back(first);
        for (std::size_t j = i + 1; j < node.items.size(); ++j) {
          QUIRE_ASSIGN_OR_RETURN(const Part later, any(node.items[j], depth + 1));
          parts.push_back(later);
        }
        ways.push_back(b_.sequence(std::move(parts)));
      }
      return b_.choice(std::move(ways));
    }
    case Kind::kRepeat: {
      QUIRE_ASSIGN_OR_RETURN(const Part part, not_empty(node.items[0], depth + 1));
      if (node.max == 0) return b_.choice({});
      return b_.repeat(part, 1, node.max);
    }
  }
  return b_.choice({});
}

}  // namespace quire
