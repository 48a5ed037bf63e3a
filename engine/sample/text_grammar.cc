#include "engine/sample/text_grammar.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/sample/pattern_tree.h"

namespace quire {
namespace {

using Kind = PatternNode::Kind;

constexpr int kMaxDepth = 100;
constexpr std::int32_t kMaxCount = 1 << 12;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<PatternRules> parse() {
    PatternRules rules;
    skip(true);
    while (more()) {
      const std::string name = take_name();
      if (name.empty()) return wrong("the name of a rule is missing");
      skip(false);
      if (!take("::=")) return wrong("'::=' is missing behind '" + name + "'");
      skip(true);
      QUIRE_ASSIGN_OR_RETURN(PatternNode node, alternatives(0));
      if (!rules.emplace(name, std::move(node)).second)
        return wrong("the rule '" + name + "' is there twice, the second time");
      if (more() && peek() != '\n' && peek() != '\r') return wrong("a line break is missing");
      skip(true);
    }
    if (!rules.contains("root")) return Status::invalid("", "there is no rule 'root'");
    return rules;
  }

 private:
  Status wrong(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(),
                                     text_.begin() +
                                         static_cast<std::ptrdiff_t>(std::min(at_, text_.size())),
                                     '\n');
    return Status::invalid("", what + " (line " + std::to_string(line) + " of the grammar)");
  }
  bool more() const { return at_ < text_.size(); }
  char peek() const { return text_[at_]; }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void skip(bool line_breaks) {
    for (; more(); ++at_) {
      if (peek() == '#') {
        while (more() && peek() != '\n') ++at_;
        if (!more()) return;
      }
      const bool space = peek() == ' ' || peek() == '\t';
      const bool line_break = peek() == '\n' || peek() == '\r';
      if (!space && !(line_breaks && line_break)) return;
    }
  }
  std::string take_name() {
    const std::size_t from = at_;
    while (more() && is_name(peek())) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  /// Moves to a '|' that begins one of the next lines; else nowhere.
  void skip_to_alternative() {
    const std::size_t here = at_;
    skip(true);
    if (!more() || peek() != '|') at_ = here;
  }

  Result<PatternNode> alternatives(int depth) {
    if (depth > kMaxDepth) return wrong("groups nest too deep");
    PatternNode choice;
    choice.kind = Kind::kChoice;
    for (;;) {
      QUIRE_ASSIGN_OR_RETURN(PatternNode one, sequence(depth));
      choice.items.push_back(std::move(one));
      skip_to_alternative();
      if (!take("|")) break;
      skip(true);
    }
    if (choice.items.size() == 1) return std::move(choice.items[0]);
    return choice;
  }

  Result<PatternNode> sequence(int depth) {
    PatternNode out;
    for (;;) {
      skip(depth > 0);
      if (!more() || peek() == '|' || peek() == ')' || peek() == '\n' || peek() == '\r') break;
      QUIRE_ASSIGN_OR_RETURN(PatternNode item, quantified(depth));
      out.items.push_back(std::move(item));
    }
    return out;
  }

  Result<std::int32_t> number() {
    std::int32_t n = 0;
    const std::size_t from = at_;
    while (more() && peek() >= '0' && peek() <= '9') {
      n = n * 10 + (text_[at_++] - '0');
      if (n > kMaxCount) return wrong("a count is above " + std::to_string(kMaxCount));
    }
    if (at_ == from) return wrong("a count is missing");
    return n;
  }

  Result<PatternNode> quantified(int depth) {
    QUIRE_ASSIGN_OR_RETURN(PatternNode item, atom(depth));
    for (;;) {
      PatternNode repeat;
      repeat.kind = Kind::kRepeat;
      repeat.max = Grammar::kUnbounded;
      if (take("*")) {
      } else if (take("+")) {
        repeat.min = 1;
      } else if (take("?")) {
        repeat.max = 1;
      } else if (take("{")) {
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
      if (++quantifiers_ > 10'000) return wrong("there are too many quantifiers");
      repeat.items.push_back(std::move(item));
      item = std::move(repeat);
    }
  }

  Result<PatternNode> atom(int depth) {
    if (take("\"")) return literal();
    if (take("[")) return char_class();
    if (take("(")) {
      QUIRE_ASSIGN_OR_RETURN(PatternNode group, alternatives(depth + 1));
      skip(true);
      if (!take(")")) return wrong("')' is missing");
      return group;
    }
    if (take(".")) return set_node(CodePoints().inverted());
    PatternNode n;
    n.kind = Kind::kRule;
    n.rule = take_name();
    if (n.rule.empty()) return wrong("a literal, a class, a group or a rule's name is missing");
    return n;
  }

  static PatternNode set_node(CodePoints set) {
    PatternNode n;
    n.kind = Kind::kSet;
    n.set = std::move(set);
    return n;
  }

  Result<std::uint32_t> character() {
    if (!take("\\")) return next_code_point(text_, at_);
    if (!more()) return wrong("'\\' ends the grammar");
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return static_cast<std::uint32_t>('\n');
      case 'r':
        return static_cast<std::uint32_t>('\r');
      case 't':
        return static_cast<std::uint32_t>('\t');
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return static_cast<std::uint32_t>(c);
      default:
        return wrong(std::string("'\\") + c + "' is no escape");
    }
  }

  Result<std::uint32_t> hex(int digits) {
    std::uint32_t c = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
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

  Result<PatternNode> literal() {
    PatternNode out;
    while (more() && peek() != '"') {
      if (peek() == '\n') return wrong("'\"' is missing");
      QUIRE_ASSIGN_OR_RETURN(const std::uint32_t c, character());
      CodePoints set;
      set.add(c, c);
      out.items.push_back(set_node(std::move(set)));
    }
    if (!take("\"")) return wrong("'\"' is missing");
    return out;
  }

  Result<PatternNode> char_class() {
    const bool negated = take("^");
    CodePoints set;
    while (more() && peek() != ']') {
      QUIRE_ASSIGN_OR_RETURN(const std::uint32_t from, character());
      std::uint32_t to = from;
      if (at_ + 1 < text_.size() && peek() == '-' && text_[at_ + 1] != ']') {
        ++at_;
        QUIRE_ASSIGN_OR_RETURN(to, character());
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
  std::size_t at_ = 0;
  int quantifiers_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> text_grammar(std::string_view text) {
  if (text.size() > kMaxGrammarBytes)
    return Status::invalid("", "the grammar has " + std::to_string(text.size()) +
                                   " bytes; at most " + std::to_string(kMaxGrammarBytes) +
                                   " are taken");
  QUIRE_ASSIGN_OR_RETURN(const PatternRules rules, Parser(text).parse());
  GrammarBuilder builder;
  PatternParts parts(builder, rules, false);
  QUIRE_ASSIGN_OR_RETURN(const Grammar::Part root, parts.part(rules.find("root")->second));
  return builder.finish(root);
}

}  // namespace quire
