/// New KV that waits for the end of a pass to be blended with what is stored (WriteBack::kFusion):
/// until then the pass sees it pure.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "engine/model/compute.h"
#include "engine/model/forward.h"
#include "engine/recompute/recomputer.h"

namespace quire {

/// Without a device rows are blended when they come and kept in the KV dtype; on a device they are
/// kept there as they come, in f32, and are blended when they are written, so that nobody waits for
/// them in between. Threads: the engine thread.
class FusedRows {
 public:
  struct Row {
    RawKvView block;  ///< the stored block it lies in; must stay until write()
    std::int64_t block_row;
    std::int32_t pass_row;  ///< among the pass's active rows
    std::int32_t cache_row, position;
  };
  FusedRows(const RopeTable& rope, std::int32_t num_kv_heads, std::int32_t head_dim)
      : rope_(rope), num_kv_heads_(num_kv_heads), head_dim_(head_dim) {}

  /// Rows of the pass's layer, ascending in every way. `most`: of all that are added until write().
  /// Errors: kResourceExhausted, those of the Compute.
  Status add(const LayerPass& pass, DType kv_dtype, std::int64_t most, std::vector<Row> rows);
  /// Blends and places them all. Errors: as add().
  Status write(WorkingCache& cache, Compute& compute);
  void clear();

 private:
  struct Layer {
    std::int32_t layer = 0;
    std::vector<Row> rows;
    std::vector<std::byte> raw;  ///< blended, [num_kv_heads][2][rows][head_dim]; without a device
    /// Where its K, then its V begin in fresh_, in rows of both; on a device
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
