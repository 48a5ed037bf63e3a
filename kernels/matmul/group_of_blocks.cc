#include "kernels/matmul/group_of_blocks.h"

#include <cstring>
#include <string>

#include "base/index.h"
#include "kernels/matmul/round_weights.h"

namespace quire {
namespace {

std::uint16_t read_u16(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}
int byte_of(const std::byte* at, std::int64_t i) { return std::to_integer<int>(at[i]); }

/// The low nibbles of 16 bytes are weights 0 to 15, the high nibbles 16 to 31.
void take_nibbles(const std::byte* at, WeightGroup& out) {
  for (std::int64_t i = 0; i < kGroupInputs; ++i) {
    out.q[i] = static_cast<std::uint8_t>(byte_of(at, i % 16) >> (i < 16 ? 0 : 4) & 15);
  }
}

/// Reads scale and minimum number `i` of 8 of a Q4_K block, six bits each, from its twelve bytes.
void take_six_bits(const std::byte* packed, std::int64_t i, int& scale, int& minimum) {
  if (i < 4) {
    scale = byte_of(packed, i) & 63;
    minimum = byte_of(packed, i + 4) & 63;
  } else {
    scale = (byte_of(packed, i + 4) & 15) | byte_of(packed, i - 4) >> 6 << 4;
    minimum = byte_of(packed, i + 4) >> 4 | byte_of(packed, i) >> 6 << 4;
  }
}

/// Returns the blocks of a row.
const std::byte* row_blocks(const WeightPart& part, std::int64_t row, std::int64_t k) {
  const BlockType type = *part.blocks;
  return static_cast<const std::byte*>(part.data) +
         row * (k / block_weights(type)) * block_bytes(type);
}

}  // namespace

GroupKind group_kind(const WeightPart& part, WeightFormat format) {
  if (!part.blocks) return format == WeightFormat::kW4 ? GroupKind::kFour : GroupKind::kEight;
  switch (*part.blocks) {
    case BlockType::kQ4_0:
      return GroupKind::kFour;
    case BlockType::kQ4_1:
    case BlockType::kQ4_K:
      return GroupKind::kFourMin;
    default:
      return GroupKind::kEight;
  }
}

int group_version(BlockType type) {
  switch (type) {
    case BlockType::kQ3_K:
    case BlockType::kQ5_0:
    case BlockType::kQ6_K:
    case BlockType::kIQ4_NL:
      return 2;
    default:
      return 1;
  }
}

Result<std::int64_t> count_weight_rows(std::span<const WeightPart> parts, std::int64_t k) {
  if (k <= 0) return Status::invalid("k", "must be at least 1, is " + std::to_string(k));
  std::int64_t n = 0;
  for (const WeightPart& part : parts) {
    if (part.n <= 0 || part.data == nullptr) {
      return Status::invalid("parts", "every part needs data and at least one row");
    }
    n += part.n;
    if (part.blocks && k % block_weights(*part.blocks) != 0) {
      return Status::invalid(
          "k", "must be a multiple of " + std::to_string(block_weights(*part.blocks)) +
                   " for blocks of " + std::string(block_type_name(*part.blocks)) + ", is " +
                   std::to_string(k));
    }
  }
  if (n == 0) return Status::invalid("parts", "at least one part is needed");
  return n;
}

Status no_such_groups() {
  return Status::invalid("weights",
                         "a weight is NaN or infinite, or too large for the scale of a group "
                         "(f16); use bf16 or f32");
}

void read_weight_row(const WeightPart& part, std::int64_t row, std::int64_t k, DType dtype,
                     float* out) {
  if (part.blocks) {
    const BlockType type = *part.blocks;
    return dequantise_blocks(type, row_blocks(part, row, k), k / block_weights(type), out);
  }
  for (std::int64_t i = 0; i < k; ++i) out[i] = load_f32(part.data, dtype, row * k + i);
}

namespace internal {

bool kept_as_is(const WeightPart& part, GroupKind kind) {
  if (!part.blocks) return false;
  if (kind == GroupKind::kFloat8) return true;
  switch (*part.blocks) {
    case BlockType::kQ4_0:
    case BlockType::kQ4_1:
    case BlockType::kQ4_K:
    case BlockType::kQ5_0:
    case BlockType::kQ8_0:
    case BlockType::kIQ4_NL:
      return true;
    default:
      return false;
  }
}

bool take_group(const WeightPart& part, std::int64_t row, std::int64_t k, std::int64_t group,
                WeightGroup& out) {
  const BlockType type = *part.blocks;
  const std::int64_t per_block = block_weights(type) / kGroupInputs;
  const std::byte* block = row_blocks(part, row, k) + group / per_block * block_bytes(type);
  out = {};
  constexpr std::uint16_t kExponent = 0x7c00;
  if (type == BlockType::kF8_E4M3) {
    float scale = 0;
    std::memcpy(&scale, block, sizeof scale);
    // Usual scales are a thousandth, where f16 begins to lose bits.
    out.scale = f32_to_f16(scale * 256);
    std::memcpy(out.q, block + sizeof scale, sizeof out.q);
    return (out.scale & kExponent) != kExponent;
  }
  out.scale = read_u16(block);
  std::int8_t numbers[kGroupInputs];
  if (block_numbers(type, block, numbers)) {
    const int zero = type == BlockType::kQ4_0 ? 8 : 128;
    for (std::int64_t i = 0; i < kGroupInputs; ++i)
      out.q[i] = static_cast<std::uint8_t>(numbers[i] + zero);
  } else if (type == BlockType::kQ4_1) {
    out.minimum = read_u16(block + 2);
    take_nibbles(block + 4, out);
  } else {  // kQ4_K
    const std::int64_t i = group % per_block;
    int scale = 0, minimum = 0;
    take_six_bits(block + 4, i, scale, minimum);
    const float least = f16_to_f32(read_u16(block + 2)) * static_cast<float>(minimum);
    out.scale = f32_to_f16(f16_to_f32(out.scale) * static_cast<float>(scale));
    out.minimum = f32_to_f16(-least);
    const std::byte* nibbles = block + 16 + i / 2 * kGroupInputs;
    for (std::int64_t j = 0; j < kGroupInputs; ++j) {
      out.q[j] = static_cast<std::uint8_t>(byte_of(nibbles, j) >> (i % 2 * 4) & 15);
    }
  }
  return (out.scale & kExponent) != kExponent && (out.minimum & kExponent) != kExponent;
}

bool take_steps(const WeightPart& part, std::int64_t row, std::int64_t k,
                std::vector<float>& steps) {
  constexpr std::int64_t kHalf = kGroupInputs / 2;
  if (!part.blocks) return false;
  const std::int64_t per_block = block_weights(*part.blocks), bytes = block_bytes(*part.blocks);
  steps.resize(to_size(k / kHalf));
  const std::byte* blocks = row_blocks(part, row, k);
  for (std::int64_t b = 0; b < k / per_block; ++b) {
    if (!block_steps(*part.blocks, blocks + b * bytes, steps.data() + b * per_block / kHalf))
      return false;
  }
  return true;
}

bool round_group(const float* w, GroupKind kind, const float* steps, WeightGroup& out) {
  RoundedGroup rounded;
  const bool four = kind == GroupKind::kFour;
  const bool fits = four               ? round_to_four_bits(w, rounded)
                    : steps == nullptr ? round_to_eight_bits(w, rounded)
                                       : round_multiples_to_eight_bits(w, steps, rounded);
  if (!fits) return false;
  out.scale = rounded.scale;
  out.minimum = 0;
  for (std::int64_t i = 0; i < kGroupInputs; ++i) {
    out.q[i] = static_cast<std::uint8_t>(rounded.q[i] + (four ? 8 : 128));
  }
  return true;
}

}  // namespace internal

}  // namespace quire
