/// This file captures what ingest keeps of a context's pass: raw KV, block means, queries and
/// attention statistics. Internal to context_kv.cc.
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

/// Packs raw K and V of a chunk into its values and collects attention statistics. Chunks begin and
/// end at block borders. On a device all work is enqueued: rows are packed and block sums computed
/// on the device, and the results arrive before the pass ends.
class ContextCapture final : public ForwardHook {
 public:
  /// Prepares the capture of one chunk; it must outlive the pass. The chunk's first `skip` rows are
  /// the ingest prefix, the others begin at token `first_token` of the context; `statistics` may be
  /// null to disable them.
  ContextCapture(const PassResources& core, std::shared_ptr<ContextKv> kv,
                 AttentionStatistics* statistics, std::int64_t skip, std::int64_t first_token);

  /// Returns the shape of the tail record of a context with this layout; without rows, it has none.
  static TailRecordShape tail_shape(const EngineFacts& facts, const KvLayout& layout);

  bool needs_host(std::int32_t, HookPoint, Compute& compute) const override {
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
  /// Returns (first_tail_row()) the first qkv row whose query the tail record holds, and
  /// (first_local_row()) the first row of the last two blocks. Both are past the end if there is no
  /// such row.
  std::int64_t first_tail_row() const;
  std::int64_t first_local_row() const;

  const PassResources& core_;
  const std::shared_ptr<ContextKv> kv_;
  AttentionStatistics* const statistics_;
  const TailRecordShape tail_;  ///< without rows: no record
  const std::int64_t skip_, first_token_;
  double statistics_ms_ = 0;
};

}  // namespace quire
