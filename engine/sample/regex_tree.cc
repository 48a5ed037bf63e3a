#include "engine/sample/regex_tree.h"

#include <optional>
#include <string>
#include <utility>

namespace quire {
namespace {

using Kind = PatternNode::Kind;

constexpr std::int32_t kMaxCount = 1 << 12;
constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxLooks = 8;

PatternNode set_node(CodePoints set) {
  PatternNode n;
  n.kind = Kind::kSet;
  n.set = std::move(set);
  return n;
}

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

class Parser {
 public:
  Parser(std::string_view text, RegexUse use) : text_(text), use_(use) {}

  Result<RegexTree> parse() {
    QUIRE_ASSIGN_OR_RETURN(tree_.texts, alternatives(0));
    if (at_ < text_.size()) return wrong("')' without '('");
    if (!tree_.looks.empty() && several_) return missing("a look-ahead beside '|' outside groups");
    return std::move(tree_);
  }

 private:
  Status wrong(const std::string& what) const {
    return Status::invalid("", what + " at byte " + std::to_string(at_) + " of the expression");
  }
  Status missing(const std::string& what) const {
    return Status(Code::kUnimplemented,
                  what + " is not supported (byte " + std::to_string(at_) + " of the expression)");
  }
  bool more() const { return at_ < text_.size(); }
  char peek() const { return text_[at_]; }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
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
    PatternNode any;
    any.kind = Kind::kRepeat;
    any.max = Grammar::kUnbounded;
    any.items.push_back(set_node(none.inverted()));
    return any;
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

  Result<std::int32_t> number() {
    std::int32_t n = 0;
    const std::size_t from = at_;
    while (more() && peek() >= '0' && peek() <= '9') {
      n = n * 10 + (text_[at_++] - '0');
      if (n > kMaxCount)
        return wrong("counts may be at most " + std::to_string(kMaxCount) + "; a larger one is");
    }
    if (at_ == from) return wrong("a count is missing");
    return n;
  }

  Result<PatternNode> quantified(int depth) {
    QUIRE_ASSIGN_OR_RETURN(PatternNode item, atom(depth));
    if (!more()) return item;
    PatternNode repeat;
    repeat.kind = Kind::kRepeat;
    repeat.max = Grammar::kUnbounded;
    if (take("*")) {
    } else if (take("+")) {
      repeat.min = 1;
    } else if (take("?")) {
      repeat.max = 1;
    } else if (peek() == '{') {
      ++at_;
      QUIRE_ASSIGN_OR_RETURN(repeat.min, number());
      repeat.max = repeat.min;
      if (take(",")) {
        repeat.max = Grammar::kUnbounded;
        if (more() && peek() != '}') {
          QUIRE_ASSIGN_OR_RETURN(repeat.max, number());
        }
      }
      if (!take("}")) return wrong("'}' is missing");
      if (repeat.min > repeat.max) return wrong("a count is above its limit");
    } else {
      return item;
    }
    if (take("+")) return missing("a possessive quantifier");
    (void)take("?");
    if (more() && (peek() == '*' || peek() == '+' || peek() == '{'))
      return wrong("a quantifier follows a quantifier");
    repeat.items.push_back(std::move(item));
    return repeat;
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

  Result<std::uint32_t> hex(std::size_t digits) {
    std::uint32_t c = 0;
    for (std::size_t i = 0; i < digits; ++i, ++at_) {
      const char h = more() ? peek() : ' ';
      const int v = h >= '0' && h <= '9'   ? h - '0'
                    : h >= 'a' && h <= 'f' ? h - 'a' + 10
                    : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                           : -1;
      if (v < 0) return wrong("a hexadecimal digit is missing");
      c = c * 16 + static_cast<std::uint32_t>(v);
    }
    if (c > CodePoints::kLast || (c >= 0xd800 && c <= 0xdfff))
      return wrong("an escape is no character");
    return c;
  }

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

  const std::string_view text_;
  const RegexUse use_;
  std::size_t at_ = 0;
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
