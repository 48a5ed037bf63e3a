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
  /// Returns the stop string that was completed; empty: none.
  const std::string& completed() const { return completed_; }

 private:
  std::vector<std::string> stops_;
  std::string held_, completed_;
};

class AnswerText {
 public:
  /// Creates the text of one answer; the tokenizer must outlive it. `continues`: as in
  /// SamplingOptions.
  AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stops,
             std::vector<std::int32_t> shown_tokens = {}, bool continues = false)
      : decoder_(tokenizer, false, std::move(shown_tokens), continues), stops_(std::move(stops)) {}
  /// Returns the text that became final with this token. Sets stopped(), but not with `may_stop`
  /// false: stop strings then are text like any other.
  std::string push(std::int32_t id, bool may_stop = true);
  /// Returns the text held back at the end; empty after a stop string.
  std::string finish();
  bool stopped() const { return stopped_; }
  /// Returns the stop string that ended the text; empty: none.
  const std::string& stop_text() const { return stops_.completed(); }

 private:
  StreamDecoder decoder_;
  StopMatcher stops_;
  bool stopped_ = false;
};

}  // namespace quire
