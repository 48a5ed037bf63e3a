/// This file computes part of a draft's output head, for writing look-aheads.
///
/// In a small model with a large vocabulary the head holds more than a quarter of the weights that
/// each token reads. In Qwen2.5-0.5B it is 136 of 494 million. A look-ahead mostly copies from the
/// prompt, and only its tokens' attention matters, so it chooses among the prompt's tokens and the
/// vocabulary's common ones. Ranking tokens by frequency follows FR-Spec (Zhao et al., arXiv
/// 2502.14856); here ids give the order, as byte pair encodings number tokens by their frequency.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/model.h"

namespace quire {

/// Scores a subset of the vocabulary. Threads: the one that computes with the model.
class ShortHead {
 public:
  /// Creates a head over the first `common` ids below `vocab_size` and those in `always` (any
  /// order); `model` must outlive it. Returns null if the model has no head rows available
  /// (Model::head_rows()) or the vocabulary is less than four times as large. Errors: those of
  /// Model::head_rows().
  static Result<std::unique_ptr<ShortHead>> make(Model& model, std::int32_t vocab_size,
                                                 std::int32_t common,
                                                 std::span<const std::int32_t> always);

  /// Replaces the ids that best() chooses among besides the common ones (any order, may repeat,
  /// below the vocabulary's size). Errors: those of Model::head_rows().
  Status add_only(std::span<const std::int32_t> token_ids);
  /// Returns the id with the largest logit for a final hidden state, [hidden_size], before the
  /// final norm; logits equal the full head's. Ties go to common ids before others, then to the
  /// lower id.
  Result<std::int32_t> best(const float* hidden);

 private:
  struct Part {
    std::vector<std::int32_t> ids;           // ascending, unique
    std::unique_ptr<ComputeMatrix> weights;  // null if there are no ids
    std::vector<float> logits;
  };

  ShortHead(Model& model, std::int32_t vocab_size) : model_(model), vocab_size_(vocab_size) {}
  Result<Part> part_of(std::vector<std::int32_t> ids) const;

  Model& model_;
  const std::int32_t vocab_size_;
  Part common_, own_;
  std::vector<float> normed_;
};

}  // namespace quire
