// The CPU versions of the kernels need libraries that a bare GPU machine lacks, and are tested
// elsewhere. Here the references replace them, so that the parity tests are the same everywhere.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_mass.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/attention/attention_scores.h"
#include "kernels/attention/attention_stats.h"
#include "kernels/attention/attention_vslash.h"
#include "kernels/choice/page_bounds.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/row_votes.h"
#include "kernels/choice/topk.h"
#include "kernels/choice/transposed_rows.h"
#include "kernels/choice/voted_lists.h"
#include "kernels/matmul/matmul.h"
#include "kernels/parallel.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/block_summary.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/rope.h"

namespace quire {
namespace {

/// Keeps weights as the floats that they represent. Inputs are rounded to bf16 where the format
/// does so.
class PlainMatrix final : public PackedMatrix {
 public:
  PlainMatrix(std::span<const WeightPart> parts, std::int64_t k, DType dtype, WeightFormat format)
      : k_(k), format_(format) {
    for (const WeightPart& part : parts) {
      for (std::int64_t i = 0; i < part.n * k; ++i)
        weights_.push_back(load_f32(part.data, dtype, i));
    }
    if (format != WeightFormat::kF32 && format != WeightFormat::kBF16) quantise();
    for (float& w : weights_) w = rounded(w);
  }
  std::int64_t n() const override { return static_cast<std::int64_t>(weights_.size()) / k_; }
  std::int64_t k() const override { return k_; }
  WeightFormat format() const override { return format_; }
  std::int64_t bytes() const override { return n() * k_ * (format_ == WeightFormat::kF32 ? 4 : 2); }
  Status multiply(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
                  std::int64_t ldy) const override {
    std::vector<float> in(static_cast<std::size_t>(m * k_));
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t c = 0; c < k_; ++c)
        in[static_cast<std::size_t>(r * k_ + c)] = rounded(x[r * ldx + c]);
    }
    parallel_for(n(), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) {
        for (std::int64_t r = 0; r < m; ++r)
          y[r * ldy + o] = dot(in.data() + r * k_, weights_.data() + o * k_) +
                           (bias != nullptr ? bias[o] : 0.0f);
      }
    });
    return {};
  }

 private:
  /// Rounds to 127 steps of the largest value in every group of a row.
  void quantise() {
    constexpr std::int64_t kGroup = 64;
    for (std::int64_t row = 0; row < n(); ++row) {
      for (std::int64_t first = 0; first < k_; first += kGroup) {
        const std::span<float> group(weights_.data() + row * k_ + first,
                                     static_cast<std::size_t>(std::min(kGroup, k_ - first)));
        float largest = 0;
        for (const float w : group) largest = std::max(largest, std::abs(w));
        for (float& w : group)
          w = largest > 0 ? std::round(w / largest * 127.0f) * (largest / 127.0f) : 0.0f;
      }
    }
  }
  float rounded(float x) const {
    return format_ == WeightFormat::kF32 ? x : bf16_to_f32(f32_to_bf16(x));
  }
  /// Sums in eight parts, which a compiler turns into one vector.
  float dot(const float* a, const float* b) const {
    float sums[8] = {}, rest = 0;
    std::int64_t c = 0;
    for (; c + 8 <= k_; c += 8) {
      for (int i = 0; i < 8; ++i) sums[i] += a[c + i] * b[c + i];
    }
    for (; c < k_; ++c) rest += a[c] * b[c];
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) +
           ((sums[2] + sums[6]) + (sums[3] + sums[7])) + rest;
  }
  const std::int64_t k_;
  const WeightFormat format_;
  std::vector<float> weights_;
};

}  // namespace

std::string_view weight_format_name(WeightFormat format) {
  static constexpr std::string_view kNames[] = {"f32", "bf16", "int8", "w8a8"};
  return kNames[static_cast<std::size_t>(format)];
}
Result<std::unique_ptr<PackedMatrix>> pack_weights(std::span<const WeightPart> parts,
                                                   std::int64_t k, DType dtype,
                                                   WeightFormat format) {
  return std::unique_ptr<PackedMatrix>(std::make_unique<PlainMatrix>(parts, k, dtype, format));
}
bool cpu_has_bf16() { return false; }
const char* cpu_isa() { return "reference"; }

Status rms_norm(const RmsNormArgs& args) { return rms_norm_reference(args); }
Status swiglu(const SwigluArgs& args) { return swiglu_reference(args); }
void add_inplace(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += y[i];
}
/// Sums in f32, because CPU and device promise the same bits.
Status column_sums(const ColumnSumsArgs& a) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.dim; ++c) a.sums[c] += a.x[r * a.ldx + c];
  }
  return {};
}
Status rope_rotate(const RopeTable& table, const RopeRotateArgs& args) {
  return rope_rotate_reference(table, args);
}
Status kv_place(const RopeTable& table, const KvPlaceArgs& args) {
  return kv_place_reference(table, args);
}
Status kv_pack(const KvPackArgs& args) { return kv_pack_reference(args); }
Status block_summary(const RopeTable& table, const BlockSummaryArgs& args) {
  return block_summary_reference(table, args);
}
DType cached_kv_dtype(DType stored, std::int32_t) { return stored; }
Status attention(const AttentionArgs& args) { return attention_reference(args); }
Status attention_rows(const AttentionRowsArgs& args) { return attention_rows_reference(args); }
Status attention_scores(const AttentionScoresArgs& args) {
  return attention_scores_reference(args);
}
Status attention_mass(const AttentionMassArgs& args) { return attention_mass_reference(args); }
Status attention_stats(const AttentionStatsArgs& args) { return attention_stats_reference(args); }
Status page_bounds(const PageBoundsArgs& args) { return page_bounds_reference(args); }
Status page_scores(const PageScoresArgs& args) { return page_scores_reference(args); }
std::vector<std::int32_t> top_k(std::span<const float> scores, std::int64_t k) {
  return top_k_reference(scores, k);
}
std::vector<std::int32_t> top_k_sorted(std::span<const float> scores, std::int64_t k) {
  std::vector<std::int32_t> out = top_k(scores, k);
  std::sort(out.begin(), out.end());
  return out;
}
std::int64_t mark_top_k(std::span<const float> scores, std::int64_t k, std::uint64_t* bits) {
  std::memset(bits, 0, (scores.size() + 63) / 64 * 8);
  std::int64_t marked = 0;
  for (const std::int32_t i : top_k(scores, k)) {
    if (!(scores[static_cast<std::size_t>(i)] > -INFINITY)) continue;
    bits[i / 64] |= std::uint64_t{1} << (i % 64);
    ++marked;
  }
  return marked;
}
Status attention_vslash(const AttentionVslashArgs& args) {
  return attention_vslash_reference(args);
}
Status row_scores(const RowScoresArgs& args) { return row_scores_reference(args); }
Status key_products(const KeyProductsArgs& args) { return key_products_reference(args); }
Status row_scores_by_row(const RowScoresArgs& args) {
  std::vector<float> across(static_cast<std::size_t>(args.num_queries * args.keys.num_rows));
  RowScoresArgs a = args;
  a.scores = across.data();
  a.ld_scores = args.keys.num_rows;
  QUIRE_RETURN_IF_ERROR(row_scores_reference(a));
  for (std::int64_t i = 0; i < args.num_queries; ++i) {
    for (std::int64_t j = 0; j < args.keys.num_rows; ++j)
      args.scores[j * args.ld_scores + i] =
          across[static_cast<std::size_t>(i * args.keys.num_rows + j)];
  }
  return {};
}
float log_sum_exp(const float* x, std::int64_t n) {
  const float most = n > 0 ? *std::max_element(x, x + n) : -INFINITY;
  if (!(most > -INFINITY)) return -INFINITY;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(double{x[i]} - most);
  return most + static_cast<float>(std::log(sum));
}
void exp_minus(float* x, std::int64_t n, float lse) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] > -INFINITY ? std::exp(x[i] - lse) : 0.0f;
}
void keep_larger(const float* x, std::int64_t n, float lse, float* out) {
  if (!(lse > -INFINITY)) return;
  for (std::int64_t i = 0; i < n; ++i) out[i] = std::max(out[i], x[i] - lse);
}
Status transposed_scores(const TransposedScoresArgs& args) {
  return transposed_scores_reference(args);
}
Status row_values(const RowValuesArgs& args) { return row_values_reference(args); }
Status row_votes(const RowVotesArgs& args) { return row_votes_reference(args); }
Status voted_lists(const VotedListsArgs& args) { return voted_lists_reference(args); }
std::int64_t argmax(const float* x, std::int64_t n) {
  return top_k_reference(std::span(x, static_cast<std::size_t>(n)), 1)[0];
}

float largest(const float* x, std::int64_t n) {
  float most = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, x[i]);
  return most;
}
float sum_of_values(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i];
  return static_cast<float>(sum);
}

}  // namespace quire
