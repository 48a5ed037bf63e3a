/// This file computes the attention statistics of one context at ingest (SamKV, importance and
/// unimportance of blocks).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/record/kv_layout.h"
#include "engine/record/sketch.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/rope.h"

namespace quire {

class Compute;

/// Sums for fitting the decay of attention with distance, y ~ x^-alpha, by least squares of ln y on
/// ln x.
struct PowerLawSums {
  double count = 0, sum_log_x = 0, sum_log_x_squared = 0, sum_log_y = 0, sum_log_xy = 0;
};
/// Returns alpha; NaN with fewer than 16 samples or nearly equal distances (count * Sxx - Sx^2 <
/// 1e-6).
double power_law_alpha(const PowerLawSums& sums);

/// Accumulates column sums of every layer's attention during a prefill; the result is bit-identical
/// for any chunks and threads. Every row counts up to 8192 tokens; in longer contexts every ceil(n
/// / 8192)-th row, including the last, so that the cost per token is bounded. Threads: one at a
/// time (the engine thread).
class AttentionStatistics {
 public:
  /// Uses 24 bytes per token and layer, from the first chunk on.
  AttentionStatistics(const KvLayout& layout, std::int32_t num_heads);

  /// One chunk of a layer after its attention; chunks come in order. Context tokens first_token ..
  /// first_token + rows - 1 are in cache rows from prefix_rows + first_token on. Rows before
  /// the context (ingest prefix, left context) take part in every softmax and have no column.
  /// Errors: kInvalidArgument.
  struct Chunk {
    std::int32_t layer = 0;
    const float* q = nullptr;    ///< [rows, num_heads * head_dim] raw (before RoPE), row stride ldq
    const float* lse = nullptr;  ///< [rows, num_heads]
    std::int64_t rows = 0, ldq = 0, first_token = 0, prefix_rows = 0;
    KvView kv{};                 ///< KV of the layer, ending with the chunk's rows
    Compute* compute = nullptr;  ///< the same for all chunks; its memory holds q and lse
  };
  Status add(const RopeTable& rope, const Chunk& chunk);

  /// Returns the statistics, [num_layers, num_blocks]. Call it after the last chunk of every layer,
  /// once all enqueued work has run.
  std::vector<BlockStats> finish() const;

  std::int64_t row_step() const { return step_; }

 private:
  /// Returns the number of counted rows of a column at distance `nearest` or more; these distances
  /// are last, last - step, and so on.
  std::int64_t rows_at_least(std::int64_t token, std::int64_t nearest) const;
  std::int32_t late_distance(std::int64_t token) const;

  /// Allocates the sums. Errors: kResourceExhausted.
  Status begin(const std::shared_ptr<ComputeMemory>& memory, std::int64_t prefix_rows);
  std::int64_t num_sums() const { return layout_.num_tokens() * layout_.shape().num_layers; }
  const double* sum_log() const { return sums_.data(); }
  const double* sum_x_log() const { return sums_.data() + num_sums(); }
  const double* sum_late() const { return sums_.data() + 2 * num_sums(); }

  KvLayout layout_;
  std::int32_t num_heads_;
  std::int64_t step_;
  bool begun_ = false;
  ComputeBuffer<float> log_distance_;          ///< ln i
  ComputeBuffer<std::int32_t> late_distance_;  ///< [num_tokens]
  /// [3, num_layers, num_tokens]; pinned, for the host reads it.
  ComputeBuffer<double> sums_{MemoryPlace::kPinned};
  ComputeBuffer<float> q_rotated_;
  std::vector<std::int32_t> positions_;
};

}  // namespace quire
