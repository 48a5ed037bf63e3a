/// What a small model attends to, in place of a retrieval head.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"

namespace quire {

/// The draft reads one sequence token by token, as far up as the layer whose attention scores; its
/// tokens stand at positions 0, 1, ... Its KV is kept on the host. Threads: that of the draft's
/// other passes.
class DraftScorer {
 public:
  /// `draft` computes on the host and must outlive it; `layer` is one of its layers.
  DraftScorer(Model& draft, std::int32_t layer);

  /// Of a pass.
  static constexpr std::size_t kChunkTokens = 256;
  /// Errors: kInvalidArgument, field cache.decode (so many more tokens are more than the draft's
  /// window).
  Status check_room(std::int64_t tokens) const;
  /// Tokens of the draft's vocabulary, behind those before. Errors: kInvalidArgument (an id outside
  /// the vocabulary, more tokens than the draft's window), kResourceExhausted.
  Status read(std::span<const std::int32_t> token_ids);
  /// One more token. `scores` [target_kv_heads, num_tokens()]: how much it attends to each token
  /// read, itself among them (head_scores()).
  Status step(std::int32_t token_id, std::int32_t target_kv_heads, std::vector<float>& scores);

  std::int64_t num_tokens() const { return cache_.num_rows(0); }
  std::int64_t bytes() const { return cache_.bytes(); }
  /// Of the KV of a token.
  static std::int64_t row_bytes(const Model& draft, std::int32_t layer);

 private:
  /// Ends the pass at the layer, with the raw query of its last row.
  class Ending final : public ForwardHook {
   public:
    Ending(std::int32_t layer, std::int64_t query_dim)
        : layer_(layer), query_(static_cast<std::size_t>(query_dim)) {}
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
