/// What ingest keeps of a context's pass: raw KV, means of blocks, queries, and who attends to
/// whom. Internal to context_kv.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/model/forward.h"
#include "engine/model/hook_compute.h"
#include "engine/prefill/attention_statistics.h"
#include "engine/prefill/context_kv.h"
#include "engine/prefill/pass_resources.h"
#include "engine/record/tail_record.h"

namespace quire {

/// Packs raw K and V of a chunk into the values it covers, and looks at what attends to what.
/// Chunks begin and end at block borders. On a device all of it is enqueued: rows are packed and
/// blocks summed up there, and what comes back arrives before the pass ends.
class ContextCapture final : public ForwardHook {
 public:
  /// The chunk's first `skip` rows are the ingest prefix; the others begin at `first_token` of the
  /// context. `statistics` may be null: not wanted. Outlives the pass.
  ContextCapture(const PassResources& core, std::shared_ptr<ContextKv> kv,
                 AttentionStatistics* statistics, std::int64_t skip, std::int64_t first_token);

  /// Of the record that a context of this layout has; without rows: none.
  static TailRecordShape tail_shape(const EngineFacts& facts, const KvLayout& layout);

  bool looks_at(std::int32_t, HookPoint, Compute& compute) const override {
    return compute.hooks() == nullptr;
  }
  bool wants_lse(std::int32_t) const override { return statistics_ != nullptr; }
  Status after_projection(LayerPass& pass) override;
  Status after_attention(LayerPass& pass) override;

  double statistics_ms() const { return statistics_ms_; }

 private:
  struct Arriving;
  Status pack_here(const LayerPass& pass);
  Status fetch_rows(const LayerPass& pass, HookCompute& hooks);
  void take(const Arriving& what, const std::byte* bytes);
  Status add_statistics(const LayerPass& pass);
  void add_local_query(std::int32_t layer, const float* q, std::int64_t rows, std::int64_t ld);
  /// The first of the chunk's rows whose query the tail record holds, and the first of the last two
  /// blocks; qkv rows, past the end where there are none.
  std::int64_t first_tail_row() const;
  std::int64_t first_local_row() const;

  const PassResources& core_;
  const std::shared_ptr<ContextKv> kv_;
  AttentionStatistics* const statistics_;
  const TailRecordShape tail_;  ///< without rows: not wanted
  const std::int64_t skip_, first_token_;
  double statistics_ms_ = 0;
};

}  // namespace quire
