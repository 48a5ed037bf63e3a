#include "kernels/matmul/quant_blocks.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/index.h"

// This file is compiled without contraction: a product and a sum round twice, as in the reference
// implementation.
namespace quire {
namespace {

using Byte = std::uint8_t;

/// A layout, and the offsets of its f16 scales in a block (-1: there is none).
struct Layout {
  std::string_view name;
  std::int64_t weights, bytes;
  int scale_at, second_at;
};

constexpr std::array<Layout, kNumBlockTypes> kLayouts = {{
    {"Q4_0", 32, 18, 0, -1},
    {"Q4_1", 32, 20, 0, 2},
    {"Q5_0", 32, 22, 0, -1},
    {"Q5_1", 32, 24, 0, 2},
    {"Q8_0", 32, 34, 0, -1},
    {"Q2_K", 256, 84, 80, 82},
    {"Q3_K", 256, 110, 108, -1},
    {"Q4_K", 256, 144, 0, 2},
    {"Q5_K", 256, 176, 0, 2},
    {"Q6_K", 256, 210, 208, -1},
    {"IQ4_NL", 32, 18, 0, -1},
    {"F8_E4M3", 32, 36, -1, -1},
}};

const Layout& layout(BlockType type) { return kLayouts[at(type)]; }

constexpr std::array<std::int8_t, 16> kUnevenValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                       1,    13,   25,  38,  53,  69,  89,  113};

std::uint16_t half_bits(const Byte* at) { return static_cast<std::uint16_t>(at[0] | at[1] << 8); }
float half(const Byte* at) { return f16_to_f32(half_bits(at)); }
bool half_is_finite(const Byte* at) { return (half_bits(at) & 0x7C00) != 0x7C00; }

/// Returns bit i of the 32 bits at `high`.
int high_bit(const Byte* high, int i) { return high[i / 8] >> (i % 8) & 1; }

// Layouts of 32 weights: byte j of the nibbles holds weights j (low) and j + 16 (high).

void numbers_q4_0(const Byte* b, std::int8_t* out) {
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<std::int8_t>((b[2 + j] & 15) - 8);
    out[j + 16] = static_cast<std::int8_t>((b[2 + j] >> 4) - 8);
  }
}

void numbers_q5_0(const Byte* b, std::int8_t* out) {
  const Byte *high = b + 2, *low = b + 6;
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<std::int8_t>(((low[j] & 15) | high_bit(high, j) << 4) - 16);
    out[j + 16] = static_cast<std::int8_t>((low[j] >> 4 | high_bit(high, j + 16) << 4) - 16);
  }
}

void numbers_q8_0(const Byte* b, std::int8_t* out) { std::memcpy(out, b + 2, 32); }

void numbers_iq4_nl(const Byte* b, std::int8_t* out) {
  for (int j = 0; j < 16; ++j) {
    out[j] = kUnevenValues[b[2 + j] & 15];
    out[j + 16] = kUnevenValues[b[2 + j] >> 4];
  }
}

/// Expands a block of whole numbers times one scale.
template <void (*numbers)(const Byte*, std::int8_t*)>
void expand_numbers(const Byte* b, float* out) {
  const float d = half(b);
  std::int8_t q[32];
  numbers(b, q);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(q[j]);
}

void expand_q4_1(const Byte* b, float* out) {
  const float d = half(b), m = half(b + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(b[4 + j] & 15) + m;
    out[j + 16] = d * static_cast<float>(b[4 + j] >> 4) + m;
  }
}

void expand_q5_1(const Byte* b, float* out) {
  const float d = half(b), m = half(b + 2);
  const Byte *high = b + 4, *low = b + 8;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((low[j] & 15) | high_bit(high, j) << 4) + m;
    out[j + 16] = d * static_cast<float>(low[j] >> 4 | high_bit(high, j + 16) << 4) + m;
  }
}

// Layouts of 256 weights.

/// Layout: 16 scale bytes (scale low, minimum high), 64 bytes of four weights each (32 apart), d,
/// dmin.
void expand_q2_k(const Byte* b, float* out) {
  const float d = half(b + 80), dmin = half(b + 82);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(b[group] & 15),
                least = dmin * static_cast<float>(b[group] >> 4);
    const Byte* q = b + 16 + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    for (int j = 0; j < 16; ++j) *out++ = scale * static_cast<float>(q[j] >> shift & 3) - least;
  }
}

/// Returns the step of one of the 16 groups of Q3_K.
float step_q3_k(const Byte* b, int group) {
  const Byte* scales = b + 96;
  const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
  const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
  return half(b + 108) * static_cast<float>((low | high << 4) - 32);
}

/// Layout: 32 bytes with the third bit of each weight (set: nothing is subtracted), 64 bytes as in
/// Q2_K, 12 bytes of 6-bit scales, d.
void expand_q3_k(const Byte* b, float* out) {
  for (int group = 0; group < 16; ++group) {
    const float scale = step_q3_k(b, group);
    const Byte* q = b + 32 + group / 8 * 32 + group % 2 * 16;
    const Byte* third = b + group % 2 * 16;
    const int shift = group % 8 / 2 * 2, bit = group / 2;
    for (int j = 0; j < 16; ++j)
      *out++ = scale *
               static_cast<float>((q[j] >> shift & 3) - ((third[j] >> bit & 1) != 0 ? 0 : 4));
  }
}

/// Scale and minimum of one of the 8 groups of Q4_K and Q5_K, six bits each in 12 bytes.
struct GroupScale {
  float scale, least;
};
GroupScale group_scale(const Byte* s, int group, float d, float dmin) {
  int scale = 0, least = 0;
  if (group < 4) {
    scale = s[group] & 63;
    least = s[group + 4] & 63;
  } else {
    scale = (s[group + 4] & 15) | (s[group - 4] >> 6) << 4;
    least = s[group + 4] >> 4 | (s[group] >> 6) << 4;
  }
  return {d * static_cast<float>(scale), dmin * static_cast<float>(least)};
}

/// Layout: d, dmin, 12 bytes of scales, 128 bytes of nibbles. The low nibbles of 32 bytes are one
/// group, the high ones the next.
void expand_q4_k(const Byte* b, float* out) {
  const float d = half(b), dmin = half(b + 2);
  for (int group = 0; group < 8; ++group) {
    const GroupScale g = group_scale(b + 4, group, d, dmin);
    const Byte* q = b + 16 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int j = 0; j < 32; ++j)
      *out++ = g.scale * static_cast<float>(q[j] >> shift & 15) - g.least;
  }
}

/// Layout as in Q4_K, with 32 bytes of fifth bits (one bit of each byte per group) before the
/// nibbles.
void expand_q5_k(const Byte* b, float* out) {
  const float d = half(b), dmin = half(b + 2);
  const Byte* high = b + 16;
  for (int group = 0; group < 8; ++group) {
    const GroupScale g = group_scale(b + 4, group, d, dmin);
    const Byte* q = b + 48 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      *out++ = g.scale * static_cast<float>((q[j] >> shift & 15) | (high[j] >> group & 1) << 4) -
               g.least;
    }
  }
}

/// Returns the step of one of the 16 groups of Q6_K.
float step_q6_k(const Byte* b, int group) {
  return half(b + 208) * static_cast<float>(static_cast<std::int8_t>(b[192 + group]));
}

/// Layout: 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 signed scales, d.
void expand_q6_k(const Byte* b, float* out) {
  for (int run = 0; run < 8; ++run) {  // 32 weights in two groups
    const Byte* low = b + run / 4 * 64 + run % 2 * 32;
    const Byte* high = b + 128 + run / 4 * 32;
    const int low_shift = run % 4 / 2 * 4, high_shift = run % 4 * 2;
    for (int j = 0; j < 32; ++j) {
      const float scale = step_q6_k(b, run * 2 + j / 16);
      *out++ = scale * static_cast<float>(
                           ((low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4) - 32);
    }
  }
}

float scale_of_floats(const Byte* b) {
  float d = 0;
  std::memcpy(&d, b, sizeof d);
  return d;
}

/// Layout: d in f32, 32 floats of eight bits.
void expand_f8_e4m3(const Byte* b, float* out) {
  const float d = scale_of_floats(b);
  for (int i = 0; i < 32; ++i) out[i] = d * e4m3_to_f32(b[4 + i]);
}

bool floats_are_finite(const Byte* b) {
  if (!std::isfinite(scale_of_floats(b))) return false;
  for (int i = 0; i < 32; ++i) {
    if ((b[4 + i] & 0x7F) == 0x7F) return false;
  }
  return true;
}

using Expand = void (*)(const Byte*, float*);

Expand expand_of(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return expand_numbers<numbers_q4_0>;
    case BlockType::kQ4_1:
      return expand_q4_1;
    case BlockType::kQ5_0:
      return expand_numbers<numbers_q5_0>;
    case BlockType::kQ5_1:
      return expand_q5_1;
    case BlockType::kQ8_0:
      return expand_numbers<numbers_q8_0>;
    case BlockType::kQ2_K:
      return expand_q2_k;
    case BlockType::kQ3_K:
      return expand_q3_k;
    case BlockType::kQ4_K:
      return expand_q4_k;
    case BlockType::kQ5_K:
      return expand_q5_k;
    case BlockType::kQ6_K:
      return expand_q6_k;
    case BlockType::kIQ4_NL:
      return expand_numbers<numbers_iq4_nl>;
    case BlockType::kF8_E4M3:
      return expand_f8_e4m3;
  }
  return expand_numbers<numbers_q4_0>;  // not reached: every enumerator returned above
}

}  // namespace

std::int64_t block_weights(BlockType type) { return layout(type).weights; }
std::int64_t block_bytes(BlockType type) { return layout(type).bytes; }
std::string_view block_type_name(BlockType type) { return layout(type).name; }

void dequantise_blocks(BlockType type, const void* blocks, std::int64_t num_blocks, float* out) {
  const Layout& l = layout(type);
  const Expand expand = expand_of(type);
  const auto* b = static_cast<const Byte*>(blocks);
  for (std::int64_t i = 0; i < num_blocks; ++i) expand(b + i * l.bytes, out + i * l.weights);
}

bool block_numbers(BlockType type, const void* block, std::int8_t* numbers) {
  const auto* b = static_cast<const Byte*>(block);
  switch (type) {
    case BlockType::kQ4_0:
      numbers_q4_0(b, numbers);
      return true;
    case BlockType::kQ5_0:
      numbers_q5_0(b, numbers);
      return true;
    case BlockType::kQ8_0:
      numbers_q8_0(b, numbers);
      return true;
    case BlockType::kIQ4_NL:
      numbers_iq4_nl(b, numbers);
      return true;
    default:
      return false;
  }
}

bool block_steps(BlockType type, const void* block, float* steps) {
  if (type != BlockType::kQ3_K && type != BlockType::kQ6_K) return false;
  const auto* b = static_cast<const Byte*>(block);
  for (int group = 0; group < 16; ++group)
    steps[group] = type == BlockType::kQ3_K ? step_q3_k(b, group) : step_q6_k(b, group);
  return true;
}

bool blocks_are_finite(BlockType type, const void* blocks, std::int64_t num_blocks) {
  const Layout& l = layout(type);
  const auto* b = static_cast<const Byte*>(blocks);
  for (std::int64_t i = 0; i < num_blocks; ++i, b += l.bytes) {
    if (type == BlockType::kF8_E4M3) {
      if (!floats_are_finite(b)) return false;
      continue;
    }
    if (!half_is_finite(b + l.scale_at) || (l.second_at >= 0 && !half_is_finite(b + l.second_at)))
      return false;
  }
  return true;
}

}  // namespace quire
