/// The answer's text as it becomes certain: characters complete, stop strings never shown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Holds back what may be the beginning of a stop string.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Appends to `out` what can be shown. True: a stop string was completed; it and everything
  /// behind it is gone.
  bool feed(std::string_view text, std::string& out);
  /// The end came without a stop string.
  void flush(std::string& out);

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

class AnswerText {
 public:
  /// The tokenizer must outlive it.
  AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : decoder_(tokenizer), stops_(std::move(stops)) {}
  /// The text that became certain with this token. Sets stopped().
  std::string push(std::int32_t id);
  /// What was held back at the end; nothing after a stop string.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  StreamDecoder decoder_;
  StopMatcher stops_;
  bool stopped_ = false;
};

}  // namespace quire
