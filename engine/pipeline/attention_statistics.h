/// Ingest's attention statistics of one context (algorithms §4.2; SamKV, importance and unimportance of blocks).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/pipeline/kv_layout.h"
#include "engine/pipeline/sketch.h"
#include "kernels/base/status.h"
#include "kernels/kv.h"
#include "kernels/rope.h"

namespace quire {

/// Decay of attention with distance: y ~ x^-alpha, least squares of ln y on ln x.
struct PowerLawSums {
  double count = 0, sum_log_x = 0, sum_log_x_squared = 0, sum_log_y = 0, sum_log_xy = 0;
};
/// alpha; NaN if there are fewer than 16 samples or the distances hardly differ (count * Sxx - Sx^2 < 1e-6).
double power_law_alpha(const PowerLawSums& sums);

/// Sums over the columns of every layer while a prefill passes by. The result depends on tokens alone, not on chunks or threads, bit for bit.
/// Every row counts up to 8192 tokens; of longer contexts every ceil(n / 8192)-th, the last among them, so the cost per token is bounded.
/// Threads: one at a time (the engine thread).
class AttentionStatistics {
 public:
  /// 24 bytes per token and layer.
  AttentionStatistics(const KvLayout& layout, std::int32_t num_heads);

  /// A chunk after its attention. Context tokens first_token .. first_token + rows - 1 lie in cache rows prefix_rows + first_token and on; rows of
  /// the ingest prefix lie before the context, take part in every softmax and have no column. Chunks come in order.
  /// Errors: kInvalidArgument.
  struct Chunk {
    std::int32_t layer = 0;
    const float* q = nullptr;    ///< [rows, num_heads * head_dim] raw (before RoPE), row stride ldq
    const float* lse = nullptr;  ///< [rows, num_heads]
    std::int64_t rows = 0, ldq = 0, first_token = 0, prefix_rows = 0;
    KvView kv{};                 ///< of the layer, ends with the chunk's rows
  };
  Status add(const RopeTable& rope, const Chunk& chunk);

  /// [num_layers, num_blocks], after the last chunk of every layer.
  std::vector<BlockStats> finish() const;

  std::int64_t row_step() const { return step_; }

 private:
  /// Rows that count towards a column lie at distances last, last - step, ... >= nearest; here their number.
  std::int64_t rows_at_least(std::int64_t token, std::int64_t nearest) const;
  std::int32_t late_distance(std::int64_t token) const;

  KvLayout layout_;
  std::int32_t num_heads_;
  std::int64_t step_;
  std::vector<float> log_distance_;                   ///< ln i
  std::vector<std::int32_t> late_distance_;           ///< [num_tokens]
  std::vector<double> sum_log_, sum_x_log_, sum_late_;  ///< [num_layers, num_tokens]
  std::vector<float> q_rotated_;
  std::vector<std::int32_t> positions_;
};

}  // namespace quire
