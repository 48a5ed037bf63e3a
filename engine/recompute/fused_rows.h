/// This file holds new KV until the end of a pass, when it is blended with stored KV
/// (WriteBack::kFusion). Until then the pass sees the new KV unblended.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "engine/model/compute.h"
#include "engine/model/forward.h"
#include "engine/recompute/recomputer.h"

namespace quire {

/// Collects new rows and blends them with the stored ones. On the host, rows are blended when added
/// and held in the KV dtype. On a device, they are held in f32 in its memory and blended by
/// write(), so that nothing synchronizes in between. Threads: the engine thread.
class FusedRows {
 public:
  struct Row {
    RawKvView block;  ///< the stored block of this row; must stay valid until write()
    std::int64_t block_row;
    std::int32_t pass_row;  ///< index among the pass's active rows
    std::int32_t cache_row, position;
  };
  FusedRows(const RopeTable& rope, std::int32_t num_kv_heads, std::int32_t head_dim)
      : rope_(rope), num_kv_heads_(num_kv_heads), head_dim_(head_dim) {}

  /// Adds rows of the pass's layer, ascending in every field. `most` is the total number of rows
  /// added until write(). Errors: kResourceExhausted, those of the Compute.
  Status add(const LayerPass& pass, DType kv_dtype, std::int64_t most, std::vector<Row> rows);
  /// Blends all rows and writes them to the cache. Errors: as add().
  Status write(WorkingCache& cache, Compute& compute);
  void clear();

 private:
  struct Layer {
    std::int32_t layer = 0;
    std::vector<Row> rows;
    std::vector<std::byte> raw;  ///< blended, [num_kv_heads][2][rows][head_dim]; on the host only
    /// Index in fresh_ at which its K, then its V begin, in rows of both; on a device only.
    std::int64_t first = 0;
  };
  Status blend(const LayerPass& pass, DType kv_dtype, Layer& to);
  Status write_blended(WorkingCache& cache, const Layer& from) const;
  Status write_fresh(WorkingCache& cache, Compute& compute, const Layer& from);
  std::int64_t kv_dim() const { return std::int64_t{num_kv_heads_} * head_dim_; }

  const RopeTable& rope_;
  const std::int32_t num_kv_heads_, head_dim_;
  DType kv_dtype_ = DType::kF16;
  std::vector<Layer> layers_;
  std::vector<float> blended_;  ///< [rows][K, V][kv_dim] of one layer
  ComputeBuffer<float> fresh_;
  std::int64_t held_ = 0;  ///< rows in fresh_
};

}  // namespace quire
