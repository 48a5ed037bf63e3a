#include "kernels/choice/row_products.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/choice/cpu/row_products_rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/parallel.h"
#include "kernels/rows/cpu/rows.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

/// Rows per partial sum, for every number of threads
constexpr std::int64_t kValueRows = 512;
constexpr std::int64_t kLeastProducts = 65536;

Status check(const ChosenRows& c) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(c.kv.num_kv_heads, c.kv.head_dim));
  if (!internal::is_kv_dtype(c.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (c.kv_head < 0 || c.kv_head >= c.kv.num_kv_heads)
    return Status::invalid("kv_head", "there is no KV head " + std::to_string(c.kv_head));
  if (c.num_rows < 0) return Status::invalid("num_rows", "must not be negative");
  if (c.num_rows == 0) return {};
  if (c.kv.pages == nullptr) return Status::invalid("kv", "a KV view with rows needs pages");
  const bool in_range = c.rows == nullptr
                            ? c.first_row >= 0 && c.first_row + c.num_rows <= c.kv.num_rows
                            : std::all_of(c.rows, c.rows + c.num_rows, [&](std::int32_t r) {
                                return r >= 0 && r < c.kv.num_rows;
                              });
  if (!in_range)
    return Status::invalid(
        "rows", "must lie within the cache's " + std::to_string(c.kv.num_rows) + " rows");
  return {};
}

/// `scores_in_a_row` is the smallest valid ld_scores.
Status check(const RowScoresArgs& args, std::int64_t scores_in_a_row) {
  QUIRE_RETURN_IF_ERROR(check(args.keys));
  if (args.num_queries < 0) return Status::invalid("num_queries", "must not be negative");
  if (args.num_queries == 0 || args.keys.num_rows == 0) return {};
  if (args.q == nullptr || args.scores == nullptr)
    return Status::invalid("q", "row_scores needs non-null q and scores");
  if (args.ldq < args.keys.kv.head_dim || args.ld_scores < scores_in_a_row)
    return Status::invalid("ldq", "row strides are too small");
  return {};
}

}  // namespace

Status row_scores(const RowScoresArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args, args.keys.num_rows));
  const std::int64_t n = args.keys.num_rows, each = args.num_queries * args.keys.kv.head_dim;
  if (args.num_queries == 0 || n == 0) return {};
  const bool rounded = args.rounding == QueryRounding::kAllowed &&
                       cpu::multiplies_rounded(args.keys.kv);
  parallel_for(n, 1 + kLeastProducts / each, [&](std::int64_t begin, std::int64_t end) {
    (rounded ? cpu::row_scores_rounded : cpu::row_scores_rows)(args, begin, end);
  });
  return {};
}

Status key_products(const KeyProductsArgs& a) {
  if (a.kv.num_kv_heads <= 0 || a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads;
  for (std::int32_t m = 0; m < a.kv.num_kv_heads; ++m) {
    const ChosenRows keys{a.kv, m, nullptr, a.first_row, a.num_rows};
    QUIRE_RETURN_IF_ERROR(
        row_scores({a.q + m * group * a.kv.head_dim, group, a.kv.head_dim, a.scale, keys,
                    a.scores + m * group * a.ld_scores, a.ld_scores}));
  }
  return {};
}

Status row_scores_by_row(const RowScoresArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args, args.num_queries));
  const std::int64_t n = args.keys.num_rows, each = args.num_queries * args.keys.kv.head_dim;
  if (args.num_queries == 0 || n == 0) return {};
  parallel_for(n, 1 + kLeastProducts / each, [&](std::int64_t begin, std::int64_t end) {
    cpu::row_scores_by_row_rows(args, begin, end,
                                cpu::thread_scratch<float>(cpu::ScratchSlot::kRowScores,
                                                           cpu::row_scores_by_row_scratch(args)));
  });
  return {};
}

float sum_of_values(const float* x, std::int64_t n) {
  float sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::int64_t k = 0; k < 8; ++k) sums[k] += x[i + k];
  }
  for (; i < n; ++i) sums[0] += x[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}
float largest(const float* x, std::int64_t n) { return cpu::max_value(x, n); }

float log_sum_exp(const float* x, std::int64_t n) { return cpu::log_sum_exp(x, n); }

void exp_minus(float* x, std::int64_t n, float lse) { cpu::exp_minus(x, n, lse); }

void keep_larger(const float* x, std::int64_t n, float lse, float* out) {
  if (!(lse > -std::numeric_limits<float>::infinity())) return;  // all x are -inf, too
  cpu::keep_larger(x, n, lse, out);
}

Status row_values(const RowValuesArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args.values));
  if (args.num_queries < 0) return Status::invalid("num_queries", "must not be negative");
  const std::int64_t n = args.values.num_rows, dim = args.values.kv.head_dim;
  if (args.num_queries == 0) return {};
  if (args.out == nullptr || (n > 0 && args.weights == nullptr))
    return Status::invalid("weights", "row_values needs non-null weights and out");
  if (args.ldo < dim || args.ld_weights < n)
    return Status::invalid("ldo", "row strides are too small");
  for (std::int64_t i = 0; i < args.num_queries; ++i)
    std::fill_n(args.out + i * args.ldo, dim, 0.0f);
  if (n == 0) return {};
  const std::int64_t chunks = (n + kValueRows - 1) / kValueRows, size = args.num_queries * dim;
  auto* partial = cpu::thread_scratch<float>(cpu::ScratchSlot::kRowValues, chunks * size);
  parallel_tasks(chunks, [&](std::int64_t c) {
    cpu::row_values_rows(args, c * kValueRows, std::min(n, (c + 1) * kValueRows),
                         partial + c * size);
  });
  for (std::int64_t c = 0; c < chunks; ++c) {
    for (std::int64_t i = 0; i < args.num_queries; ++i) {
      const float* from = partial + c * size + i * dim;
      float* to = args.out + i * args.ldo;
      for (std::int64_t k = 0; k < dim; ++k) to[k] += from[k];
    }
  }
  return {};
}

}  // namespace quire
