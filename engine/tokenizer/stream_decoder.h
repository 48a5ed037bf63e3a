/// Token ids to text while they arrive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Makes valid UTF-8 of a byte stream. Holds back an incomplete character; bytes that can never
/// become one turn into U+FFFD, one per maximal broken part (the Unicode standard's recommended
/// practice, as browsers do).
class Utf8Stream {
 public:
  /// Appends to `out` what is complete after `bytes`.
  void feed(std::string_view bytes, std::string& out);
  /// Ends the stream: an incomplete character becomes U+FFFD.
  void flush(std::string& out);

 private:
  char pending_[4] = {};
  int num_pending_ = 0;
  int num_wanted_ = 0;  ///< length of the character in pending_
};

/// Returns whether a token adds to the text of an answer. Special tokens do not, but for <think>
/// and </think>: without them neither a client nor the chat template, which takes thoughts out of
/// earlier turns, could tell a model's thoughts from its answer.
bool has_text(const Tokenizer& tokenizer, std::int32_t id);

/// Turns ids into pieces of text whose concatenation equals Tokenizer::decode() of all ids. One per
/// answer, one thread. The tokenizer must outlive it.
class StreamDecoder {
 public:
  /// Adds the tokens that has_text() names and those in `shown`, or all with `keep_special`. With
  /// `continues` a text stands before the first id, so that its space is part of what follows.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool keep_special = false,
                         std::vector<std::int32_t> shown = {}, bool continues = false)
      : tokenizer_(tokenizer),
        keep_special_(keep_special),
        shown_(std::move(shown)),
        strip_space_(tokenizer.strips_first_space() && !continues) {}

  /// The text that is certain after `id`: may be empty, is always valid UTF-8.
  std::string push(std::int32_t id);
  /// What was held back. Call once at the end.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  Utf8Stream utf8_;
  bool keep_special_;
  std::vector<std::int32_t> shown_;
  bool strip_space_;  ///< nothing was written yet, and the first space is not ours
};

}  // namespace quire
