#include <utf8proc.h>

#include <array>

#include "base/utf8.h"
#include "engine/encoder/wordpiece.h"

namespace quire {
namespace {

using tokenizer_internal::append_utf8;
using tokenizer_internal::decode_utf8;

bool is_blank(char32_t c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_dropped(char32_t c) {
  if (c == 0 || c == 0xFFFD) return true;
  if (c == '\t' || c == '\n' || c == '\r') return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
      return true;
    default:
      return false;
  }
}

bool is_han(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

/// Collects words from characters that are no blanks.
class Words {
 public:
  explicit Words(const WordRules& rules) : rules_(rules) {}

  void add(char32_t c) {
    const bool alone = rules_.split_han && is_han(c);
    if (alone) end();
    if (rules_.strip_accents) {
      // The longest canonical decomposition has four characters.
      std::array<utf8proc_int32_t, 8> parts{};
      int boundary = UTF8PROC_BOUNDCLASS_START;
      const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                                             parts.size(), UTF8PROC_DECOMPOSE, &boundary);
      for (utf8proc_ssize_t i = 0; i < n && i < static_cast<utf8proc_ssize_t>(parts.size()); ++i) {
        const auto part = static_cast<char32_t>(parts[static_cast<std::size_t>(i)]);
        if (utf8proc_category(parts[static_cast<std::size_t>(i)]) != UTF8PROC_CATEGORY_MN)
          put(part);
      }
    } else {
      put(c);
    }
    if (alone) end();
  }
  void end() {
    if (!word_.empty()) out_.push_back(std::move(word_));
    word_.clear();
  }
  std::vector<std::string> take() {
    end();
    return std::move(out_);
  }

 private:
  void put(char32_t c) {
    if (rules_.lower_case && c == 0x130) {  // the one letter whose lower case has two characters
      put('i');
      c = 0x307;
    } else if (rules_.lower_case) {
      c = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    }
    const bool alone = is_punctuation(c);
    if (alone) end();
    append_utf8(c, word_);
    if (alone) end();
  }

  const WordRules& rules_;
  std::string word_;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> split_bert_words(std::string_view text, const WordRules& rules) {
  Words words(rules);
  while (!text.empty()) {
    char32_t c = 0;
    const int size = decode_utf8(text, c);
    text.remove_prefix(size > 0 ? static_cast<std::size_t>(size) : 1);
    if (size == 0 || is_dropped(c)) continue;
    if (is_blank(c))
      words.end();
    else
      words.add(c);
  }
  return words.take();
}

}  // namespace quire
