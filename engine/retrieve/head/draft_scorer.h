/// DraftScorer scores tokens by the attention of a small model, in place of a retrieval head.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"

namespace quire {

/// DraftScorer runs the draft over one sequence, token by token, up to the layer whose attention
/// scores. Its tokens have positions 0, 1, ..., and its KV lies on the host. Threads: that of the
/// draft's other passes.
class DraftScorer {
 public:
  /// Makes a scorer for `layer`, one of the draft's layers. `draft` computes on the host and must
  /// outlive it.
  DraftScorer(Model& draft, std::int32_t layer);

  /// The tokens of one pass.
  static constexpr std::size_t kChunkTokens = 256;
  /// Checks that the draft's window has room for `tokens` more tokens. Errors: kInvalidArgument,
  /// field cache.decode.
  Status check_room(std::int64_t tokens) const;
  /// Appends tokens of the draft's vocabulary. Errors: kInvalidArgument (an id outside the
  /// vocabulary, more tokens than the draft's window), kResourceExhausted.
  Status read(std::span<const std::int32_t> token_ids);
  /// Appends one token and scores how much it attends to each token read, itself included: `scores`
  /// [target_kv_heads, num_tokens()] (head_scores()).
  Status step(std::int32_t token_id, std::int32_t target_kv_heads, std::vector<float>& scores);

  std::int64_t num_tokens() const { return cache_.num_rows(0); }
  std::int64_t bytes() const { return cache_.bytes(); }
  /// Returns the bytes of one token's KV.
  static std::int64_t row_bytes(const Model& draft, std::int32_t layer);

 private:
  /// Ending ends the pass at the layer and keeps the raw query of its last row.
  class Ending final : public ForwardHook {
   public:
    Ending(std::int32_t layer, std::int64_t query_dim)
        : layer_(layer), query_(to_size(query_dim)) {}
    Status after_projection(LayerPass& pass) override;
    std::vector<float>& query() { return query_; }

   private:
    const std::int32_t layer_;
    std::vector<float> query_;
  };

  Model& draft_;
  const std::int32_t layer_;
  PagePool pool_;
  WorkingCache cache_;
  Ending ending_;
  ForwardWorkspace workspace_;
};

}  // namespace quire
