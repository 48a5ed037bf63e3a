/// The part of a draft's head that its look-ahead is written with.
///
/// Of a small model with a large vocabulary the head is a quarter and more of what a token has to
/// read (Qwen2.5-0.5B: 136 of 494 million weights). What a look-ahead says is mostly copied from
/// the prompt, and nothing but its tokens' attention counts: it chooses among the prompt's tokens
/// and the vocabulary's common ones. Ranking heads by frequency is FR-Spec's idea (Zhao et al.,
/// arXiv 2502.14856); here the ids give the order, as byte pair encodings number their tokens by
/// how often they were met.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/model.h"

namespace quire {

/// Threads: the one that computes with the model.
class ShortHead {
 public:
  /// Of the ids below `vocab_size` the first `common`, and `always` (any order). `model` must
  /// outlive it. Null where the model has no rows of its head at hand (Model::head_rows()) or the
  /// vocabulary has less than four times as many. Errors: those of Model::head_rows().
  static Result<std::unique_ptr<ShortHead>> make(Model& model, std::int32_t vocab_size,
                                                 std::int32_t common,
                                                 std::span<const std::int32_t> always);

  /// What best() chooses among from now on: these ids, too (any order, may repeat, below the
  /// vocabulary's size). Errors: those of Model::head_rows().
  Status add_only(std::span<const std::int32_t> token_ids);
  /// The id with the largest logit for a final hidden state [hidden_size], before the final norm;
  /// the logits are the whole head's. Ties: the lower id among common ids, those before the others.
  Result<std::int32_t> best(const float* hidden);

 private:
  struct Part {
    std::vector<std::int32_t> ids;           // ascending, each once
    std::unique_ptr<ComputeMatrix> weights;  // null: no ids
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
