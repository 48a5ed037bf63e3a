#include "engine/tokenizer/pretokenizer.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>

#include "base/index.h"
#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace quire::tokenizer_internal {

struct Pretokenizer::Pattern {
  struct FreeCode {
    void operator()(pcre2_code* compiled) const { pcre2_code_free(compiled); }
  };
  std::unique_ptr<pcre2_code, FreeCode> code;
  bool jit = false;
};

namespace {

// A step is what PCRE2 counts against its match limit, at each place of a text anew: a choice that
// it may come back to. The JIT counts those of groups only.
/// Steps of the JIT at each place. Matches of the patterns that models have mostly need fewer.
constexpr std::uint32_t kJitSteps = 1 << 10;
/// Steps of the interpreter at each place that cost nothing of the allowance, and how many more
/// each further attempt there may take.
constexpr std::uint32_t kFreeSteps = 1 << 6, kGrowth = 4;
/// The allowance: what the further attempts may take together in one text. The published patterns
/// need it for numbers of hundreds of digits that are cut from behind.
constexpr std::uint64_t kSteps = 1 << 18, kStepsPerByte = 8;
/// Memory of one match without the JIT, and how deep its choices may nest.
constexpr std::uint32_t kMatchHeapKib = 64 << 10, kMatchDepth = 1 << 20;

/// A pattern may take so many steps at a place of equal characters for each of them. One that takes
/// more tries most of the ways to cut them into parts.
constexpr std::uint32_t kProbeBytes = 256, kProbeSteps = 16 * kProbeBytes;

constexpr std::size_t kMaxPatternBytes = 64 << 10;
constexpr std::uint32_t kMaxNestedParentheses = 250;

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

struct Range {
  std::size_t begin = 0, end = 0;
};

/// Finds the matches of one pattern. `steps` is what is left of the text's allowance.
class Matcher {
 public:
  Matcher(const pcre2_code* code, bool jit, std::uint64_t& steps)
      : code_(code),
        jit_(jit),
        steps_(steps),
        match_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (match_ == nullptr || context_ == nullptr) throw std::bad_alloc();
    pcre2_set_heap_limit(context_.get(), kMatchHeapKib);
    pcre2_set_depth_limit(context_.get(), kMatchDepth);
  }

  /// Returns the first match at or behind `at`. None: there is none, or it costs too much.
  std::optional<Range> find(std::string_view text, std::size_t at) {
    if (jit_) {
      const int rc = match(text, at, 0, kJitSteps);
      if (rc >= 0) return range();
      if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
    }
    // The library does not tell how many steps it took. So one place is tried after another.
    while (at < text.size()) {
      const int here = match_at(text, at);
      if (here >= 0) return range();
      if (here != PCRE2_ERROR_NOMATCH) break;
      char32_t cp = 0;
      at += to_size(std::max(1, decode_utf8(text.substr(at), cp)));
    }
    return std::nullopt;
  }

  /// Whether some place of `text` takes more than `limit` steps of the interpreter.
  bool takes_more(std::string_view text, std::uint32_t limit) {
    return match(text, 0, PCRE2_NO_JIT, limit) == PCRE2_ERROR_MATCHLIMIT;
  }

 private:
  int match(std::string_view text, std::size_t at, std::uint32_t options, std::uint32_t limit) {
    pcre2_set_match_limit(context_.get(), limit);
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NO_UTF_CHECK | options, match_.get(), context_.get());
  }

  /// Tries one place, and again with more steps while the allowance lasts.
  int match_at(std::string_view text, std::size_t at) {
    const std::uint32_t options = PCRE2_ANCHORED | PCRE2_NO_JIT;
    int rc = match(text, at, options, kFreeSteps);
    for (std::uint64_t limit = kFreeSteps * kGrowth; rc == PCRE2_ERROR_MATCHLIMIT && steps_ > 0;
         limit *= kGrowth) {
      limit = std::min({limit, steps_, std::uint64_t{UINT32_MAX}});
      steps_ -= limit;
      rc = match(text, at, options, static_cast<std::uint32_t>(limit));
    }
    return rc;
  }

  Range range() const {
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match_.get());
    return {found[0], found[1]};
  }

  const pcre2_code* code_;
  bool jit_;
  std::uint64_t& steps_;
  std::unique_ptr<pcre2_match_data, FreeMatch> match_;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context_;
};

/// Appends the matches in `text` and what lies between them.
void split_by(Matcher& matcher, std::string_view text, std::vector<std::string_view>& words) {
  std::size_t done = 0, at = 0;
  while (at < text.size()) {
    const std::optional<Range> range = matcher.find(text, at);
    if (!range) break;
    // Empty: cut here, and go on behind the next character
    if (range->end <= range->begin || range->begin < at) {
      at = std::max(at, range->begin);
      if (at > done) words.push_back(text.substr(done, at - done));
      done = at;
      char32_t cp = 0;
      at += to_size(std::max(1, decode_utf8(text.substr(at), cp)));
      continue;
    }
    if (range->begin > done) words.push_back(text.substr(done, range->begin - done));
    words.push_back(text.substr(range->begin, range->end - range->begin));
    done = at = range->end;
  }
  if (done < text.size()) words.push_back(text.substr(done));
}

/// Whether the JIT, which does not count most choices, might try too many of them.
bool backtracks_much(const pcre2_code* code) {
  std::uint64_t steps = 0;
  Matcher matcher(code, false, steps);
  for (const std::string_view unit : {"a", "A", "1", " ", "\n", "!", "\xE4\xBD\xA0"}) {
    std::string text;
    while (text.size() < kProbeBytes) text += unit;
    for (const std::string_view end : {"", "a", "1", " ", "~"})
      if (matcher.takes_more(text + std::string(end), kProbeSteps)) return true;
  }
  return false;
}

}  // namespace

Pretokenizer::Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

Result<Pretokenizer> Pretokenizer::compile(const std::vector<std::string>& patterns) {
  Pretokenizer result;
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_max_pattern_length(context.get(), kMaxPatternBytes);
  pcre2_set_parens_nest_limit(context.get(), kMaxNestedParentheses);
  for (const std::string& pattern : patterns) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get());
    if (code == nullptr) {
      PCRE2_UCHAR text[256] = {};
      pcre2_get_error_message(error, text, sizeof text);
      return Status::invalid("", "pre-tokeniser pattern '" + pattern.substr(0, 200) +
                                     "' does not compile at offset " + std::to_string(offset) +
                                     ": " + reinterpret_cast<const char*>(text));
    }
    Pattern& compiled = result.patterns_.emplace_back();
    compiled.code.reset(code);
    // A pattern the JIT cannot take is interpreted
    compiled.jit = !backtracks_much(code) && pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  return result;
}

void Pretokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  if (text.empty()) return;
  if (patterns_.empty()) {
    words.push_back(text);
    return;
  }
  std::uint64_t steps = kSteps + kStepsPerByte * text.size();
  std::vector<std::string_view> pieces{text}, next;
  for (const Pattern& pattern : patterns_) {
    Matcher matcher(pattern.code.get(), pattern.jit, steps);
    next.clear();
    for (const std::string_view piece : pieces) split_by(matcher, piece, next);
    pieces.swap(next);
  }
  words.insert(words.end(), pieces.begin(), pieces.end());
}

}  // namespace quire::tokenizer_internal
