// Attention over rows of documents and questions (mixture.Batch), forward and backward, for cores with AVX-512 BF16.
//
// A document's token sees the documents up to itself; a question's token sees all documents of its row and its own question up to
// itself; filling sees nothing and gives zeros. Tiled as in FlashAttention-2 (Dao 2023), with queries along the vector lanes: a tile
// of scores is [keys, queries], so that the softmax needs no sum across lanes.
#include <immintrin.h>
#include <torch/extension.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using bf16 = uint16_t;
constexpr int kTile = 64;       // queries and keys of a tile
constexpr int kHead = 64;       // head dimension
constexpr int kLanes = 16;      // floats of a vector
constexpr float kHidden = -1e30f;
constexpr float kLog2E = 1.44269504088896341f;

template <typename T, size_t N>
struct alignas(64) Buffer {
  T at[N];
};
using FloatTile = Buffer<float, kTile * kTile>;
using HalfTile = Buffer<bf16, kTile * kTile>;  // rows of 64, or pairs: [32][64][2]

void transpose(__m512i r[16]) {  // 16 x 16 words
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

__m512 exp2(__m512 x) {  // relative error under 3e-6, enough before rounding to bf16
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(1.3534167e-3f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.6180305e-3f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5503294e-2f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022648e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, whole);
}

__m512i halves(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Lane i of the result: (even's i, odd's i), what a product's second factor wants.
__m512i pairs(__m512 even, __m512 odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

template <int Rows, bool Add>
void product_rows(const bf16* a, ptrdiff_t stride, const bf16* b, float* c, int depth) {
  __m512 sum[Rows][4];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < 4; ++v) sum[r][v] = Add ? _mm512_loadu_ps(c + r * kTile + v * kLanes) : _mm512_setzero_ps();
  for (int k = 0; k < depth; ++k) {
    __m512bh right[4];
    for (int v = 0; v < 4; ++v) right[v] = (__m512bh)_mm512_loadu_si512(b + k * 2 * kTile + v * 32);
    for (int r = 0; r < Rows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * stride + 2 * k, sizeof pair);
      const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < 4; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < 4; ++v) _mm512_storeu_ps(c + r * kTile + v * kLanes, sum[r][v]);
}

// c [rows, 64] (+)= a [rows, 2 * depth] (rows `stride` apart) times b, pairs [depth][64][2].
template <bool Add>
void product(const bf16* a, ptrdiff_t stride, int rows, const bf16* b, int depth, float* c) {
  int r = 0;
  for (; r + 6 <= rows; r += 6) product_rows<6, Add>(a + r * stride, stride, b, c + r * kTile, depth);
  for (; r + 2 <= rows; r += 2) product_rows<2, Add>(a + r * stride, stride, b, c + r * kTile, depth);
  if (r < rows) product_rows<1, Add>(a + r * stride, stride, b, c + r * kTile, depth);
}

// rows [count][64] bf16, `stride` apart -> pairs of columns [32][64 rows][2], absent rows zero.
void pack_columns(const bf16* rows, ptrdiff_t stride, int count, bf16* out) {
  for (int first = 0; first < kTile; first += 16)
    for (int half = 0; half < 2; ++half) {
      __m512i r[16];
      for (int i = 0; i < 16; ++i)
        r[i] = first + i < count ? _mm512_loadu_si512(rows + (first + i) * stride + half * 32) : _mm512_setzero_si512();
      transpose(r);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + ((half * 16 + i) * kTile + first) * 2, r[i]);
    }
}

// rows [count][64] -> pairs of rows [32][64 columns][2], absent rows zero.
void pack_rows(const bf16* rows, ptrdiff_t stride, int count, bf16* out) {
  for (int k = 0; k < kTile; k += 2)
    for (int v = 0; v < 4; ++v) {
      const __m256i none = _mm256_setzero_si256();
      const __m256i even = k < count ? _mm256_loadu_si256((const __m256i*)(rows + k * stride + v * 16)) : none;
      const __m256i odd = k + 1 < count ? _mm256_loadu_si256((const __m256i*)(rows + (k + 1) * stride + v * 16)) : none;
      const __m512i word = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
      _mm512_storeu_si512(out + (k / 2 * kTile + v * 16) * 2, word);
    }
}

// rows [count][64] -> [64][width], width >= count rounded up to 16.
void transpose_rows(const bf16* rows, ptrdiff_t stride, int count, bf16* out, ptrdiff_t width) {
  for (int first = 0; first < count; first += 16)
    for (int half = 0; half < 2; ++half) {
      __m512i r[16];
      for (int i = 0; i < 16; ++i)
        r[i] = first + i < count ? _mm512_loadu_si512(rows + (first + i) * stride + half * 32) : _mm512_setzero_si512();
      transpose(r);
      for (int i = 0; i < 16; ++i) {
        bf16* row = out + (half * 32 + 2 * i) * width + first;
        _mm256_storeu_si256((__m256i*)row, _mm512_cvtepi32_epi16(r[i]));
        _mm256_storeu_si256((__m256i*)(row + width), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[i], 16)));
      }
    }
}

// columns [64][64 queries] float times factor[query] -> rows [count][64] bf16, `stride` apart.
void write_rows(const float* columns, const float* factor, int count, bf16* rows, ptrdiff_t stride) {
  for (int first = 0; first < count; first += 16) {
    const __m512 scale = _mm512_loadu_ps(factor + first);
    __m512i parts[4][16];
    for (int v = 0; v < 4; ++v) {
      for (int i = 0; i < 16; ++i)
        parts[v][i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(columns + (v * 16 + i) * kTile + first), scale));
      transpose(parts[v]);
    }
    for (int i = 0; i < 16 && first + i < count; ++i)
      for (int v = 0; v < 4; v += 2)
        _mm512_storeu_si512(rows + (first + i) * stride + v * 16,
                            halves(_mm512_castsi512_ps(parts[v][i]), _mm512_castsi512_ps(parts[v + 1][i])));
  }
}

struct Keys {
  int first, count;
  bool masked;  // by causality, and by question where the queries are a question's
};

// One row of a batch: which keys a tile of queries sees.
struct Row {
  int length, split, documents;  // tokens; first position of the questions; tokens of the documents
  const int64_t* segments;       // [length - split]
  int asked = 0;                 // tokens of the questions

  std::vector<int> tiles() const {  // first queries
    std::vector<int> first;
    for (int q = 0; q < documents; q += kTile) first.push_back(q);
    for (int q = 0; q < asked; q += kTile) first.push_back(split + q);
    return first;
  }
  int queries(int first) const { return std::min(kTile, (first < split ? documents : split + asked) - first); }
  std::vector<Keys> keys(int first) const {
    const bool question = first >= split;
    const int end = question ? documents : std::min(documents, first + kTile);
    std::vector<Keys> found;
    for (int k = 0; k < end; k += kTile) found.push_back({k, std::min(kTile, end - k), !question && k + kTile > first});
    if (!question) return found;
    int start = first - split;
    while (start > 0 && segments[start - 1] == segments[first - split]) --start;
    const int last = first + queries(first);
    for (int k = split + start; k < last; k += kTile) found.push_back({k, std::min(kTile, last - k), true});
    return found;
  }
  // Bit q: key `key` is hidden from query first + q.
  void hidden(int first, int key, uint64_t& bits) const {
    const int behind = std::clamp(key - first, 0, kTile);
    bits = behind == kTile ? ~0ull : (1ull << behind) - 1;
    if (first < split) return;
    const int64_t segment = segments[key - split];
    for (int q = behind; q < queries(first); ++q)
      if (segments[first + q - split] != segment) bits |= 1ull << q;
  }
};

struct Shape {
  int rows, length, heads, kv_heads, split;
  ptrdiff_t query_stride() const { return ptrdiff_t(heads) * kHead; }
  ptrdiff_t key_stride() const { return ptrdiff_t(kv_heads) * kHead; }
  int width() const { return (length + kTile) / 16 * 16 + 64; }
};

Row row_of(const Shape& s, int row, const int64_t* documents, const int64_t* segments) {
  Row r{s.length, s.split, int(documents[row]), segments + ptrdiff_t(row) * (s.length - s.split)};
  while (r.asked < s.length - s.split && r.segments[r.asked] >= 0) ++r.asked;
  return r;
}

void mask(const Row& row, int first, const Keys& keys, float* scores) {
  for (int k = 0; k < keys.count; ++k) {
    uint64_t bits;
    row.hidden(first, keys.first + k, bits);
    for (int v = 0; bits && v < 4; ++v) {
      float* at = scores + k * kTile + v * kLanes;
      _mm512_mask_storeu_ps(at, __mmask16(bits >> (16 * v)), _mm512_set1_ps(kHidden));
    }
  }
}

void forward_tile(const Row& row, const Shape& s, int first, const bf16* q, const bf16* k, const bf16* v_columns, bf16* out,
                  float* lse) {
  thread_local HalfTile query, weights;
  thread_local FloatTile scores, sums;
  const int count = row.queries(first);
  const float factor = kLog2E / std::sqrt(float(kHead));
  pack_columns(q + first * s.query_stride(), s.query_stride(), count, query.at);
  std::fill_n(sums.at, kTile * kTile, 0.0f);
  Buffer<float, kTile> top, total;
  std::fill_n(top.at, kTile, kHidden);
  std::fill_n(total.at, kTile, 0.0f);
  for (const Keys& keys : row.keys(first)) {
    product<false>(k + keys.first * s.key_stride(), s.key_stride(), keys.count, query.at, kHead / 2, scores.at);
    if (keys.masked) mask(row, first, keys, scores.at);
    if (keys.count % 2) std::fill_n(scores.at + keys.count * kTile, kTile, kHidden);
    bool grew = false;
    Buffer<float, kTile> shrink;
    for (int v = 0; v < 4; ++v) {
      __m512 most = _mm512_set1_ps(kHidden);
      for (int i = 0; i < keys.count; ++i) most = _mm512_max_ps(most, _mm512_load_ps(scores.at + i * kTile + v * kLanes));
      const __m512 old = _mm512_load_ps(top.at + v * kLanes);
      const __m512 now = _mm512_max_ps(old, _mm512_mul_ps(most, _mm512_set1_ps(factor)));
      const __m512 less = exp2(_mm512_sub_ps(old, now));
      grew |= _mm512_cmp_ps_mask(now, old, _CMP_GT_OQ) != 0;
      _mm512_store_ps(top.at + v * kLanes, now);
      _mm512_store_ps(shrink.at + v * kLanes, less);
      __m512 sum = _mm512_mul_ps(_mm512_load_ps(total.at + v * kLanes), less);
      for (int i = 0; i < keys.count; i += 2) {
        __m512 p[2];
        for (int j = 0; j < 2; ++j) {
          p[j] = exp2(_mm512_fmsub_ps(_mm512_load_ps(scores.at + (i + j) * kTile + v * kLanes), _mm512_set1_ps(factor), now));
          sum = _mm512_add_ps(sum, p[j]);
        }
        _mm512_store_si512(weights.at + (i / 2 * kTile + v * kLanes) * 2, pairs(p[0], p[1]));
      }
      _mm512_store_ps(total.at + v * kLanes, sum);
    }
    if (grew)
      for (int i = 0; i < kHead; ++i)
        for (int v = 0; v < 4; ++v) {
          float* at = sums.at + i * kTile + v * kLanes;
          _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), _mm512_load_ps(shrink.at + v * kLanes)));
        }
    product<true>(v_columns + keys.first, s.width(), kHead, weights.at, (keys.count + 1) / 2, sums.at);
  }
  for (int i = 0; i < kTile; ++i) {
    if (i < count) lse[first + i] = top.at[i] + std::log2(total.at[i]);
    total.at[i] = 1.0f / total.at[i];
  }
  write_rows(sums.at, total.at, count, out + first * s.query_stride(), s.query_stride());
}

// Adds to dk and dv [length, 64] float; writes dq.
void backward_tile(const Row& row, const Shape& s, int first, const bf16* q, const bf16* k, const bf16* v, const bf16* k_columns,
                   const bf16* out, const bf16* dout, const float* lse, bf16* dq, float* dk, float* dv) {
  thread_local HalfTile query_columns, query_rows, dout_columns, dout_rows, weights, change, change_pairs;
  thread_local FloatTile scores, dweights, dquery;
  const int count = row.queries(first);
  const ptrdiff_t stride = s.query_stride();
  const float scale = 1.0f / std::sqrt(float(kHead)), factor = kLog2E * scale;
  const bf16 *q_rows = q + first * stride, *dout_at = dout + first * stride, *out_at = out + first * stride;
  pack_columns(q_rows, stride, count, query_columns.at);
  pack_rows(q_rows, stride, count, query_rows.at);
  pack_columns(dout_at, stride, count, dout_columns.at);
  pack_rows(dout_at, stride, count, dout_rows.at);
  Buffer<float, kTile> lift, delta, ones;
  for (int i = 0; i < kTile; ++i) {
    lift.at[i] = i < count ? lse[first + i] : -kHidden;
    delta.at[i] = 0.0f;
    ones.at[i] = 1.0f;
    if (i >= count) continue;
    __m512 sum = _mm512_setzero_ps();
    for (int j = 0; j < kHead; j += 32)
      sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(out_at + i * stride + j),
                             (__m512bh)_mm512_loadu_si512(dout_at + i * stride + j));
    delta.at[i] = _mm512_reduce_add_ps(sum);
  }
  std::fill_n(dquery.at, kTile * kTile, 0.0f);
  const int depth = (count + 1) / 2;
  for (const Keys& keys : row.keys(first)) {
    const ptrdiff_t key = keys.first * s.key_stride();
    product<false>(k + key, s.key_stride(), keys.count, query_columns.at, kHead / 2, scores.at);
    if (keys.masked) mask(row, first, keys, scores.at);
    product<false>(v + key, s.key_stride(), keys.count, dout_columns.at, kHead / 2, dweights.at);
    if (keys.count % 2) {
      std::fill_n(scores.at + keys.count * kTile, kTile, kHidden);
      std::fill_n(dweights.at + keys.count * kTile, kTile, 0.0f);
    }
    for (int i = 0; i < keys.count; i += 2)
      for (int pair = 0; pair < 2; ++pair) {
        __m512 p[2][2], d[2][2];  // [key][vector]
        for (int j = 0; j < 2; ++j)
          for (int w = 0; w < 2; ++w) {
            const int lane = (pair * 2 + w) * kLanes, at = (i + j) * kTile + lane;
            p[j][w] = exp2(_mm512_fmsub_ps(_mm512_load_ps(scores.at + at), _mm512_set1_ps(factor), _mm512_load_ps(lift.at + lane)));
            d[j][w] = _mm512_mul_ps(_mm512_mul_ps(p[j][w], _mm512_set1_ps(scale)),
                                    _mm512_sub_ps(_mm512_load_ps(dweights.at + at), _mm512_load_ps(delta.at + lane)));
          }
        for (int j = 0; j < 2; ++j) {
          _mm512_store_si512(weights.at + (i + j) * kTile + pair * 32, halves(p[j][0], p[j][1]));
          _mm512_store_si512(change.at + (i + j) * kTile + pair * 32, halves(d[j][0], d[j][1]));
        }
        for (int w = 0; w < 2; ++w)
          _mm512_store_si512(change_pairs.at + (i / 2 * kTile + (pair * 2 + w) * kLanes) * 2, pairs(d[0][w], d[1][w]));
      }
    product<true>(weights.at, kTile, keys.count, dout_rows.at, depth, dv + keys.first * kHead);
    product<true>(change.at, kTile, keys.count, query_rows.at, depth, dk + keys.first * kHead);
    product<true>(k_columns + keys.first, s.width(), kHead, change_pairs.at, (keys.count + 1) / 2, dquery.at);
  }
  write_rows(dquery.at, ones.at, count, dq + first * stride, stride);
}

void write_keys(const float* from, int count, bf16* to, ptrdiff_t stride) {
  for (int i = 0; i < count; ++i)
    for (int j = 0; j < kHead; j += 32)
      _mm512_storeu_si512(to + i * stride + j, halves(_mm512_loadu_ps(from + i * kHead + j), _mm512_loadu_ps(from + i * kHead + j + 16)));
}

const bf16* data(const torch::Tensor& t) { return reinterpret_cast<const bf16*>(t.data_ptr<at::BFloat16>()); }
bf16* mutable_data(const torch::Tensor& t) { return reinterpret_cast<bf16*>(t.data_ptr<at::BFloat16>()); }

Shape check(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& segments,
            const torch::Tensor& documents) {
  for (const auto& t : {q, k, v})
    TORCH_CHECK(t.dim() == 4 && t.size(3) == kHead && t.scalar_type() == at::kBFloat16 && t.is_contiguous(),
                "q, k, v: contiguous bf16 [rows, length, heads, 64]");
  TORCH_CHECK(segments.is_contiguous() && segments.scalar_type() == at::kLong && documents.is_contiguous() &&
                  documents.scalar_type() == at::kLong, "segments, documents: contiguous int64");
  TORCH_CHECK(k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(2) % k.size(2) == 0 &&
                  segments.size(0) == q.size(0) && documents.size(0) == q.size(0) && segments.size(1) <= q.size(1),
              "q, k, v, segments, documents: sizes do not belong together");
  const int length = int(q.size(1));
  return {int(q.size(0)), length, int(q.size(2)), int(k.size(2)), length - int(segments.size(1))};
}

}  // namespace

// q [rows, length, heads, 64], k and v [rows, length, kv_heads, 64] bf16; segments [rows, room], documents [rows] int64.
// Returns the attended values, as q, and the log2-sum-exp of scores [rows, heads, length].
std::vector<torch::Tensor> forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor segments, torch::Tensor documents) {
  const Shape s = check(q, k, v, segments, documents);
  auto out = torch::zeros_like(q);
  auto lse = torch::zeros({s.rows, s.heads, s.length}, torch::kFloat);
  const int64_t* segment = segments.data_ptr<int64_t>();
  const int64_t* document = documents.data_ptr<int64_t>();
  float* all_lse = lse.data_ptr<float>();
  at::parallel_for(0, int64_t(s.rows) * s.kv_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<bf16> columns(size_t(kHead) * s.width());
    for (int64_t item = begin; item < end; ++item) {
      const int r = int(item / s.kv_heads), kv = int(item % s.kv_heads), group = s.heads / s.kv_heads;
      const Row row = row_of(s, r, document, segment);
      const ptrdiff_t keys = ptrdiff_t(r) * s.length * s.key_stride() + kv * kHead;
      transpose_rows(data(v) + keys, s.key_stride(), s.length, columns.data(), s.width());
      for (int h = kv * group; h < (kv + 1) * group; ++h) {
        const ptrdiff_t at = ptrdiff_t(r) * s.length * s.query_stride() + h * kHead;
        float* head_lse = all_lse + (ptrdiff_t(r) * s.heads + h) * s.length;
        for (int first : row.tiles())
          forward_tile(row, s, first, data(q) + at, data(k) + keys, columns.data(), mutable_data(out) + at, head_lse);
      }
    }
  });
  return {out, lse};
}

// The gradients of q, k and v.
std::vector<torch::Tensor> backward(torch::Tensor dout, torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor out,
                                    torch::Tensor lse, torch::Tensor segments, torch::Tensor documents) {
  const Shape s = check(q, k, v, segments, documents);
  TORCH_CHECK(dout.sizes() == q.sizes() && dout.is_contiguous() && dout.scalar_type() == at::kBFloat16, "dout: as q");
  auto dq = torch::zeros_like(q), dk = torch::empty_like(k), dv = torch::empty_like(v);
  const int64_t* segment = segments.data_ptr<int64_t>();
  const int64_t* document = documents.data_ptr<int64_t>();
  const float* all_lse = lse.data_ptr<float>();
  at::parallel_for(0, int64_t(s.rows) * s.kv_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<bf16> columns(size_t(kHead) * s.width());
    std::vector<float> key_sums(size_t(s.length) * kHead), value_sums(key_sums.size());
    for (int64_t item = begin; item < end; ++item) {
      const int r = int(item / s.kv_heads), kv = int(item % s.kv_heads), group = s.heads / s.kv_heads;
      const Row row = row_of(s, r, document, segment);
      const ptrdiff_t keys = ptrdiff_t(r) * s.length * s.key_stride() + kv * kHead;
      transpose_rows(data(k) + keys, s.key_stride(), s.length, columns.data(), s.width());
      std::fill(key_sums.begin(), key_sums.end(), 0.0f);
      std::fill(value_sums.begin(), value_sums.end(), 0.0f);
      for (int h = kv * group; h < (kv + 1) * group; ++h) {
        const ptrdiff_t at = ptrdiff_t(r) * s.length * s.query_stride() + h * kHead;
        const float* head_lse = all_lse + (ptrdiff_t(r) * s.heads + h) * s.length;
        for (int first : row.tiles())
          backward_tile(row, s, first, data(q) + at, data(k) + keys, data(v) + keys, columns.data(), data(out) + at, data(dout) + at,
                        head_lse, mutable_data(dq) + at, key_sums.data(), value_sums.data());
      }
      write_keys(key_sums.data(), s.length, mutable_data(dk) + keys, s.key_stride());
      write_keys(value_sums.data(), s.length, mutable_data(dv) + keys, s.key_stride());
    }
  });
  return {dq, dk, dv};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward);
  m.def("backward", &backward);
}
