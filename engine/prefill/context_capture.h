/// This file captures what ingest keeps of a context's pass: raw KV and the parts of its sketch
/// (block means, the local query, attention statistics). Internal to context_kv.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/compute/compute.h"
#include "engine/model/forward.h"
#include "engine/prefill/attention_statistics.h"
#include "engine/prefill/context_kv.h"
#include "engine/prefill/context_observer.h"
#include "engine/prefill/pass_resources.h"

namespace quire {

/// Packs raw K and V of a chunk into its values, collects attention statistics and shows the rows
/// to the observers of further records. Chunks begin and end at block borders. All work is enqueued
/// on the pass's Compute, and the results arrive before the pass ends.
class ContextCapture final : public ForwardHook {
 public:
  /// Prepares the capture of one chunk; it must outlive the pass. `statistics` may be null to
  /// disable them. The observers must outlive the capture.
  ContextCapture(const PassResources& core, std::shared_ptr<ContextKv> kv,
                 AttentionStatistics* statistics, std::span<const ObservedRecord> observers,
                 const ChunkRows& rows);

  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }
  bool wants_lse(std::int32_t) const override { return statistics_ != nullptr; }
  Status after_projection(LayerPass& pass) override;
  Status after_attention(LayerPass& pass) override;

  double statistics_ms() const { return statistics_ms_; }

 private:
  struct Arriving;
  Status fetch_rows(const LayerPass& pass);
  Status sum_local_rows(const LayerPass& pass, float* to);
  void take(const Arriving& what, const std::byte* bytes);
  Status add_statistics(const LayerPass& pass);
  /// Returns the values of a local query: num_heads * head_dim.
  std::int64_t query_dim() const;
  /// Returns the first row of the last two blocks; past the end if there is no such row.
  std::int64_t first_local_row() const;

  const PassResources& core_;
  const std::shared_ptr<ContextKv> kv_;
  AttentionStatistics* const statistics_;
  const std::span<const ObservedRecord> observers_;
  const std::int64_t skip_, first_token_, rows_before_;
  double statistics_ms_ = 0;
};

}  // namespace quire
