/// This file retokenizes a prompt with another tokenizer and maps scores and ranges between both
/// tokenizations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

class Retokenization {
 public:
  /// Retokenizes `ids` of `from` with `to` by way of their text; control tokens stand for no text.
  Retokenization(const Tokenizer& from, std::span<const std::int32_t> ids, const Tokenizer& to);

  /// Returns the ids of `to`, which begin with its BOS if its texts do; may be empty.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  /// Maps scores of ids() to the original tokens. Each gets the largest score of the tokens that
  /// share a byte with it, or 0 if there is none.
  std::vector<float> bring_back(std::span<const float> scores) const;
  /// Maps ascending ranges of the original tokens to ids(). The result covers all tokens that share
  /// a byte with a token in them, as ascending ranges that do not touch.
  std::vector<RowRange> bring_over(std::span<const RowRange> ranges) const;

 private:
  std::vector<TokenSpan> from_spans_;  ///< bytes of the text
  std::vector<TokenSpan> to_spans_;
  std::vector<std::int32_t> ids_;
};

}  // namespace quire
