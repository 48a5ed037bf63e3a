#include "ingest/index/words.h"

#include <utf8proc.h>

#include <utility>

#include "base/index.h"
#include "base/utf8.h"

namespace quire {
namespace {

/// Returns whether the script has no spaces between words.
bool is_unspaced(char32_t c) {
  return (c >= 0x3040 && c <= 0x30FF) || (c >= 0x31F0 && c <= 0x31FF) ||
         (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x323AF) ||
         (c >= 0x0E00 && c <= 0x0EFF) || (c >= 0x1000 && c <= 0x109F) ||
         (c >= 0x1780 && c <= 0x17FF);
}

bool is_word_character(char32_t c) {
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

/// Returns code points, decomposed and folded.
std::vector<utf8proc_int32_t> folded(std::string_view text) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE | UTF8PROC_CASEFOLD | UTF8PROC_IGNORE);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  const utf8proc_ssize_t n = utf8proc_decompose(bytes, size, nullptr, 0, kOptions);
  if (n <= 0) return {};
  std::vector<utf8proc_int32_t> out(to_size(n));
  if (utf8proc_decompose(bytes, size, out.data(), n, kOptions) != n) return {};
  return out;
}

class Collector {
 public:
  void add(char32_t c) {
    if (is_unspaced(c)) {
      end_word();
      if (previous_ != 0) pair(previous_, c);
      pending_ = previous_ == 0;
      previous_ = c;
      return;
    }
    end_run();
    if (word_.size() + 4 <= kMaxWordBytes) tokenizer_internal::append_utf8(c, word_);
  }
  void end() {
    end_word();
    end_run();
  }
  std::vector<std::string> take() { return std::move(words_); }

 private:
  void end_word() {
    if (!word_.empty()) words_.push_back(std::move(word_));
    word_.clear();
  }
  /// Ends a run; a run of one character has no pair.
  void end_run() {
    if (pending_) {
      words_.emplace_back();
      tokenizer_internal::append_utf8(previous_, words_.back());
    }
    pending_ = false;
    previous_ = 0;
  }
  void pair(char32_t a, char32_t b) {
    words_.emplace_back();
    tokenizer_internal::append_utf8(a, words_.back());
    tokenizer_internal::append_utf8(b, words_.back());
  }

  std::vector<std::string> words_;
  std::string word_;
  char32_t previous_ = 0;  ///< in the current run without spaces; 0: none
  bool pending_ = false;   ///< it is the run's only character so far
};

}  // namespace

std::vector<std::string> split_words(std::string_view text) {
  Collector words;
  for (const utf8proc_int32_t cp : folded(text)) {
    const auto c = static_cast<char32_t>(cp);
    if (c >= 0x300 && c <= 0x36F) continue;  // an accent, which is dropped from its letter
    if (is_word_character(c))
      words.add(c);
    else
      words.end();
  }
  words.end();
  return words.take();
}

}  // namespace quire
