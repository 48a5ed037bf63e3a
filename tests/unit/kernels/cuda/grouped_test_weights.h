/// Random weights in groups of 32, for parity tests.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/grouped_weights.h"
#include "kernels/matmul/quant_blocks.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {

inline constexpr GroupKind kKinds[] = {GroupKind::kFour, GroupKind::kFourMin, GroupKind::kEight,
                                       GroupKind::kFloat8};

/// Random groups, in the device's form and as the values that they represent.
struct Grouped {
  Grouped(GroupKind k_kind, std::int64_t k_n, std::int64_t k_k)
      : kind(k_kind),
        n(k_n),
        k(k_k),
        numbers(static_cast<std::size_t>(grouped_number_bytes(kind, n, k))),
        scales(static_cast<std::size_t>(grouped_scale_bytes(kind, n, k) / 2)),
        minimums(kind == GroupKind::kFourMin ? scales.size() : 0),
        meant(static_cast<std::size_t>(n * k)) {
    const std::int64_t groups = k / kGroupInputs;
    const std::vector<float> scale = random_floats(n * groups, 3, 0.01f);
    const std::vector<float> minimum = random_floats(n * groups, 4, 0.05f);
    std::mt19937 rng(5);
    for (std::int64_t i = 0; i < n * groups; ++i) {
      WeightGroup group;
      group.scale = f32_to_f16(scale[static_cast<std::size_t>(i)]);
      if (kind == GroupKind::kFourMin) {
        group.minimum = f32_to_f16(minimum[static_cast<std::size_t>(i)]);
      }
      const bool eight = kind == GroupKind::kEight || kind == GroupKind::kFloat8;
      const float zero = kind == GroupKind::kEight ? 128 : kind == GroupKind::kFour ? 8 : 0;
      for (std::int64_t c = 0; c < kGroupInputs; ++c) {
        group.q[c] = static_cast<std::uint8_t>(rng() % (eight ? 256 : 16));
        float& w = meant[static_cast<std::size_t>(i * kGroupInputs + c)];
        if (kind == GroupKind::kFloat8) {
          group.q[c] &= 0xfe;  // not a number is odd
          w = f16_to_f32(group.scale) * (e4m3_to_f32(group.q[c]) / 256);
        } else {
          w = f16_to_f32(group.scale) * (static_cast<float>(group.q[c]) - zero);
        }
        if (kind == GroupKind::kFourMin) w += f16_to_f32(group.minimum);
      }
      put_group(kind, i / groups, i % groups, k, group, numbers.data(), scales.data(),
                minimums.data());
    }
  }
  GroupedWeights on(TestDevice& device) const {
    return {device.upload(numbers, "numbers"),
            device.upload(scales, "scales"),
            minimums.empty() ? nullptr : device.upload(minimums, "minimums"),
            n,
            k,
            kind};
  }
  GroupKind kind;
  std::int64_t n, k;
  std::vector<std::byte> numbers;
  std::vector<std::uint16_t> scales, minimums;
  std::vector<float> meant;  ///< [n, k]
};

inline std::string name_of(GroupKind kind) {
  return "kind " + std::to_string(static_cast<int>(kind));
}

}  // namespace quire::cuda
