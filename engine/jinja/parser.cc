#include "engine/jinja/parser.h"

#include <algorithm>
#include <charconv>

#include "engine/jinja/filters.h"
#include "engine/jinja/lexer.h"
#include "engine/jinja/value_tests.h"

namespace quire::jinja {
namespace {

constexpr int kMaxDepth = 150;  ///< of expressions, and of statements
constexpr std::size_t kMaxNodes = 200'000;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Template run() {
    Template result;
    result.body = block({});
    return result;
  }

 private:
  using Kind = ExpressionKind;

  // ---- tokens

  const Token& here() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(std::string_view op) const {
    return here().kind == TokenKind::kOperator && here().text == op;
  }
  bool is_word(std::string_view word) const {
    return here().kind == TokenKind::kName && here().text == word;
  }
  bool skip(std::string_view op) {
    if (!is(op)) return false;
    next();
    return true;
  }
  bool skip_word(std::string_view word) {
    if (!is_word(word)) return false;
    next();
    return true;
  }
  [[noreturn]] void fail(const std::string& message) const {
    throw Error("line " + std::to_string(here().line) + ": " + message);
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    fail("expected " + std::string(wanted) + ", found '" + here().text.substr(0, 80) + "'");
  }
  void expect(std::string_view op) {
    if (!skip(op)) unexpected("'" + std::string(op) + "'");
  }
  std::string name() {
    if (here().kind != TokenKind::kName) unexpected("a name");
    return next().text;
  }
  void close_tag() {
    if (here().kind != TokenKind::kTagEnd) unexpected("'%}'");
    next();
  }

  // ---- expressions

  /// Counts how deep the parser itself recurses.
  class Deeper {
   public:
    explicit Deeper(Parser& parser) : depth_(parser.depth_) {
      if (++depth_ > kMaxDepth) {
        --depth_;
        throw LimitError("line " + std::to_string(parser.here().line) +
                         ": the template nests too deep");
      }
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  std::unique_ptr<Expression> node(Kind kind) {
    if (++nodes_ > kMaxNodes) throw LimitError("the template is too large");
    auto e = std::make_unique<Expression>();
    e->kind = kind;
    e->line = here().line;
    return e;
  }
  void adopt(Expression& parent, ExpressionPtr child) {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
    parent.args.push_back(std::move(child));
    check_depth(parent);
  }
  void check_depth(const Expression& e) const {
    if (e.depth > kMaxDepth)
      throw LimitError("line " + std::to_string(e.line) + ": an expression nests too deep");
  }
  template <class... Children>
  ExpressionPtr join(Kind kind, std::string name, Children... children) {
    auto e = node(kind);
    e->name = std::move(name);
    (adopt(*e, std::move(children)), ...);
    return e;
  }
  ExpressionPtr constant(Value value) {
    auto e = node(Kind::kConstant);
    e->constant = std::move(value);
    return e;
  }

  ExpressionPtr expression() {
    const Deeper deeper(*this);
    ExpressionPtr value = either();
    while (skip_word("if")) {
      ExpressionPtr condition = either(), other;
      if (skip_word("else")) other = expression();
      value = join(Kind::kCondition, "", std::move(condition), std::move(value), std::move(other));
    }
    return value;
  }

  ExpressionPtr either() {
    ExpressionPtr left = both();
    while (skip_word("or")) left = join(Kind::kOr, "", std::move(left), both());
    return left;
  }

  ExpressionPtr both() {
    ExpressionPtr left = negation();
    while (skip_word("and")) left = join(Kind::kAnd, "", std::move(left), negation());
    return left;
  }

  ExpressionPtr negation() {
    const Deeper deeper(*this);
    if (skip_word("not")) return join(Kind::kNot, "", negation());
    return comparison();
  }

  std::string comparison_operator() {
    for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (skip(op)) return std::string(op);
    }
    if (skip_word("in")) return "in";
    if (is_word("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      next();
      next();
      return "not in";
    }
    return {};
  }

  ExpressionPtr comparison() {
    ExpressionPtr left = sum();
    std::string op = comparison_operator();
    if (op.empty()) return left;
    auto e = node(Kind::kCompare);
    adopt(*e, std::move(left));
    while (!op.empty()) {
      e->operators.push_back(std::move(op));
      adopt(*e, sum());
      op = comparison_operator();
    }
    return e;
  }

  ExpressionPtr sum() {
    ExpressionPtr left = concatenation();
    while (is("+") || is("-")) {
      std::string op = next().text;
      left = join(Kind::kBinary, std::move(op), std::move(left), concatenation());
    }
    return left;
  }

  ExpressionPtr concatenation() {
    ExpressionPtr left = product();
    if (!is("~")) return left;
    auto e = node(Kind::kConcat);
    adopt(*e, std::move(left));
    while (skip("~")) adopt(*e, product());
    return e;
  }

  ExpressionPtr product() {
    ExpressionPtr left = power();
    while (is("*") || is("/") || is("//") || is("%")) {
      std::string op = next().text;
      left = join(Kind::kBinary, std::move(op), std::move(left), power());
    }
    return left;
  }

  ExpressionPtr power() {
    ExpressionPtr left = unary(true);
    while (skip("**")) left = join(Kind::kBinary, "**", std::move(left), unary(true));
    return left;
  }

  ExpressionPtr unary(bool with_filters) {
    const Deeper deeper(*this);
    ExpressionPtr value;
    if (skip("-")) {
      value = join(Kind::kNegate, "", unary(false));
    } else if (skip("+")) {
      value = join(Kind::kPositive, "", unary(false));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filters ? filters(std::move(value)) : std::move(value);
  }

  ExpressionPtr primary() {
    const Token token = here();
    switch (token.kind) {
      case TokenKind::kName:
        return word();
      case TokenKind::kString: {
        std::string text;
        while (here().kind == TokenKind::kString) text += next().text;
        return constant(Value(Text(std::move(text))));
      }
      case TokenKind::kInteger: {
        std::int64_t i = 0;
        const auto [end, ec] = std::from_chars(token.text.data(),
                                               token.text.data() + token.text.size(), i);
        if (ec != std::errc()) fail("the number " + token.text.substr(0, 40) + " is too large");
        next();
        return constant(Value(i));
      }
      case TokenKind::kFloat: {
        double d = 0;
        const auto [end, ec] = std::from_chars(token.text.data(),
                                               token.text.data() + token.text.size(), d);
        if (ec != std::errc()) fail("the number " + token.text.substr(0, 40) + " is out of range");
        next();
        return constant(Value(d));
      }
      default:
        break;
    }
    if (skip("(")) {
      if (skip(")")) return node(Kind::kTuple);
      ExpressionPtr value = tuple(/*until_bracket=*/true);
      expect(")");
      return value;
    }
    if (skip("[")) return sequence(Kind::kList, "]");
    if (skip("{")) return dictionary();
    unexpected("an expression");
  }

  ExpressionPtr word() {
    auto e = node(Kind::kName);
    e->name = next().text;
    if (e->name == "true" || e->name == "True") return constant(Value(true));
    if (e->name == "false" || e->name == "False") return constant(Value(false));
    if (e->name == "none" || e->name == "None") return constant(Value(None{}));
    return e;
  }

  /// One expression, or a tuple where a comma follows.
  ExpressionPtr tuple(bool until_bracket) {
    ExpressionPtr first = expression();
    if (!is(",")) return first;
    auto e = node(Kind::kTuple);
    adopt(*e, std::move(first));
    while (skip(",")) {
      if (until_bracket ? is(")")
                        : here().kind == TokenKind::kTagEnd || here().kind == TokenKind::kOutputEnd)
        break;
      adopt(*e, expression());
    }
    return e;
  }

  ExpressionPtr sequence(Kind kind, std::string_view close) {
    auto e = node(kind);
    while (!skip(close)) {
      if (!e->args.empty()) expect(",");
      if (skip(close)) break;
      adopt(*e, expression());
    }
    return e;
  }

  ExpressionPtr dictionary() {
    auto e = node(Kind::kDict);
    while (!skip("}")) {
      if (!e->args.empty()) expect(",");
      if (skip("}")) break;
      adopt(*e, expression());
      expect(":");
      adopt(*e, expression());
    }
    return e;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      if (skip(".")) {
        if (here().kind == TokenKind::kInteger) {
          value = join(Kind::kItem, "", std::move(value), primary());
        } else {
          std::string member = name();
          value = join(Kind::kAttribute, std::move(member), std::move(value));
        }
      } else if (skip("[")) {
        value = subscript(std::move(value));
      } else if (is("(")) {
        value = call(Kind::kCall, "", std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    ExpressionPtr parts[3];
    int colons = 0;
    for (;;) {
      if (is("]")) break;
      if (skip(":")) {
        if (++colons > 2) fail("a slice has at most two colons");
        continue;
      }
      if (parts[colons] != nullptr) unexpected("']'");
      parts[colons] = expression();
    }
    expect("]");
    if (colons == 0) {
      if (parts[0] == nullptr) fail("[] needs an index");
      return join(Kind::kItem, "", std::move(value), std::move(parts[0]));
    }
    return join(Kind::kSlice, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                std::move(parts[2]));
  }

  ExpressionPtr call(Kind kind, std::string called, ExpressionPtr subject) {
    auto e = node(kind);
    e->name = std::move(called);
    adopt(*e, std::move(subject));
    expect("(");
    bool first = true;
    while (!skip(")")) {
      if (!first) expect(",");
      first = false;
      if (skip(")")) break;
      argument(*e);
    }
    return e;
  }

  void argument(Expression& e) {
    if (skip("*")) return adopt(e, join(Kind::kSpread, "", expression()));
    if (skip("**")) return adopt(e, join(Kind::kSpreadDict, "", expression()));
    if (here().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator &&
        ahead().text == "=") {
      std::string key = next().text;
      next();
      ExpressionPtr value = expression();
      e.depth = std::max(e.depth, value->depth + 1);
      check_depth(e);
      e.named.emplace_back(std::move(key), std::move(value));
      return;
    }
    adopt(e, expression());
  }

  ExpressionPtr filters(ExpressionPtr value) {
    for (;;) {
      if (skip("|")) {
        value = filter(std::move(value));
      } else if (skip_word("is")) {
        value = test(std::move(value));
      } else if (is("(")) {
        value = call(Kind::kCall, "", std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr filter(ExpressionPtr value) {
    std::string called = name();
    // As in Jinja, one that stands where it may never run fails only if it does.
    if (!is_filter(called) && conditions_ == 0)
      fail("there is no filter '" + called.substr(0, 80) + "'");
    if (is("(")) return call(Kind::kFilter, std::move(called), std::move(value));
    return join(Kind::kFilter, std::move(called), std::move(value));
  }

  ExpressionPtr test(ExpressionPtr value) {
    const bool negated = skip_word("not");
    std::string called = name();
    if (!is_test(called)) fail("there is no test '" + called.substr(0, 80) + "'");
    ExpressionPtr result;
    const Token& token = here();
    const bool operand = token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
                         token.kind == TokenKind::kFloat || is("[") || is("{") ||
                         (token.kind == TokenKind::kName && token.text != "else" &&
                          token.text != "or" && token.text != "and" && token.text != "if" &&
                          token.text != "is" && token.text != "in" && token.text != "not" &&
                          token.text != "recursive");
    if (is("(")) {
      result = call(Kind::kTest, std::move(called), std::move(value));
    } else if (operand) {
      result = join(Kind::kTest, std::move(called), std::move(value), postfix(primary()));
    } else {
      result = join(Kind::kTest, std::move(called), std::move(value));
    }
    return negated ? join(Kind::kNot, "", std::move(result)) : std::move(result);
  }

  // ---- statements

  Block block(const std::vector<std::string_view>& ends) {
    const Deeper deeper(*this);
    Block body;
    for (;;) {
      const Token token = here();
      if (token.kind == TokenKind::kEnd) {
        if (!ends.empty()) fail("the template ends before {% " + std::string(ends.back()) + " %}");
        return body;
      }
      next();
      if (token.kind == TokenKind::kText) {
        body.push_back(
            Statement{.kind = StatementKind::kText, .line = token.line, .text = Text(token.text)});
      } else if (token.kind == TokenKind::kOutputBegin) {
        body.push_back(
            Statement{.kind = StatementKind::kOutput, .line = token.line, .value = tuple(false)});
        if (here().kind != TokenKind::kOutputEnd) unexpected("'}}'");
        next();
      } else {
        if (here().kind == TokenKind::kName &&
            std::find(ends.begin(), ends.end(), here().text) != ends.end())
          return body;
        body.push_back(tag(token.line));
      }
    }
  }

  Statement tag(int line) {
    const std::string word = name();
    Statement s{.kind = StatementKind::kGroup, .line = line};
    if (word == "if") {
      condition(s);
    } else if (word == "for") {
      loop(s);
    } else if (word == "set") {
      assignment(s);
    } else if (word == "macro") {
      s.kind = StatementKind::kMacro;
      s.names.push_back(name());
      parameters(s);
      close_tag();
      body(s, "endmacro");
    } else if (word == "call") {
      s.kind = StatementKind::kCallBlock;
      if (is("(")) parameters(s);
      s.value = expression();
      if (s.value->kind != Kind::kCall) fail("{% call %} needs a call");
      close_tag();
      body(s, "endcall");
    } else if (word == "filter") {
      s.kind = StatementKind::kFilter;
      s.value = filters(filter(filtered()));
      close_tag();
      body(s, "endfilter");
    } else if (word == "with") {
      scope(s);
    } else if (word == "generation") {
      close_tag();
      body(s, "endgeneration");
    } else if (word == "break" || word == "continue") {
      if (loops_ == 0) fail("{% " + word + " %} outside of a loop");
      s.kind = word == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      close_tag();
    } else {
      fail("the tag {% " + word.substr(0, 80) +
           " %} is not available in chat templates, or nothing opened it");
    }
    return s;
  }

  ExpressionPtr filtered() {
    auto e = node(Kind::kName);
    e->name = kFilteredName;
    return e;
  }

  void body(Statement& s, std::string_view end) {
    const int outer = loops_;
    if (s.kind != StatementKind::kScope && s.kind != StatementKind::kGroup) loops_ = 0;
    s.body = block({end});
    loops_ = outer;
    next();
    if (s.kind == StatementKind::kMacro) skip_word(s.names.front());  // {% endmacro name %}
    close_tag();
  }

  void condition(Statement& s) {
    const Deeper deeper(*this);  // elif nests within else
    s.kind = StatementKind::kIf;
    s.value = tuple(false);
    close_tag();
    ++conditions_;
    condition_bodies(s);
    --conditions_;
  }

  void condition_bodies(Statement& s) {
    s.body = block({"elif", "else", "endif"});
    const int line = here().line;
    const std::string word = name();
    if (word == "elif") {
      Statement inner{.kind = StatementKind::kIf, .line = line};
      condition(inner);
      s.other.push_back(std::move(inner));
      return;
    }
    close_tag();
    if (word == "endif") return;
    s.other = block({"endif"});
    next();
    close_tag();
  }

  void targets(Statement& s) {
    const bool bracket = skip("(");
    do {
      if (!s.names.empty() && here().kind != TokenKind::kName) break;
      s.names.push_back(name());
    } while (skip(","));
    if (bracket) expect(")");
  }

  void loop(Statement& s) {
    s.kind = StatementKind::kFor;
    targets(s);
    if (!skip_word("in")) unexpected("'in'");
    s.value = either();  // without "if", which filters here
    if (is(",")) fail("a list of values to loop over needs brackets");
    if (skip_word("if")) s.condition = expression();
    if (is_word("recursive")) fail("recursive loops are not supported");
    close_tag();
    ++loops_;
    s.body = block({"else", "endfor"});
    --loops_;
    const std::string word = name();
    close_tag();
    if (word == "endfor") return;
    s.other = block({"endfor"});
    next();
    close_tag();
  }

  void assignment(Statement& s) {
    s.kind = StatementKind::kSet;
    targets(s);
    if (s.names.size() == 1 && skip(".")) s.member = name();
    if (skip("=")) {
      s.value = tuple(false);
      return close_tag();
    }
    if (s.names.size() != 1 || !s.member.empty()) unexpected("'='");
    s.kind = StatementKind::kSetBlock;
    if (is("|")) s.value = filters(filtered());
    close_tag();
    body(s, "endset");
  }

  void parameters(Statement& s) {
    expect("(");
    while (!skip(")")) {
      if (!s.parameters.empty()) expect(",");
      if (skip(")")) break;
      std::string key = name();
      ExpressionPtr value;
      if (skip("=")) value = expression();
      s.parameters.emplace_back(std::move(key), std::move(value));
    }
  }

  void scope(Statement& s) {
    s.kind = StatementKind::kScope;
    while (here().kind == TokenKind::kName) {
      std::string key = name();
      expect("=");
      s.parameters.emplace_back(std::move(key), expression());
      if (!skip(",")) break;
    }
    close_tag();
    body(s, "endwith");
  }

  const std::vector<Token> tokens_;
  std::size_t at_ = 0, nodes_ = 0;
  int depth_ = 0, loops_ = 0;
  int conditions_ = 0;  ///< bodies of if statements that the parser is in
};

}  // namespace

Template parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace quire::jinja
