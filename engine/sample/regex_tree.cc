#include "engine/sample/regex_tree.h"

#include <optional>
#include <string>
#include <utility>

#include "engine/sample/automata/pattern_text.h"

namespace quire {
namespace {

using Kind = PatternNode::Kind;

constexpr std::size_t kMaxLooks = 8;

/// Returns the characters of \d, \w or \s; nothing: it is no such letter.
std::optional<CodePoints> shorthand(char letter) {
  CodePoints set;
  switch (letter) {
    case 'w':
    case 'W':
      set.add('a', 'z');
      set.add('A', 'Z');
      set.add('_', '_');
      [[fallthrough]];
    case 'd':
    case 'D':
      set.add('0', '9');
      break;
    case 's':
    case 'S':
      set.add('\t', '\r');
      set.add(' ', ' ');
      break;
    default:
      return std::nullopt;
  }
  return letter < 'a' ? set.inverted() : set;
}

class Parser final : private PatternText {
 public:
  Parser(std::string_view text, RegexUse use) : PatternText(text), use_(use) {}

  Result<RegexTree> parse() {
    QUIRE_ASSIGN_OR_RETURN(tree_.texts, alternatives(0));
    if (at_ < text_.size()) return wrong("')' without '('");
    if (!tree_.looks.empty() && several_) return missing("a look-ahead beside '|' outside groups");
    return std::move(tree_);
  }

 private:
  Status wrong(const std::string& what) const override {
    return Status::invalid("", what + " at byte " + std::to_string(at_) + " of the expression");
  }
  Status missing(const std::string& what) const {
    return Status(Code::kUnimplemented,
                  what + " is not supported (byte " + std::to_string(at_) + " of the expression)");
  }

  Result<PatternNode> alternatives(int depth) {
    if (depth > kMaxDepth) return wrong("groups nest too deep");
    PatternNode choice;
    choice.kind = Kind::kChoice;
    do {
      QUIRE_ASSIGN_OR_RETURN(PatternNode one, sequence(depth));
      choice.items.push_back(std::move(one));
    } while (take("|"));
    if (choice.items.size() == 1) return std::move(choice.items[0]);
    if (depth == 0 && !in_look_) several_ = true;
    return choice;
  }

  /// Reads a look-ahead at the beginning of the expression, which has been read up to '=' or '!'.
  Status look(bool wanted) {
    if (tree_.looks.size() == kMaxLooks) return missing("more look-aheads than 8");
    in_look_ = true;
    auto texts = alternatives(0);
    in_look_ = false;
    if (!texts.ok()) return texts.status();
    if (!take(")")) return wrong("')' is missing");
    if (more() && std::string_view("*+?{").find(peek()) != std::string_view::npos)
      return missing("a quantifier of a look-ahead");
    tree_.looks.push_back({std::move(*texts), wanted});
    return {};
  }

  static PatternNode anything() {
    CodePoints none;
    return repeat_node(set_node(none.inverted()), 0, Grammar::kUnbounded);
  }

  Result<PatternNode> sequence(int depth) {
    PatternNode out;
    bool begins = false, ends = false;
    while (more() && peek() != '|' && peek() != ')') {
      if (ends) return missing("'$' before the end of an alternative");
      if (peek() == '^') {
        if (!out.items.empty() || depth > 0) return missing("'^' within the expression");
        begins = true;
        ++at_;
        continue;
      }
      if (peek() == '$') {
        if (depth > 0) return missing("'$' within a group");
        ends = true;
        ++at_;
        continue;
      }
      // Only here is it clear where in the text a look-ahead begins.
      const bool first = depth == 0 && out.items.empty() && (begins || !use_.anywhere) && !in_look_;
      if (first && (text_.substr(at_).starts_with("(?=") || text_.substr(at_).starts_with("(?!"))) {
        at_ += 3;
        QUIRE_RETURN_IF_ERROR(look(text_[at_ - 1] == '='));
        continue;
      }
      QUIRE_ASSIGN_OR_RETURN(PatternNode item, quantified(depth));
      out.items.push_back(std::move(item));
    }
    const bool anywhere = depth == 0 && (use_.anywhere || in_look_);
    if (anywhere && !begins && !in_look_) out.items.insert(out.items.begin(), anything());
    if (anywhere && !ends) out.items.push_back(anything());
    return out;
  }

  Result<PatternNode> quantified(int depth) {
    QUIRE_ASSIGN_OR_RETURN(PatternNode item, atom(depth));
    QUIRE_ASSIGN_OR_RETURN(const auto often, times());
    if (!often) return item;
    if (take("+")) return missing("a possessive quantifier");
    (void)take("?");
    if (more() && (peek() == '*' || peek() == '+' || peek() == '{'))
      return wrong("a quantifier follows a quantifier");
    return repeat_node(std::move(item), often->min, often->max);
  }

  Result<PatternNode> atom(int depth) {
    if (take("(")) {
      if (take("?")) {
        const bool named = take("P<") || (text_.substr(at_).starts_with("<") &&
                                          !text_.substr(at_).starts_with("<=") &&
                                          !text_.substr(at_).starts_with("<!") && take("<"));
        if (named) {
          const std::size_t end = text_.find('>', at_);
          if (end == std::string_view::npos) return wrong("'>' is missing");
          at_ = end + 1;
        } else if (take("=") || take("!")) {
          return missing("a look-ahead that is not the first after '^'");
        } else if (!take(":")) {
          return missing("'(?" + std::string(text_.substr(at_, 1)) + "'");
        }
      }
      QUIRE_ASSIGN_OR_RETURN(PatternNode group, alternatives(depth + 1));
      if (!take(")")) return wrong("')' is missing");
      return group;
    }
    if (take("[")) return char_class();
    if (take(".")) {
      CodePoints breaks;
      breaks.add('\n', '\n');
      breaks.add('\r', '\r');
      breaks.add(0x2028, 0x2029);
      return set_node(breaks.inverted());
    }
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      return wrong("a quantifier has nothing before it");
    CodePoints set;
    if (peek() == '\\') {
      ++at_;
      if (!more()) return wrong("'\\' ends the expression");
      if (auto known = shorthand(peek())) {
        ++at_;
        return set_node(std::move(*known));
      }
      QUIRE_ASSIGN_OR_RETURN(const std::uint32_t c, escaped(false));
      set.add(c, c);
      return set_node(std::move(set));
    }
    const std::uint32_t c = code_point();
    set.add(c, c);
    return set_node(std::move(set));
  }

  std::uint32_t code_point() { return next_code_point(text_, at_); }

  /// Reads what follows a backslash.
  Result<std::uint32_t> escaped(bool in_class) {
    const char c = peek();
    constexpr std::string_view kLetters = "tnrfv0", kMeant("\t\n\r\f\v\0", 6);
    if (const auto i = kLetters.find(c); i != std::string_view::npos) {
      ++at_;
      return static_cast<std::uint32_t>(kMeant[i]);
    }
    if (take("x")) return hex(2);
    if (take("u{")) {
      const std::size_t end = text_.find('}', at_);
      if (end == std::string_view::npos || end == at_ || end - at_ > 6)
        return wrong("'}' is missing");
      QUIRE_ASSIGN_OR_RETURN(const std::uint32_t code, hex(end - at_));
      ++at_;
      return code;
    }
    if (take("u")) return hex(4);
    if (in_class && c == 'b') {
      ++at_;
      return static_cast<std::uint32_t>('\b');
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
      return missing(std::string("'\\") + c + "'");
    return code_point();
  }

  Result<PatternNode> char_class() {
    const bool negated = take("^");
    CodePoints set;
    bool first = true;
    for (; more() && (peek() != ']' || first); first = false) {
      if (peek() == ']' && first) break;
      if (peek() == '[' && text_.substr(at_).starts_with("[:"))
        return missing("a named character class");
      std::uint32_t from = 0;
      if (peek() == '\\') {
        ++at_;
        if (!more()) break;
        if (const auto known = shorthand(peek())) {
          ++at_;
          set.add(*known);
          continue;
        }
        QUIRE_ASSIGN_OR_RETURN(from, escaped(true));
      } else {
        from = code_point();
      }
      std::uint32_t to = from;
      if (at_ + 1 < text_.size() && peek() == '-' && text_[at_ + 1] != ']') {
        ++at_;
        if (peek() == '\\') {
          ++at_;
          if (!more()) break;
          if (shorthand(peek())) return wrong("a range ends with several characters");
          QUIRE_ASSIGN_OR_RETURN(to, escaped(true));
        } else {
          to = code_point();
        }
        if (to < from) return wrong("a range ends before it begins");
      }
      set.add(from, to);
    }
    if (!take("]")) return wrong("']' is missing");
    if (negated) set = set.inverted();
    if (set.empty()) return wrong("a character class is empty");
    return set_node(std::move(set));
  }

  const RegexUse use_;
  RegexTree tree_;
  bool in_look_ = false, several_ = false;
};

}  // namespace

Result<RegexTree> regex_tree(std::string_view regex, RegexUse use) {
  if (regex.size() > kMaxRegexBytes)
    return Status::invalid("", "the expression has " + std::to_string(regex.size()) +
                                   " bytes; at most " + std::to_string(kMaxRegexBytes) +
                                   " are taken");
  return Parser(regex, use).parse();
}

}  // namespace quire
