#include "engine/sample/automata/pattern_text.h"

namespace quire {

bool PatternText::take(std::string_view what) {
  if (!text_.substr(at_).starts_with(what)) return false;
  at_ += what.size();
  return true;
}

Result<std::int32_t> PatternText::count() {
  std::int32_t n = 0;
  const std::size_t from = at_;
  while (more() && peek() >= '0' && peek() <= '9') {
    n = n * 10 + (text_[at_++] - '0');
    if (n > kMaxCount) return wrong("a count is above " + std::to_string(kMaxCount));
  }
  if (at_ == from) return wrong("a count is missing");
  return n;
}

Result<std::optional<PatternText::Times>> PatternText::times() {
  Times t;
  if (take("*")) return std::optional(t);
  if (take("+")) {
    t.min = 1;
    return std::optional(t);
  }
  if (take("?")) {
    t.max = 1;
    return std::optional(t);
  }
  if (!take("{")) return std::optional<Times>();
  QUIRE_ASSIGN_OR_RETURN(t.min, count());
  t.max = t.min;
  if (take(",")) {
    t.max = Automaton::kUnbounded;
    if (more() && peek() != '}') {
      QUIRE_ASSIGN_OR_RETURN(t.max, count());
    }
  }
  if (!take("}")) return wrong("'}' is missing");
  if (t.min > t.max) return wrong("a count is above its limit");
  return std::optional(t);
}

Result<std::uint32_t> PatternText::hex(std::size_t digits) {
  constexpr std::uint32_t kLastCharacter = 0x10ffff;
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
  if (c > kLastCharacter || (c >= 0xd800 && c <= 0xdfff)) return wrong("an escape is no character");
  return c;
}

}  // namespace quire
