/// This file holds new KV until the end of a pass, when it is blended with stored KV
/// (WriteBack::kFusion). Until then the pass sees the new KV unblended.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "engine/compute/compute.h"
#include "engine/model/forward.h"
#include "engine/recompute/recomputer.h"

namespace quire {

/// Collects new rows and blends them with the stored ones. Rows are held in f32 in the Compute's
/// memory and blended by write(), so that nothing synchronizes in between. Threads: the engine
/// thread.
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
  Status add(const LayerPass& pass, std::int64_t most, std::vector<Row> rows);
  /// Blends all rows and writes them to the cache. Errors: as add().
  Status write(WorkingCache& cache, Compute& compute);
  void clear();

 private:
  struct Layer {
    std::int32_t layer = 0;
    std::vector<Row> rows;
    /// Index in fresh_ at which its K, then its V begin, in rows of both.
    std::int64_t first = 0;
  };
  Status write_layer(WorkingCache& cache, Compute& compute, const Layer& from);
  std::int64_t kv_dim() const { return std::int64_t{num_kv_heads_} * head_dim_; }

  const RopeTable& rope_;
  const std::int32_t num_kv_heads_, head_dim_;
  std::vector<Layer> layers_;
  ComputeBuffer<float> fresh_;
  std::int64_t held_ = 0;  ///< rows in fresh_
};

}  // namespace quire
