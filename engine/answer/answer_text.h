/// This file emits the answer's text as it becomes final: complete characters only, and never a
/// stop string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Holds back text that may be the beginning of a stop string.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Appends to `out` the text that can be shown. Returns true if a stop string was completed; it
  /// and everything after it is discarded.
  bool feed(std::string_view text, std::string& out);
  /// Appends the held-back text when the answer ends without a stop string.
  void flush(std::string& out);

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

class AnswerText {
 public:
  /// Creates the text of one answer; the tokenizer must outlive it.
  AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : decoder_(tokenizer), stops_(std::move(stops)) {}
  /// Returns the text that became final with this token. Sets stopped().
  std::string push(std::int32_t id);
  /// Returns the text held back at the end; empty after a stop string.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  StreamDecoder decoder_;
  StopMatcher stops_;
  bool stopped_ = false;
};

}  // namespace quire
