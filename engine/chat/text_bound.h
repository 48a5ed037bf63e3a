/// TextBound refuses texts of too many tokens before all of them are tokenized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Returns the length of the vocabulary's longest token in bytes, at least 1. Unless the vocabulary
/// normalises text away, a text of n bytes has at least n / longest_token_bytes() tokens. The first
/// call for a vocabulary looks at all of its tokens. Threads: any.
std::size_t longest_token_bytes(const Tokenizer& tokenizer);

/// Returns the text, or a beginning of it that has at least `most_tokens` tokens and is tokenized
/// in about the time of so many. `most_tokens` of 0 or less: the text.
std::string_view beginning_of(const Tokenizer& tokenizer, std::string_view text,
                              std::int64_t most_tokens);

/// How much too long texts are.
struct TextExcess {
  /// All bytes given so far, and the most that `most_tokens` tokens can cover. The texts were not
  /// tokenized if `bytes` is more.
  std::uint64_t bytes = 0, most_bytes = 0;
  std::int64_t most_tokens = 0;
  std::int64_t least_tokens = 0;  ///< as far as they were counted; more than most_tokens
};

/// Counts the tokens of texts that must fit a bound together. A text of more bytes than the longest
/// tokens could cover is refused without tokenizing it. Other long texts are tokenized in pieces,
/// and no further than to the bound. So both time and memory are those of a text at the bound. The
/// count of pieces is a little too high, so there is some play: the exact check comes after this
/// one, and sees only texts of about the bound.
///
/// Threads: one at a time. The tokenizer must outlive it.
class TextBound {
 public:
  /// `most_tokens` of 0 or less: no bound.
  TextBound(const Tokenizer& tokenizer, std::int64_t most_tokens)
      : tokenizer_(tokenizer), most_tokens_(most_tokens) {}
  /// Adds a text. None: all texts may fit.
  std::optional<TextExcess> add(std::string_view text);

 private:
  const Tokenizer& tokenizer_;
  const std::int64_t most_tokens_;
  std::uint64_t bytes_ = 0;
  std::int64_t tokens_ = 0;  ///< of the texts that were tokenized, rounded down
};

}  // namespace quire
