#include "engine/tokenizer/pretokenizer.h"

#include <algorithm>
#include <new>

#include "base/index.h"
#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace quire::tokenizer_internal {

struct Pretokenizer::Pattern {
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::unique_ptr<pcre2_code, FreeCode> code;
};

namespace {

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

/// Appends the matches of `code` in `text` and what lies between them.
void split_by(const pcre2_code* code, pcre2_match_data* match, std::string_view text,
              std::vector<std::string_view>& words) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t done = 0, at = 0;
  while (at < text.size()) {
    int rc = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, nullptr);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                       nullptr);
    }
    // No match, or one that costs more than the library's limit: the rest stays one word
    if (rc < 0) break;
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
    // Empty: cut here, and go on behind the next character
    if (range[1] <= range[0] || range[0] < at) {
      at = std::max(at, range[0]);
      if (at > done) words.push_back(text.substr(done, at - done));
      done = at;
      char32_t cp = 0;
      at += to_size(std::max(1, decode_utf8(text.substr(at), cp)));
      continue;
    }
    if (range[0] > done) words.push_back(text.substr(done, range[0] - done));
    words.push_back(text.substr(range[0], range[1] - range[0]));
    done = at = range[1];
  }
  if (done < text.size()) words.push_back(text.substr(done));
}

}  // namespace

Pretokenizer::Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

Result<Pretokenizer> Pretokenizer::compile(const std::vector<std::string>& patterns) {
  Pretokenizer result;
  for (const std::string& pattern : patterns) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    if (code == nullptr) {
      PCRE2_UCHAR text[256] = {};
      pcre2_get_error_message(error, text, sizeof text);
      return Status::invalid("", "pre-tokeniser pattern '" + pattern.substr(0, 200) +
                                     "' does not compile at offset " + std::to_string(offset) +
                                     ": " + reinterpret_cast<const char*>(text));
    }
    result.patterns_.push_back(Pattern{std::unique_ptr<pcre2_code, Pattern::FreeCode>(code)});
    // A pattern the JIT cannot take is interpreted
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  return result;
}

void Pretokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  if (text.empty()) return;
  if (patterns_.empty()) {
    words.push_back(text);
    return;
  }
  std::vector<std::string_view> pieces{text}, next;
  for (const Pattern& pattern : patterns_) {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(pattern.code.get(), nullptr));
    if (match == nullptr) throw std::bad_alloc();
    next.clear();
    for (const std::string_view piece : pieces)
      split_by(pattern.code.get(), match.get(), piece, next);
    pieces.swap(next);
  }
  words.insert(words.end(), pieces.begin(), pieces.end());
}

}  // namespace quire::tokenizer_internal
