// This file holds attention over bf16 KV on AMX or AVX512-BF16. Queries and softmax weights are
// rounded to bf16, everything else is f32.
//
// Lanes (queries of one KV head) are processed in groups of 16. S[key][lane] = K * Q^T reads 16
// keys, a page, directly from the cache as the first operand. The softmax runs along the keys with
// a group in one register. Weights are transposed 32 keys at a time to be the first operand of
// O[lane][channel] += P * V. Exponents have base 2; log2(e) is folded into the query.
//
// The layout of query is [group][head_dim / 32] tiles [16 channel pairs][16 lanes][2]. A partial
// holds, per group, m [16], l [16], o [16][head_dim] f32, with channels in the order in which
// unpacking V leaves them (channel_of_column).
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention/cpu/attention_backend.h"
#include "kernels/attention/cpu/attention_bf16_dots.h"
#include "kernels/attention/cpu/attention_bf16_few.h"
#include "kernels/attention/cpu/attention_bf16_tiles.h"
#include "kernels/choice/cpu/turn_words.h"
#include "kernels/cpu/amx.h"

namespace quire::cpu {
namespace {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();

/// Returns the channel that O column c holds. Interleaving two rows of V by unpacking works on 4
/// channels at a time within blocks of 32.
constexpr std::int64_t channel_of_column(std::int64_t c) {
  const std::int64_t half = c % 32 / 16, within = c % 16;
  return c / 32 * 32 + within / 4 * 8 + half * 4 + within % 4;
}

std::int64_t num_groups(const AttentionUnit& u) { return (u.num_lanes + kGroup - 1) / kGroup; }
std::int64_t partial_floats(std::int64_t dim) { return 2 * kGroup + kGroup * dim; }

/// The work memory of one unit, in order.
struct Work {
  float* scores;                 ///< [groups][64 keys][16 lanes]
  std::uint16_t* weights;        ///< 2 tiles [16 lanes][32 keys]
  std::uint16_t* values;         ///< [2][head_dim / 16] tiles [16 key pairs][16 channels][2]
  std::uint16_t* edge_keys;      ///< [16][head_dim], copy of the last page if it is not full
  std::int32_t* lane_positions;  ///< [groups * 16]
  std::int32_t* key_positions;   ///< [64]

  static std::int64_t bytes(std::int64_t max_lanes, std::int64_t dim) {
    return max_lanes * kTileKeys * 4 + 2 * kTileElements * 2 + 2 * dim / 16 * kTileElements * 2 +
           16 * dim * 2 + max_lanes * 4 + kTileKeys * 4;
  }
  Work(void* memory, std::int64_t max_lanes, std::int64_t dim) {
    auto* p = static_cast<std::byte*>(memory);
    const auto take = [&p](std::int64_t n) {
      std::byte* at = p;
      p += n;
      return at;
    };
    scores = reinterpret_cast<float*>(take(max_lanes * kTileKeys * 4));
    weights = reinterpret_cast<std::uint16_t*>(take(2 * kTileElements * 2));
    values = reinterpret_cast<std::uint16_t*>(take(2 * dim / 16 * kTileElements * 2));
    edge_keys = reinterpret_cast<std::uint16_t*>(take(16 * dim * 2));
    lane_positions = reinterpret_cast<std::int32_t*>(take(max_lanes * 4));
    key_positions = reinterpret_cast<std::int32_t*>(take(kTileKeys * 4));
  }
};

/// Returns 2^x for x <= 0, within 4e-7 relative; exactly 1 at 0, and 0 far below (also for -inf).
QUIRE_TARGET_AVX512 inline __m512 exp2_negative(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
  const __m512 n = _mm512_roundscale_ps(x, 0);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.33335581e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.61812911e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

const std::byte* page_head(const KvView& kv, std::int64_t row, std::int64_t head) {
  return static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + head * kv.head_stride;
}

QUIRE_TARGET_AVX512 void pack_queries(const AttentionCall& call, const AttentionUnit& u,
                                      std::uint16_t* out) {
  const AttentionArgs& a = *call.args;
  const std::int64_t dim = a.kv.head_dim;
  const __m512 scale = _mm512_set1_ps(a.scale * kLog2E);
  for (std::int64_t g = 0; g < num_groups(u); ++g) {
    for (std::int64_t c = 0; c < dim; c += 32) {
      __m512i rows[16];
      for (std::int64_t i = 0; i < kGroup; ++i) {
        const std::int64_t lane = g * kGroup + i;
        rows[i] = _mm512_setzero_si512();
        if (lane >= u.num_lanes) continue;
        const float* q = a.q + (u.first_row + lane / call.group) * a.ldq +
                         (u.kv_head * call.group + lane % call.group) * dim + c;
        const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(q), scale),
                     high = _mm512_mul_ps(_mm512_loadu_ps(q + 16), scale);
        rows[i] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      }
      turn_words(rows);
      std::uint16_t* tile = out + (g * dim + c) / 32 * kTileElements;
      for (int p = 0; p < 16; ++p) _mm512_store_si512(tile + p * 32, rows[p]);
    }
  }
}

/// Returns the address of each 16 keys of the tile. A page that is not full is copied and padded
/// with zeros.
KeyBlocks find_keys(const AttentionCall& call, const AttentionUnit& u, std::int64_t begin,
                    std::int64_t keys, Work& w) {
  const KvView& kv = call.args->kv;
  KeyBlocks blocks{};
  blocks.count = (keys + 15) / 16;
  for (std::int64_t b = 0; b < blocks.count; ++b) {
    const std::byte* page = page_head(kv, begin + b * 16, u.kv_head);
    const std::int64_t valid = std::min<std::int64_t>(16, keys - b * 16);
    blocks.at[b] = page;
    blocks.stride[b] = kv.token_stride;
    if (valid == 16) continue;
    const std::size_t row_bytes = static_cast<std::size_t>(kv.head_dim) * 2;
    std::memset(w.edge_keys, 0, 16 * row_bytes);
    for (std::int64_t r = 0; r < valid; ++r)
      std::memcpy(w.edge_keys + r * kv.head_dim, page + r * kv.token_stride, row_bytes);
    blocks.at[b] = reinterpret_cast<const std::byte*>(w.edge_keys);
    blocks.stride[b] = static_cast<std::int64_t>(row_bytes);
  }
  for (std::int64_t j = 0; j < kTileKeys; ++j) {
    w.key_positions[j] = j < keys ? call.args->kv.positions[begin + j]
                                  : std::numeric_limits<std::int32_t>::max();
  }
  return blocks;
}

/// Prefetches the keys and values of a later tile, a few rows at a time.
struct Fetcher {
  const KvView* kv;
  std::int64_t head, row, end;

  void rows(std::int64_t n) {
    const std::int64_t row_bytes = kv->head_dim * 2;
    for (; n > 0 && row < end; --n, ++row) {
      const std::byte* at = page_head(*kv, row, head) + row % kPageTokens * kv->token_stride;
      for (std::int64_t i = 0; i < row_bytes; i += 64) {
        __builtin_prefetch(at + i, 0, 2);
        __builtin_prefetch(at + kv->kv_stride + i, 0, 2);
      }
    }
  }
};

/// Packs the tile's values as second operands: rows of two keys interleaved, zeros past the last
/// key.
QUIRE_TARGET_AVX512 void pack_values(const AttentionCall& call, const AttentionUnit& u,
                                     std::int64_t begin, std::int64_t keys, Fetcher& fetch,
                                     Work& w) {
  const KvView& kv = call.args->kv;
  const std::int64_t dim = kv.head_dim, pairs = (keys + 31) / 32 * 16;
  for (std::int64_t p = 0; p < pairs; ++p) {
    const std::int64_t row = begin + 2 * p;
    std::uint16_t* out = w.values + (p / 16 * (dim / 16) * kTileElements) + p % 16 * 32;
    const bool has_first = 2 * p < keys, has_second = 2 * p + 1 < keys;
    const std::byte* page = has_first ? page_head(kv, row, u.kv_head) +
                                            row % kPageTokens * kv.token_stride
                                      : nullptr;
    if (p % 2 == 0) fetch.rows(1);
    for (std::int64_t c = 0; c < dim; c += 32) {
      const __m512i a = has_first ? _mm512_loadu_si512(page + kv.kv_stride + c * 2)
                                  : _mm512_setzero_si512();
      const __m512i b = has_second
                            ? _mm512_loadu_si512(page + kv.kv_stride + kv.token_stride + c * 2)
                            : _mm512_setzero_si512();
      _mm512_store_si512(out + c / 16 * kTileElements, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(out + (c / 16 + 1) * kTileElements, _mm512_unpackhi_epi16(a, b));
    }
  }
}

/// Computes the softmax of one group over the tile: writes weights as first operands and updates m
/// and l. Returns false if m did not change for any lane, else writes alpha.
QUIRE_TARGET_AVX512 bool softmax_group(const float* scores, std::int64_t keys, bool all_visible,
                                       const std::int32_t* key_positions,
                                       const std::int32_t* lane_positions, float* m, float* l,
                                       float* alpha, Fetcher& fetch, std::uint16_t* weights) {
  const __m512 none = _mm512_set1_ps(kEmptyMax);
  const __m512i lanes = _mm512_load_si512(lane_positions);
  const std::int64_t padded = (keys + 31) / 32 * 32;
  __m512 largest = none;
  if (all_visible) {
    for (std::int64_t j = 0; j < keys; ++j)
      largest = _mm512_max_ps(largest, _mm512_load_ps(scores + j * kGroup));
  } else {
    for (std::int64_t j = 0; j < keys; ++j) {
      const __mmask16 visible = _mm512_cmple_epi32_mask(_mm512_set1_epi32(key_positions[j]), lanes);
      largest = _mm512_mask_max_ps(largest, visible, largest, _mm512_load_ps(scores + j * kGroup));
    }
  }
  const __m512 m_old = _mm512_load_ps(m), m_new = _mm512_max_ps(m_old, largest);
  const __m512 safe = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(m_new, none, _CMP_EQ_OQ), m_new,
                                           _mm512_setzero_ps());
  const __m512 a = exp2_negative(_mm512_sub_ps(m_old, safe));
  __m512 sum = _mm512_setzero_ps();
  const __m512i half = _mm512_set1_epi32(0x8000),
                high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (std::int64_t first = 0; first < padded; first += 32) {
    __m512i words[16];
    fetch.rows(4);
#pragma GCC unroll 4
    for (std::int64_t p = 0; p < 16; ++p) {
      const std::int64_t j = first + 2 * p;
      if (p % 2 == 0) fetch.rows(1);
      __mmask16 see0 = 0xffff, see1 = 0xffff;
      if (!all_visible || j + 1 >= keys) {
        see0 = j < keys ? _mm512_cmple_epi32_mask(_mm512_set1_epi32(key_positions[j]), lanes)
                        : __mmask16{0};
        see1 = j + 1 < keys
                   ? _mm512_cmple_epi32_mask(_mm512_set1_epi32(key_positions[j + 1]), lanes)
                   : __mmask16{0};
      }
      const __m512 p0 = _mm512_maskz_mov_ps(
          see0, exp2_negative(_mm512_sub_ps(_mm512_load_ps(scores + j * kGroup), safe)));
      const __m512 p1 = _mm512_maskz_mov_ps(
          see1, exp2_negative(_mm512_sub_ps(_mm512_load_ps(scores + (j + 1) * kGroup), safe)));
      sum = _mm512_add_ps(sum, p0);
      sum = _mm512_add_ps(sum, p1);
      const __m512i b0 = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(p0), half), 16);
      const __m512i b1 = _mm512_add_epi32(_mm512_castps_si512(p1), half);
      words[p] = _mm512_ternarylogic_epi32(b0, b1, high, 0xf8);  // b0 | (b1 & high)
    }
    turn_words(words);
    for (int i = 0; i < 16; ++i)
      _mm512_store_si512(weights + first / 32 * kTileElements + i * 32, words[i]);
  }
  _mm512_store_ps(m, m_new);
  _mm512_store_ps(l, _mm512_fmadd_ps(_mm512_load_ps(l), a, sum));
  _mm512_store_ps(alpha, a);
  return _mm512_cmp_ps_mask(a, _mm512_set1_ps(1.0f), _CMP_NEQ_OQ) != 0;
}

QUIRE_TARGET_AVX512 void scale_rows(float* o, std::int64_t dim, const float* alpha) {
  for (std::int64_t i = 0; i < kGroup; ++i) {
    const __m512 a = _mm512_set1_ps(alpha[i]);
    for (std::int64_t c = 0; c < dim; c += 16)
      _mm512_store_ps(o + i * dim + c, _mm512_mul_ps(_mm512_load_ps(o + i * dim + c), a));
  }
}

/// 2^x as a function object, which can be inlined.
struct Exp2 {
  QUIRE_TARGET_AVX512 __m512 operator()(__m512 x) const { return exp2_negative(x); }
};

/// Implements chunk() for a unit with few lanes. The transposed keys of a tile use the memory of
/// the values, which has the same size.
QUIRE_TARGET_AVX512 void few_chunk(const AttentionCall& call, const AttentionUnit& u,
                                   const std::uint16_t* query, std::int64_t begin, std::int64_t end,
                                   Work& w, float* part) {
  const std::int64_t dim = call.args->kv.head_dim;
  alignas(64) float alpha[kGroup];
  float *m = part, *l = m + kGroup, *o = l + kGroup;
  Bf16Rows tiles[2];
  tiles[0].find(call, u.kv_head, begin, end);
  for (std::int64_t tile = begin, at = 0; tile < end; tile += kTileKeys, at ^= 1) {
    const Bf16Rows& rows = tiles[at];
    const Bf16Rows* next = nullptr;
    if (tile + kTileKeys < end) {
      tiles[at ^ 1].find(call, u.kv_head, tile + kTileKeys, end);
      next = &tiles[at ^ 1];
    }
    if (call.tile_min[tile / kTileKeys] > u.max_position) continue;
    turn_keys(rows.k, next == nullptr ? nullptr : next->k, dim, w.values);
    const bool all_visible = call.tile_max[tile / kTileKeys] <= u.min_position;
    for (std::int64_t i = 0; i < u.num_lanes; i += kFewBf16Lanes) {
      score_transposed_keys<kFewBf16Lanes>(w.values, query + i * 2, 32, dim, w.scores, kTileKeys);
      // Padding lanes have the lowest position and see nothing.
      few_softmax(rows, all_visible && i + kFewBf16Lanes <= u.num_lanes, w.lane_positions + i,
                  w.scores, m + i, l + i, alpha, w.weights, Exp2{});
      std::int64_t c = 0;
      for (; c + 64 <= dim; c += 64)
        few_values<4>(rows, i == 0 ? next : nullptr, w.weights, alpha, dim, c, o + i * dim);
      for (; c < dim; c += 32)
        few_values<2>(rows, i == 0 ? next : nullptr, w.weights, alpha, dim, c, o + i * dim);
    }
  }
}

/// Arithmetic computes the products of a tile (attention_bf16_blocks.h).
template <class Arithmetic>
class Bf16Backend final : public AttentionBackend {
 public:
  std::int64_t query_bytes(const AttentionCall& c) const override {
    return c.max_lanes * c.args->kv.head_dim * 2;
  }
  std::int64_t partial_bytes(const AttentionCall& c) const override {
    return c.max_lanes / kGroup * partial_floats(c.args->kv.head_dim) *
           static_cast<std::int64_t>(sizeof(float));
  }
  std::int64_t work_bytes(const AttentionCall& c) const override {
    return Work::bytes(c.max_lanes, c.args->kv.head_dim);
  }

  bool reads_listed(std::int64_t num_lanes) const override {
    return num_lanes <= Arithmetic::kFewLanes;
  }

  void pack(const AttentionCall& call, const AttentionUnit& u, void* query) const override {
    pack_queries(call, u, static_cast<std::uint16_t*>(query));
  }

  void chunk(const AttentionCall& call, const AttentionUnit& u, const void* query,
             std::int64_t begin, std::int64_t end, void* work, void* partial) const override {
    const std::int64_t dim = call.args->kv.head_dim, groups = num_groups(u);
    auto* part = static_cast<float*>(partial);
    for (std::int64_t g = 0; g < groups; ++g) {
      float* m = part + g * partial_floats(dim);
      std::fill(m, m + kGroup, kEmptyMax);
      std::fill(m + kGroup, m + partial_floats(dim), 0.0f);
    }
    if (begin >= end) return;
    Work w(work, call.max_lanes, dim);
    for (std::int64_t i = 0; i < groups * kGroup; ++i) {
      w.lane_positions[i] = i < u.num_lanes
                                ? call.args->query_positions[u.first_row + i / call.group]
                                : std::numeric_limits<std::int32_t>::min();
    }
    const auto* q = static_cast<const std::uint16_t*>(query);
    if (u.num_lanes <= Arithmetic::kFewLanes) return few_chunk(call, u, q, begin, end, w, part);
    [[maybe_unused]] const typename Arithmetic::Scope scope;
    for (std::int64_t tile = begin; tile < end; tile += kTileKeys) {
      if (call.tile_min[tile / kTileKeys] > u.max_position) continue;
      one_tile(call, u, q, tile, std::min(kTileKeys, end - tile), w, part);
    }
  }

  void merge(const AttentionCall& call, const AttentionUnit& u, void* into,
             const void* from) const override {
    for (std::int64_t g = 0; g < num_groups(u); ++g) {
      const std::int64_t at = g * partial_floats(call.args->kv.head_dim);
      merge_group(static_cast<float*>(into) + at, static_cast<const float*>(from) + at,
                  call.args->kv.head_dim);
    }
  }

  void finish(const AttentionCall& call, const AttentionUnit& u,
              const void* partial) const override {
    const AttentionArgs& a = *call.args;
    const std::int64_t dim = a.kv.head_dim;
    for (std::int64_t lane = 0; lane < u.num_lanes; ++lane) {
      const float* part = static_cast<const float*>(partial) + lane / kGroup * partial_floats(dim);
      const float m = part[lane % kGroup], l = part[kGroup + lane % kGroup];
      const float* o = part + 2 * kGroup + lane % kGroup * dim;
      const std::int64_t row = u.first_row + lane / call.group,
                         head = u.kv_head * call.group + lane % call.group;
      const bool empty = m == kEmptyMax;
      const float inverse = empty ? 0.0f : 1.0f / l;
      float* out = a.out + row * a.ldo + head * dim;
      for (std::int64_t c = 0; c < dim; ++c) out[channel_of_column(c)] = o[c] * inverse;
      if (a.lse != nullptr) a.lse[row * a.num_heads + head] = empty ? m : (m + std::log2(l)) * kLn2;
    }
  }

 private:
  static void one_tile(const AttentionCall& call, const AttentionUnit& u,
                       const std::uint16_t* query, std::int64_t begin, std::int64_t keys, Work& w,
                       float* part) {
    const std::int64_t dim = call.args->kv.head_dim, groups = num_groups(u),
                       query_step = dim / 32 * kTileElements;
    const KeyBlocks blocks = find_keys(call, u, begin, keys, w);
    std::int64_t g = 0;
    if (blocks.count == kKeyBlocks) {
      for (; g + 2 <= groups; g += 2) {
        for (std::int64_t b = 0; b < kKeyBlocks; b += 2)
          Arithmetic::score_two_groups(blocks, b, query + g * query_step, dim,
                                       w.scores + g * kTileKeys * kGroup);
      }
    }
    // A single group streams the keys once and is bound by memory. With more groups, tiles are
    // reused often enough to hide the latency.
    Fetcher fetch{&call.args->kv, u.kv_head, begin + kTileKeys,
                  groups == 1 ? std::min(begin + 2 * kTileKeys, call.args->kv.num_rows) : 0};
    fetch.rows(16);
    for (; g < groups; ++g)
      Arithmetic::score_group(blocks, query + g * query_step, dim,
                              w.scores + g * kTileKeys * kGroup);
    pack_values(call, u, begin, keys, fetch, w);
    const bool all_visible = call.tile_max[begin / kTileKeys] <= u.min_position;
    for (g = 0; g < groups; ++g) {
      float *m = part + g * partial_floats(dim), *o = m + 2 * kGroup;
      alignas(64) float alpha[kGroup];
      // Padding lanes have the lowest position: only masking keeps their zeros out of m.
      const bool plain = all_visible && (g + 1) * kGroup <= u.num_lanes;
      const bool moved = softmax_group(w.scores + g * kTileKeys * kGroup, keys, plain,
                                       w.key_positions, w.lane_positions + g * kGroup, m,
                                       m + kGroup, alpha, fetch, w.weights);
      if (moved) scale_rows(o, dim, alpha);
      Arithmetic::weigh_group(w.weights, w.values, (keys + 31) / 32,
                              std::min(kGroup, u.num_lanes - g * kGroup), dim, o);
    }
  }

  QUIRE_TARGET_AVX512 static void merge_group(float* into, const float* from, std::int64_t dim) {
    const __m512 none = _mm512_set1_ps(kEmptyMax);
    const __m512 m1 = _mm512_load_ps(into), m2 = _mm512_load_ps(from), m = _mm512_max_ps(m1, m2);
    const __m512 safe = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(m, none, _CMP_EQ_OQ), m,
                                             _mm512_setzero_ps());
    alignas(64) float w1[kGroup], w2[kGroup];
    _mm512_store_ps(w1, exp2_negative(_mm512_sub_ps(m1, safe)));
    _mm512_store_ps(w2, exp2_negative(_mm512_sub_ps(m2, safe)));
    _mm512_store_ps(into, m);
    const __m512 l1 = _mm512_load_ps(into + kGroup), l2 = _mm512_load_ps(from + kGroup);
    _mm512_store_ps(into + kGroup,
                    _mm512_fmadd_ps(_mm512_load_ps(w1), l1, _mm512_mul_ps(_mm512_load_ps(w2), l2)));
    for (std::int64_t i = 0; i < kGroup; ++i) {
      const __m512 a = _mm512_set1_ps(w1[i]), b = _mm512_set1_ps(w2[i]);
      float* o1 = into + 2 * kGroup + i * dim;
      const float* o2 = from + 2 * kGroup + i * dim;
      for (std::int64_t c = 0; c < dim; c += 16) {
        _mm512_store_ps(o1 + c, _mm512_fmadd_ps(a, _mm512_load_ps(o1 + c),
                                                _mm512_mul_ps(b, _mm512_load_ps(o2 + c))));
      }
    }
  }
};

}  // namespace

const AttentionBackend& attention_amx() {
  static const Bf16Backend<Bf16Tiles> backend;
  return backend;
}

const AttentionBackend& attention_dot() {
  static const Bf16Backend<Bf16Dots> backend;
  return backend;
}

}  // namespace quire::cpu
