#include "engine/sample/text_grammar.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/sample/automata/pattern_text.h"
#include "engine/sample/pattern_tree.h"

namespace quire {
namespace {

using Kind = PatternNode::Kind;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Parser final : private PatternText {
 public:
  explicit Parser(std::string_view text) : PatternText(text) {}

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
  Status wrong(const std::string& what) const override {
    const auto line = 1 + std::count(text_.begin(),
                                     text_.begin() +
                                         static_cast<std::ptrdiff_t>(std::min(at_, text_.size())),
                                     '\n');
    return Status::invalid("", what + " (line " + std::to_string(line) + " of the grammar)");
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

  Result<PatternNode> quantified(int depth) {
    QUIRE_ASSIGN_OR_RETURN(PatternNode item, atom(depth));
    for (;;) {
      QUIRE_ASSIGN_OR_RETURN(const auto often, times());
      if (!often) return item;
      if (++quantifiers_ > 10'000) return wrong("there are too many quantifiers");
      item = repeat_node(std::move(item), often->min, often->max);
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
