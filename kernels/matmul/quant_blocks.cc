#include "kernels/matmul/quant_blocks.h"

#include <array>

#include "base/dtype.h"
#include "base/index.h"

// This file is compiled without contraction: a product and a sum round twice, as in the reference
// implementation.
namespace quire {
namespace {

using Byte = std::uint8_t;

/// A layout, and the offsets of its f16 scales in a block (-1: it has only one).
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
}};

const Layout& layout(BlockType type) { return kLayouts[at(type)]; }

constexpr std::array<float, 16> kUnevenValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};

std::uint16_t half_bits(const Byte* at) { return static_cast<std::uint16_t>(at[0] | at[1] << 8); }
float half(const Byte* at) { return f16_to_f32(half_bits(at)); }
bool half_is_finite(const Byte* at) { return (half_bits(at) & 0x7C00) != 0x7C00; }

/// Returns bit i of the 32 bits at `high`.
int high_bit(const Byte* high, int i) { return high[i / 8] >> (i % 8) & 1; }

// Layouts of 32 weights: byte j of the nibbles holds weights j (low) and j + 16 (high).

void expand_q4_0(const Byte* b, float* out) {
  const float d = half(b);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((b[2 + j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((b[2 + j] >> 4) - 8);
  }
}

void expand_q4_1(const Byte* b, float* out) {
  const float d = half(b), m = half(b + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(b[4 + j] & 15) + m;
    out[j + 16] = d * static_cast<float>(b[4 + j] >> 4) + m;
  }
}

void expand_q5_0(const Byte* b, float* out) {
  const float d = half(b);
  const Byte *high = b + 2, *low = b + 6;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(((low[j] & 15) | high_bit(high, j) << 4) - 16);
    out[j + 16] = d * static_cast<float>((low[j] >> 4 | high_bit(high, j + 16) << 4) - 16);
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

void expand_q8_0(const Byte* b, float* out) {
  const float d = half(b);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<std::int8_t>(b[2 + j]));
}

void expand_iq4_nl(const Byte* b, float* out) {
  const float d = half(b);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * kUnevenValues[b[2 + j] & 15];
    out[j + 16] = d * kUnevenValues[b[2 + j] >> 4];
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

/// Layout: 32 bytes with the third bit of each weight (set: nothing is subtracted), 64 bytes as in
/// Q2_K, 12 bytes of 6-bit scales, d.
void expand_q3_k(const Byte* b, float* out) {
  const float d = half(b + 108);
  const Byte* scales = b + 96;
  for (int group = 0; group < 16; ++group) {
    const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
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

/// Layout: 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 signed scales, d.
void expand_q6_k(const Byte* b, float* out) {
  const float d = half(b + 208);
  for (int run = 0; run < 8; ++run) {  // 32 weights in two groups
    const Byte* low = b + run / 4 * 64 + run % 2 * 32;
    const Byte* high = b + 128 + run / 4 * 32;
    const int low_shift = run % 4 / 2 * 4, high_shift = run % 4 * 2;
    for (int j = 0; j < 32; ++j) {
      const float scale = d *
                          static_cast<float>(static_cast<std::int8_t>(b[192 + run * 2 + j / 16]));
      *out++ = scale * static_cast<float>(
                           ((low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4) - 32);
    }
  }
}

using Expand = void (*)(const Byte*, float*);

Expand expand_of(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return expand_q4_0;
    case BlockType::kQ4_1:
      return expand_q4_1;
    case BlockType::kQ5_0:
      return expand_q5_0;
    case BlockType::kQ5_1:
      return expand_q5_1;
    case BlockType::kQ8_0:
      return expand_q8_0;
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
      return expand_iq4_nl;
  }
  return expand_q4_0;  // not reached: every enumerator returned above
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

bool blocks_are_finite(BlockType type, const void* blocks, std::int64_t num_blocks) {
  const Layout& l = layout(type);
  const auto* b = static_cast<const Byte*>(blocks);
  for (std::int64_t i = 0; i < num_blocks; ++i, b += l.bytes) {
    if (!half_is_finite(b + l.scale_at) || (l.second_at >= 0 && !half_is_finite(b + l.second_at)))
      return false;
  }
  return true;
}

}  // namespace quire
