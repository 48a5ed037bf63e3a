#include "base/words.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "base/index.h"
#include "base/utf8.h"

namespace quire {
namespace {

bool is_han(char32_t c) {
  return (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x323AF);
}

/// Returns whether the script has no spaces between words. Marks that repeat a character and digits
/// of Han stand among its characters: U+3005 is the second one of the word for people.
bool is_unspaced(char32_t c) {
  return c == 0x3005 || c == 0x3007 || (c >= 0x3021 && c <= 0x3029) ||
         (c >= 0x3031 && c <= 0x3035) || c == 0x303B || (c >= 0x3040 && c <= 0x30FF) ||
         (c >= 0x31F0 && c <= 0x31FF) || is_han(c) || (c >= 0x0E00 && c <= 0x0EFF) ||
         (c >= 0x1000 && c <= 0x109F) || (c >= 0x1780 && c <= 0x17FF);
}

bool is_word_character(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

/// Returns the text after utf8proc_map(), or the text itself where that fails.
std::string mapped(std::string_view text, int options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                          static_cast<utf8proc_ssize_t>(text.size()), &out,
                                          static_cast<utf8proc_option_t>(options));
  std::string result(text);
  if (n >= 0) result.assign(reinterpret_cast<const char*>(out), to_size(n));
  std::free(out);  // utf8proc takes it from malloc
  return result;
}

bool is_accent(char32_t c) { return c >= 0x300 && c <= 0x36F; }
bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Takes folded characters one by one, each with the byte of the text that it comes from.
class Collector {
 public:
  Collector(Stemmer& stemmer, bool with_single_han)
      : stemmer_(stemmer), with_single_han_(with_single_han) {}

  void add(char32_t c, std::size_t byte) {
    if (is_accent(c)) {  // part of its letter, and no end of a word
      if (!word_.empty() && word_.size() + 4 <= kMaxWordBytes)
        tokenizer_internal::append_utf8(c, word_);
      return;
    }
    if (!is_word_character(c)) {
      end();
    } else if (is_unspaced(c)) {
      end_word();
      if (previous_ != 0) put(place_).append(text_of(previous_)).append(text_of(c));
      pending_ = previous_ == 0;
      if (with_single_han_ && is_han(c)) {
        put(byte) = text_of(c);
        pending_ = false;
      }
      previous_ = c;
      place_ = byte;
    } else {
      end_run();
      if (word_.empty()) place_ = byte;
      if (word_.size() + 4 <= kMaxWordBytes) tokenizer_internal::append_utf8(c, word_);
    }
  }
  void end() {
    end_word();
    end_run();
  }
  std::vector<Word> take() { return std::move(words_); }

 private:
  static std::string text_of(char32_t c) {
    std::string text;
    tokenizer_internal::append_utf8(c, text);
    return text;
  }
  std::string& put(std::size_t byte) { return words_.emplace_back(Word{{}, byte}).text; }
  void end_word() {
    if (word_.empty()) return;
    const bool ascii = is_ascii(word_);
    if (stemmer_.works())
      word_ = stemmer_.stem(ascii ? word_ : mapped(word_, UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    put(place_) = ascii ? word_ : without_accents(word_);
    word_.clear();
  }
  static std::string without_accents(std::string_view word) {
    const std::string all = mapped(word, UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE);
    std::string out;
    char32_t c = 0;
    for (std::size_t i = 0; i < all.size();) {
      const std::size_t n = to_size(
          tokenizer_internal::decode_utf8(std::string_view(all).substr(i), c));
      if (n == 0) break;
      if (!is_accent(c)) out.append(all, i, n);
      i += n;
    }
    return out;
  }
  /// Ends a run; a run of one character has no pair.
  void end_run() {
    if (pending_) put(place_) = text_of(previous_);
    pending_ = false;
    previous_ = 0;
  }

  Stemmer& stemmer_;
  const bool with_single_han_;
  std::vector<Word> words_;
  std::string word_;
  std::size_t place_ = 0;  ///< of the word, or of the run's last character
  char32_t previous_ = 0;  ///< in the current run without spaces; 0: none
  bool pending_ = false;   ///< it is the run's only character so far
};

std::vector<Word> collected(std::string_view text, Stemmer& stemmer, bool with_single_han) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE | UTF8PROC_CASEFOLD | UTF8PROC_IGNORE);
  if (tokenizer_internal::valid_utf8_prefix(text) != text.size()) return {};
  Collector words(stemmer, with_single_han);
  std::array<utf8proc_int32_t, 32> folded;  // no character has more than 18
  for (std::size_t i = 0; i < text.size();) {
    char32_t c = 0;
    const std::size_t n = to_size(tokenizer_internal::decode_utf8(text.substr(i), c));
    if (c < 0x80) {
      words.add(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c, i);
    } else {
      int boundary = 0;
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          static_cast<utf8proc_int32_t>(c), folded.data(), std::ssize(folded), kOptions, &boundary);
      for (utf8proc_ssize_t k = 0; k < std::min<utf8proc_ssize_t>(count, std::ssize(folded)); ++k)
        words.add(static_cast<char32_t>(folded[to_size(k)]), i);
    }
    i += n;
  }
  words.end();
  return words.take();
}

std::vector<std::string> texts_of(std::vector<Word> words) {
  std::vector<std::string> texts;
  for (Word& word : words) texts.push_back(std::move(word.text));
  return texts;
}

}  // namespace

std::vector<Word> placed_words(std::string_view text, Stemmer& stemmer) {
  return collected(text, stemmer, false);
}

std::vector<std::string> split_words(std::string_view text, Stemmer& stemmer) {
  return texts_of(placed_words(text, stemmer));
}

std::vector<std::string> index_words(std::string_view text, Stemmer& stemmer) {
  return texts_of(collected(text, stemmer, true));
}

std::vector<std::string> split_words(std::string_view text) {
  Stemmer none("none");
  return split_words(text, none);
}

std::vector<std::string> title_words(std::string_view title, Stemmer& stemmer) {
  std::string name;
  int depth = 0;
  for (const char c : title) {
    if (c == '(') ++depth;
    if (depth == 0) name.push_back(c);
    if (c == ')' && depth > 0) --depth;
  }
  std::vector<std::string> words = split_words(name, stemmer);
  std::size_t bytes = 0;
  for (const std::string& word : words) bytes += word.size();
  if (bytes < kShortestName) words.clear();
  return words;
}

}  // namespace quire
