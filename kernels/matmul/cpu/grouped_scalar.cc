// This file holds products with grouped weights in plain C++. The vector versions must give the
// same bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/matmul/cpu/grouped_kernels.h"

namespace quire::cpu {
namespace {

std::int32_t number(const std::byte* numbers, GroupKind kind, std::int64_t column,
                    std::int64_t input) {
  const auto byte = std::to_integer<int>(numbers[group_offset(kind, column, input)]);
  if (kind == GroupKind::kEight) return byte - 128;
  const int q = (byte >> group_shift(input)) & 15;
  return kind == GroupKind::kFour ? q - 8 : q;
}

float half(const std::byte* at, std::int64_t i) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at + 2 * i, sizeof bits);
  return f16_to_f32(bits);
}

}  // namespace

void quantise_grouped_rows_scalar(const float* x, std::int64_t ldx, std::int64_t k,
                                  std::int64_t begin, std::int64_t end, const GroupedRows& out) {
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t group = 0; group < out.groups; ++group) {
      const std::int64_t at = out.at(row, group), first = group * kGroupInputs;
      const std::int64_t count = std::clamp<std::int64_t>(k - first, 0, kGroupInputs);
      const float* from = x + row * ldx + first;
      float largest = 0;
      bool finite = true;
      for (std::int64_t i = 0; i < count; ++i) {
        finite = finite && std::isfinite(from[i]);
        largest = std::max(largest, std::fabs(from[i]));
      }
      float step = largest / 127.0f, inverse = 1.0f / step;
      if (!finite)
        step = std::nanf(""), inverse = 0.0f;
      else if (!std::isfinite(inverse))
        step = inverse = 0.0f;
      std::int8_t* q = out.q + at * kGroupInputs;
      std::int32_t halves[2] = {0, 0};
      for (std::int64_t i = 0; i < kGroupInputs; ++i) {
        const float scaled = i < count && inverse > 0 ? from[i] * inverse : 0.0f;
        q[i] = static_cast<std::int8_t>(std::nearbyint(scaled));
        halves[i / 2 % 2] += q[i];
      }
      out.scales[at] = step;
      out.sums[at] = halves[0] + halves[1];
      const auto low = static_cast<std::uint16_t>(-8 * halves[0]);
      const auto high = static_cast<std::uint16_t>(-8 * halves[1]);
      out.half_sums[at] = static_cast<std::int32_t>(low | static_cast<std::uint32_t>(high) << 16);
    }
  }
}

void grouped_multiply_scalar(const GroupedRows& x, std::int64_t row, std::int64_t group,
                             const std::byte* records, std::int64_t groups, GroupKind kind,
                             const PanelOutput& out) {
  for (std::int64_t r = 0; r < out.rows; ++r) {
    for (std::int64_t c = 0; c < out.columns; ++c) {
      float* y = out.y + r * out.ldy + c;
      float sum = !out.first ? *y : out.bias != nullptr ? out.bias[c] : 0.0f;
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::byte* record = records + g * group_bytes(kind);
        const std::byte* numbers = record + group_head_bytes(kind);
        const std::int64_t at = x.at(row + r, group + g);
        std::int32_t whole = 0;
        for (std::int64_t i = 0; i < kGroupInputs; ++i) {
          whole += number(numbers, kind, c, i) * x.q[at * kGroupInputs + i];
        }
        sum = std::fma(static_cast<float>(whole), half(record, c) * x.scales[at], sum);
        if (kind == GroupKind::kFourMin) {
          const float weighted = x.scales[at] * static_cast<float>(x.sums[at]);
          sum = std::fma(half(record, kPanelColumns + c), weighted, sum);
        }
      }
      *y = sum;
    }
  }
}

void quantise_grouped_rows(const float* x, std::int64_t ldx, std::int64_t k, std::int64_t begin,
                           std::int64_t end, const GroupedRows& out) {
#if defined(__x86_64__)
  if (isa() >= Isa::kAvx2) return quantise_grouped_rows_avx2(x, ldx, k, begin, end, out);
#endif
  quantise_grouped_rows_scalar(x, ldx, k, begin, end, out);
}

}  // namespace quire::cpu
