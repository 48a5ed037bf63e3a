/// This file blends new KV with stored KV while a pass runs, and writes it to the cache at its end
/// (WriteBack::kFusion). Until then the pass sees the new KV unblended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "engine/compute/compute.h"
#include "engine/model/forward.h"
#include "engine/recompute/recomputer.h"

namespace quire {

/// Collects new rows, blended with the stored ones. They are held in f32 in the Compute's memory,
/// so that nothing synchronizes before write(). A device gets the stored rows while it computes the
/// layer. Threads: the engine thread.
class FusedRows {
 public:
  struct Row {
    RawKvView block;  ///< the stored block of this row
    std::int64_t block_row;
    std::int32_t pass_row;  ///< index among the pass's active rows
    std::int32_t cache_row, position;
  };
  FusedRows(const RopeTable& rope, std::int32_t num_kv_heads, std::int32_t head_dim)
      : rope_(rope), num_kv_heads_(num_kv_heads), head_dim_(head_dim) {}

  /// Adds rows of the pass's layer, ascending in every field. `most` is the total number of rows
  /// added until write(). Errors: kResourceExhausted, those of the Compute.
  Status add(const LayerPass& pass, std::int64_t most, std::span<const Row> rows);
  /// Writes all rows to the cache, rounded to the stored dtype. Errors: as add().
  Status write(WorkingCache& cache, Compute& compute);
  void clear();

 private:
  struct Layer {
    std::int32_t layer = 0;
    std::int64_t first = 0;  ///< rows of layers before it in fresh_
    DType dtype{};           ///< of the stored rows
    std::vector<std::int32_t> cache_rows, positions;
  };
  /// Returns the K of a layer, [rows, kv_dim], which its V follows.
  float* keys(const Layer& layer) { return fresh_.data() + layer.first * 2 * kv_dim(); }
  Status write_layer(WorkingCache& cache, Compute& compute, const Layer& from);
  std::int64_t kv_dim() const { return std::int64_t{num_kv_heads_} * head_dim_; }

  const RopeTable& rope_;
  const std::int32_t num_kv_heads_, head_dim_;
  std::vector<Layer> layers_;
  ComputeBuffer<float> fresh_;
  std::int64_t held_ = 0;  ///< rows in fresh_
};

}  // namespace quire
