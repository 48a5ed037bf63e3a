/// This file declares groups of 32 weights for packed matrices of four and eight bits, read from
/// blocks or values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/matmul/matmul.h"

namespace quire {

inline constexpr std::int64_t kGroupInputs = 32;

/// Selects how the numbers of a group are stored, next to an f16 scale.
enum class GroupKind : std::uint8_t {
  kFour,     ///< four bits: scale * (q - 8)
  kFourMin,  ///< four bits and an f16 minimum: scale * q + minimum
  kEight,    ///< eight bits: scale * (q - 128)
  kFloat8,   ///< a float of eight bits: scale * e4m3_to_f32(q) / 256; CUDA only
};

/// A group of one output: 32 neighbouring weights of a row.
struct WeightGroup {
  std::uint16_t scale = 0, minimum = 0;  ///< f16; the minimum is 0 unless kFourMin
  std::uint8_t q[kGroupInputs] = {};     ///< stored numbers, see GroupKind
};

/// Returns how kW4 and kW8 store a part. Blocks of four bits stay as they are (Q4_K's scales are
/// rounded to f16), and so do the numbers of Q5_0, Q8_0 and IQ4_NL, as kEight. Other blocks are
/// rounded to kEight, on a GPU those of F8_E4M3 to kFloat8 (engine/device/device_weights.h), where
/// scales are rounded to f16. Values become kFour with kW4 and kEight with kW8.
GroupKind group_kind(const WeightPart& part, WeightFormat format);

/// Returns the version of how groups of such blocks are stored. It is part of the digest of a
/// model's weights, so that KV of another rounding is never taken for its own.
int group_version(BlockType type);

/// Returns the number of rows of all parts of a matrix with k inputs. Errors: kInvalidArgument
/// (field k: less than 1, or not a multiple of a part's block; parts: there are none, or one has no
/// data or no rows).
Result<std::int64_t> count_weight_rows(std::span<const WeightPart> parts, std::int64_t k);

/// Writes row `row` of a part, k weights, in f32. `dtype` applies to parts that hold values.
void read_weight_row(const WeightPart& part, std::int64_t row, std::int64_t k, DType dtype,
                     float* out);

/// Calls put(g, group) with each group of a row, stored as `kind`. If a row of values ends within a
/// group, the group is padded with zeros. `values` is scratch for round_up(k, 32) floats, zero past
/// k. Returns false if a weight is not finite or a scale is outside f16; such groups are skipped.
template <class Put>
bool each_group(const WeightPart& part, std::int64_t row, std::int64_t k, DType dtype,
                GroupKind kind, float* values, Put put);

/// Returns the error for a matrix for which each_group() returned false.
Status no_such_groups();

namespace internal {

/// Returns whether groups of the part, stored as `kind`, are copied from its blocks.
bool kept_as_is(const WeightPart& part, GroupKind kind);
/// Reads group `group` of a row of such blocks.
bool take_group(const WeightPart& part, std::int64_t row, std::int64_t k, std::int64_t group,
                WeightGroup& out);
/// Rounds 32 values to a group. With `steps`, each half is a whole multiple of one of two steps.
bool round_group(const float* w, GroupKind kind, const float* steps, WeightGroup& out);
/// Writes the steps of all halves of groups of a row, [k / 16]. Returns false if the part has none.
bool take_steps(const WeightPart& part, std::int64_t row, std::int64_t k,
                std::vector<float>& steps);

}  // namespace internal

template <class Put>
bool each_group(const WeightPart& part, std::int64_t row, std::int64_t k, DType dtype,
                GroupKind kind, float* values, Put put) {
  const bool as_is = internal::kept_as_is(part, kind);
  std::vector<float> steps;
  bool stepped = false;
  if (!as_is) {
    read_weight_row(part, row, k, dtype, values);
    stepped = internal::take_steps(part, row, k, steps);
  }
  bool all = true;
  WeightGroup group;
  for (std::int64_t g = 0; g * kGroupInputs < k; ++g) {
    const bool ok = as_is ? internal::take_group(part, row, k, g, group)
                          : internal::round_group(values + g * kGroupInputs, kind,
                                                  stepped ? steps.data() + 2 * g : nullptr, group);
    if (ok) put(g, static_cast<const WeightGroup&>(group));
    all = all && ok;
  }
  return all;
}

}  // namespace quire
