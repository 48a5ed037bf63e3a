#include "engine/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "engine/jinja/value.h"

namespace quire::jinja {
namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         (static_cast<unsigned char>(c) & 0x80) != 0;
}

/// Line breaks as \n; one at the very end goes.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)), s_(source_) {}

  std::vector<Token> run() {
    while (at_ < s_.size()) {
      const std::size_t open = next_open(at_);
      text(open);
      if (open == s_.size()) break;
      at_ = open + 2;
      const char kind = s_[open + 1];
      const bool signed_open = at_ < s_.size() && (s_[at_] == '-' || s_[at_] == '+');
      if (signed_open) ++at_;
      if (kind == '#') {
        comment();
      } else if (kind == '{') {
        put(TokenKind::kOutputBegin, "{{");
        inside(TokenKind::kOutputEnd, "}}");
      } else if (!raw()) {
        put(TokenKind::kTagBegin, "{%");
        inside(TokenKind::kTagEnd, "%}");
      }
    }
    put(TokenKind::kEnd, "end of the template");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error("line " + std::to_string(line_) + ": " + message);
  }

  void put(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  /// Where the next tag, output or comment begins; the end of the source if there is none.
  std::size_t next_open(std::size_t from) const {
    for (std::size_t at = s_.find('{', from); at != std::string_view::npos && at + 1 < s_.size();
         at = s_.find('{', at + 1)) {
      if (s_[at + 1] == '{' || s_[at + 1] == '%' || s_[at + 1] == '#') return at;
    }
    return s_.size();
  }

  /// The text before `open`, trimmed as the sign of what opens there asks.
  void text(std::size_t open) {
    std::string_view part = s_.substr(at_, open - at_);
    const std::string_view whole = part;
    const char sign = open + 2 < s_.size() ? s_[open + 2] : '\0';
    if (open < s_.size() && sign == '-') {
      while (!part.empty() && is_blank(part.back())) part.remove_suffix(1);
    } else if (open < s_.size() && sign != '+' && s_[open + 1] != '{') {
      const std::size_t line_begin = part.rfind('\n') + 1;  // 0 where there is no line break
      const bool own_line = line_begin > 0 || line_starts_;
      if (own_line && std::all_of(part.begin() + static_cast<std::ptrdiff_t>(line_begin),
                                  part.end(), is_blank)) {
        part = part.substr(0, line_begin);
      }
    }
    if (!part.empty()) put(TokenKind::kText, std::string(part));
    count_lines(whole);
    at_ = open;
  }

  void count_lines(std::string_view text) {
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  /// What follows a closing bracket whose sign is `sign`: all white space goes after '-'; after a
  /// tag or a comment without a sign one line break does.
  void after_close(char sign, bool output) {
    const std::size_t begin = at_;
    if (sign == '-') {
      while (at_ < s_.size() && is_blank(s_[at_])) ++at_;
    } else if (sign != '+' && !output && at_ < s_.size() && s_[at_] == '\n') {
      ++at_;
    }
    line_starts_ = at_ > begin && s_[at_ - 1] == '\n';
    count_lines(s_.substr(begin, at_ - begin));
  }

  void comment() {
    const std::size_t close = s_.find("#}", at_);
    if (close == std::string_view::npos) fail("a comment is not closed by #}");
    char sign = close > at_ ? s_[close - 1] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    count_lines(s_.substr(at_, close - at_));
    at_ = close + 2;
    after_close(sign, false);
  }

  /// {% raw %} ... {% endraw %}, if that is what stands here.
  bool raw() {
    std::size_t at = at_;
    const auto blanks = [&] {
      while (at < s_.size() && is_blank(s_[at])) ++at;
    };
    blanks();
    if (s_.substr(at, 3) != "raw") return false;
    at += 3;
    blanks();
    char sign = '\0';
    if (at < s_.size() && (s_[at] == '-' || s_[at] == '+')) sign = s_[at++];
    if (s_.substr(at, 2) != "%}") return false;
    at_ = at + 2;
    after_close(sign, false);
    for (std::size_t open = s_.find("{%", at_); open != std::string_view::npos;
         open = s_.find("{%", open + 2)) {
      at = open + 2;
      if (at < s_.size() && (s_[at] == '-' || s_[at] == '+')) ++at;
      blanks();
      if (s_.substr(at, 6) != "endraw") continue;
      at += 6;
      blanks();
      char end_sign = '\0';
      if (at < s_.size() && (s_[at] == '-' || s_[at] == '+')) end_sign = s_[at++];
      if (s_.substr(at, 2) != "%}") continue;
      text(open);
      at_ = at + 2;
      after_close(end_sign, false);
      return true;
    }
    fail("a raw block is not closed by {% endraw %}");
  }

  /// The words of a tag or an output, up to `close`.
  void inside(TokenKind end, std::string_view close) {
    std::string brackets;  // open ones: within them }} closes dictionaries
    for (;;) {
      while (at_ < s_.size() && is_blank(s_[at_])) {
        if (s_[at_] == '\n') ++line_;
        ++at_;
      }
      if (at_ >= s_.size()) fail("a tag is not closed by " + std::string(close));
      const char c = s_[at_];
      if (brackets.empty()) {
        const char sign = c == '-' || (c == '+' && end == TokenKind::kTagEnd) ? c : '\0';
        if (s_.substr(at_ + (sign != '\0' ? 1 : 0), 2) == close) {
          put(end, std::string(close));
          at_ += sign != '\0' ? 3 : 2;
          return after_close(sign, end == TokenKind::kOutputEnd);
        }
      }
      if (c == '"' || c == '\'') {
        string(c);
      } else if (is_digit(c)) {
        number();
      } else if (is_letter(c)) {
        const std::size_t begin = at_;
        while (at_ < s_.size() && (is_letter(s_[at_]) || is_digit(s_[at_]))) ++at_;
        put(TokenKind::kName, std::string(s_.substr(begin, at_ - begin)));
      } else {
        const std::string op = operator_here();
        if (op == "(" || op == "[" || op == "{") brackets += op;
        if (op == ")" || op == "]" || op == "}") {
          const char open = op == ")" ? '(' : (op == "]" ? '[' : '{');
          if (brackets.empty() || brackets.back() != open) fail("unexpected '" + op + "'");
          brackets.pop_back();
        }
        put(TokenKind::kOperator, op);
      }
    }
  }

  std::string operator_here() {
    static constexpr std::array<std::string_view, 30> kOperators = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "(", ")", "[",
        "]",  "{",  "}",  "<",  ">",  "=",  ".", ":", "|", ",", ";", "",  "",  "",  ""};
    for (const std::string_view op : kOperators) {
      if (op.empty() || s_.substr(at_, op.size()) != op) continue;
      at_ += op.size();
      return std::string(op);
    }
    fail("unexpected character '" + std::string(1, s_[at_]) + "'");
  }

  void number() {
    std::string digits;
    const auto take = [&] {
      while (at_ < s_.size() && (is_digit(s_[at_]) || (s_[at_] == '_' && at_ + 1 < s_.size() &&
                                                       is_digit(s_[at_ + 1])))) {
        if (s_[at_] != '_') digits += s_[at_];
        ++at_;
      }
    };
    take();
    bool is_float = false;
    // Behind a dot stands an index: a.0.1 is (a.0).1.
    const bool index = !tokens_.empty() && tokens_.back().kind == TokenKind::kOperator &&
                       tokens_.back().text == ".";
    if (!index && at_ + 1 < s_.size() && s_[at_] == '.' && is_digit(s_[at_ + 1])) {
      is_float = true;
      digits += s_[at_++];
      take();
    }
    if (at_ < s_.size() && (s_[at_] == 'e' || s_[at_] == 'E')) {
      const std::size_t sign = at_ + 1 < s_.size() && (s_[at_ + 1] == '-' || s_[at_ + 1] == '+')
                                   ? 1
                                   : 0;
      if (at_ + 1 + sign < s_.size() && is_digit(s_[at_ + 1 + sign])) {
        is_float = true;
        digits += s_.substr(at_, 1 + sign);
        at_ += 1 + sign;
        take();
      }
    }
    put(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits);
  }

  void string(char quote) {
    std::string out;
    for (++at_; at_ < s_.size() && s_[at_] != quote; ++at_) {
      if (s_[at_] == '\n') ++line_;
      if (s_[at_] != '\\' || at_ + 1 == s_.size()) {
        out += s_[at_];
      } else {
        ++at_;
        escape(out);
      }
    }
    if (at_ >= s_.size()) fail("a string is not closed");
    ++at_;
    put(TokenKind::kString, std::move(out));
  }

  /// The character behind a backslash, with Python's meaning; unknown ones keep the backslash.
  void escape(std::string& out) {
    static constexpr std::string_view kNames = "ntrbfva0\\'\"",
                                      kValues = std::string_view("\n\t\r\b\f\v\a\0\\'\"", 11);
    const char c = s_[at_];
    if (c == '\n') {
      ++line_;
      return;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : (c == 'u' ? 4 : 8);
      const std::string digits(s_.substr(at_ + 1, count));
      if (digits.size() != count ||
          digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
        fail("a string holds a broken escape \\" + std::string(1, c));
      }
      const auto code = static_cast<char32_t>(std::stoul(digits, nullptr, 16));
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        fail("a string escapes no character");
      tokenizer_internal::append_utf8(code, out);
      at_ += count;
      return;
    }
    if (const std::size_t k = kNames.find(c); k != std::string_view::npos) {
      out += kValues[k];
      return;
    }
    out += '\\';
    out += c;
  }

  const std::string source_;
  const std::string_view s_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  ///< what was read last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace quire::jinja
