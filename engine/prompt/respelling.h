/// A prompt as another tokenizer spells it, and scores of that spelling brought back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "kernels/attention_mass.h"

namespace quire {

class Respelling {
 public:
  /// `ids` of `from`, as `to` spells the text they stand for; control tokens stand for none.
  Respelling(const Tokenizer& from, std::span<const std::int32_t> ids, const Tokenizer& to);

  /// Of `to`; begins with its BOS where its texts do. May be empty.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  /// scores: of ids(). For each of the first spelling's tokens the largest score of those that
  /// share a byte with it; 0 where none does.
  std::vector<float> bring_back(std::span<const float> scores) const;
  /// stretches: of the first spelling's tokens, ascending. Those of ids() that share a byte with a
  /// token in them; ascending and apart.
  std::vector<KvStretch> bring_over(std::span<const KvStretch> stretches) const;

 private:
  std::vector<TokenSpan> from_spans_;  ///< bytes of the text
  std::vector<TokenSpan> to_spans_;
  std::vector<std::int32_t> ids_;
};

}  // namespace quire
