#include "engine/jinja/text.h"

#include <algorithm>

#include "base/index.h"
#include "base/utf8.h"

namespace quire::jinja {

Text::Text(std::string text, Mark mark) : bytes(std::move(text)) {
  if (mark != kTemplateMark) marks.assign(bytes.size(), mark);
}

void Text::append(const Text& other, std::size_t from, std::size_t count) {
  if (!other.marks.empty()) {
    if (marks.empty()) marks.assign(bytes.size(), kTemplateMark);
    marks.append(other.marks, from, count);
  } else if (!marks.empty()) {
    marks.append(count, kTemplateMark);
  }
  bytes.append(other.bytes, from, count);
}

void Text::append(std::string_view text, Mark mark) {
  if (mark != kTemplateMark && marks.empty()) marks.assign(bytes.size(), kTemplateMark);
  if (mark != kTemplateMark || !marks.empty()) marks.append(text.size(), mark);
  bytes += text;
}

Text Text::substr(std::size_t from, std::size_t count) const {
  Text part;
  from = std::min(from, size());
  part.append(*this, from, std::min(count, size() - from));
  return part;
}

void Text::clear() {
  bytes.clear();
  marks.clear();
}

Character character_at(std::string_view text, std::size_t at) {
  char32_t code_point = 0xFFFD;
  const int length = tokenizer_internal::decode_utf8(text.substr(at), code_point);
  if (length == 0) return {at, at + 1, 0xFFFD};
  return {at, at + to_size(length), code_point};
}

std::size_t num_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at = character_at(text, at).end;
  return count;
}

std::size_t offset_of_character(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at = character_at(text, at).end;
  return at;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

Text strip(const Text& text, bool left, bool right, const std::string* characters) {
  const std::string_view s = text.bytes;
  const auto goes = [&](const Character& c) {
    if (characters == nullptr) return is_space(c.code_point);
    const std::string_view one = s.substr(c.begin, c.end - c.begin);
    for (std::size_t at = 0; at < characters->size();) {
      const Character k = character_at(*characters, at);
      if (std::string_view(*characters).substr(k.begin, k.end - k.begin) == one) return true;
      at = k.end;
    }
    return false;
  };
  std::size_t begin = 0, end = s.size();
  while (left && begin < end) {
    const Character c = character_at(s, begin);
    if (!goes(c)) break;
    begin = c.end;
  }
  while (right && end > begin) {
    std::size_t last = end - 1;  // the first byte of the last character
    while (last > begin && end - last < 4 && (static_cast<unsigned char>(s[last]) & 0xC0) == 0x80) {
      --last;
    }
    Character c = character_at(s, last);
    if (c.end != end) c = {end - 1, end, 0xFFFD};
    if (!goes(c)) break;
    end = c.begin;
  }
  return text.substr(begin, end - begin);
}

}  // namespace quire::jinja
