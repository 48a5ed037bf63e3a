#include "kernels/choice/key_codes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/choice/cpu/key_codes_rows.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

constexpr std::int64_t kLeastProducts = 65536;
/// Adding and subtracting it rounds to the nearest integer, halves to even
constexpr float kWhole = 1.5f * (1 << 23);

bool has_vnni() { return cpu::isa() >= cpu::Isa::kAvx512Bf16; }

Status check(const KeyCodesArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (!internal::is_kv_dtype(a.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.begin < 0 || a.end < a.begin || a.end > a.kv.num_rows)
    return Status::invalid("end",
                           "rows must lie within the cache's " + std::to_string(a.kv.num_rows));
  if (a.end > a.begin &&
      (a.kv.pages == nullptr || a.lows == nullptr || a.steps == nullptr || a.blocks == nullptr))
    return Status::invalid("kv", "key_codes needs all of its arrays");
  return {};
}

/// Returns the largest row; a negative row counts as a large one. Eight independent maximums run in
/// parallel.
std::uint64_t largest_row(const std::int32_t* rows, std::int64_t n) {
  std::uint32_t most[8] = {};
  std::int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    for (std::int64_t k = 0; k < 8; ++k)
      most[k] = std::max(most[k], static_cast<std::uint32_t>(rows[j + k]));
  }
  for (; j < n; ++j) most[0] = std::max(most[0], static_cast<std::uint32_t>(rows[j]));
  return *std::max_element(most, most + 8);
}

Status check(const CodeScoresArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.keys.num_kv_heads, a.keys.head_dim));
  if (a.kv_head < 0 || a.kv_head >= a.keys.num_kv_heads)
    return Status::invalid("kv_head", "there is no KV head " + std::to_string(a.kv_head));
  if (a.num_queries < 0 || a.num_rows < 0)
    return Status::invalid("num_rows", "must not be negative");
  if (a.num_queries == 0 || a.num_rows == 0) return {};
  if (a.q == nullptr || a.scores == nullptr || a.keys.blocks == nullptr || a.keys.steps == nullptr)
    return Status::invalid("q", "code_scores needs all of its arrays");
  if (a.ldq < a.keys.head_dim || a.ld_scores < a.num_rows)
    return Status::invalid("ldq", "row strides are too small");
  const bool in_range = a.rows == nullptr
                            ? a.first_row >= 0 && a.first_row + a.num_rows <= a.keys.num_rows
                            : largest_row(a.rows, a.num_rows) <
                                  static_cast<std::uint64_t>(a.keys.num_rows);
  if (!in_range)
    return Status::invalid(
        "rows", "must lie within the " + std::to_string(a.keys.num_rows) + " coded rows");
  return {};
}

/// Rounds queries [first, first + count) so that the largest |q * step| becomes 127.
void round_queries(const CodeScoresArgs& a, std::int64_t first, std::int64_t count,
                   cpu::CodedQueries& out) {
  const std::int64_t dim = a.keys.head_dim;
  const float* steps = a.keys.steps + a.kv_head * dim;
  for (std::int64_t i = 0; i < count; ++i) {
    const float* q = a.q + (first + i) * a.ldq;
    float largest = 0;
    for (std::int64_t c = 0; c < dim; ++c) largest = std::max(largest, std::abs(q[c] * steps[c]));
    const float part = largest > 0 ? 127.0f / largest : 0.0f;
    for (std::int64_t c = 0; c < dim; ++c) {
      const float x = q[c] * steps[c] * part;
      out.q[i][c] = std::isnan(x) ? std::int8_t{0}
                                  : static_cast<std::int8_t>(
                                        (std::clamp(x, -127.0f, 127.0f) + kWhole) - kWhole);
    }
    out.scales[i] = a.scale * largest / 127.0f;
  }
}

}  // namespace

bool coded_keys_pay(const KvView& kv) {
  return kv.dtype == DType::kBF16 && kv.head_dim % 64 == 0 && has_vnni();
}

Status key_codes(const KeyCodesArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  if (args.begin == args.end) return {};
  const auto body = coded_keys_pay(args.kv) ? cpu::vnni_key_codes_rows : cpu::key_codes_rows;
  const std::int64_t each = std::int64_t{args.kv.num_kv_heads} * args.kv.head_dim;
  parallel_for(args.end - args.begin, 1 + kLeastProducts / each,
               [&](std::int64_t begin, std::int64_t end) {
                 body(args, args.begin + begin, args.begin + end);
               });
  return {};
}

Status code_scores(const CodeScoresArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  if (args.num_queries == 0 || args.num_rows == 0) return {};
  const auto body = args.keys.head_dim % 64 == 0 && has_vnni() ? cpu::vnni_code_scores_rows
                                                               : cpu::code_scores_rows;
  for (std::int64_t first = 0; first < args.num_queries; first += cpu::kCodeQueries) {
    const std::int64_t count = std::min(cpu::kCodeQueries, args.num_queries - first);
    cpu::CodedQueries queries;
    round_queries(args, first, count, queries);
    parallel_for(args.num_rows, 1 + kLeastProducts / (count * args.keys.head_dim),
                 [&](std::int64_t begin, std::int64_t end) {
                   body(args, queries, first, count, begin, end);
                 });
  }
  return {};
}

}  // namespace quire
