// This file holds products of few queries with listed bf16 keys on AVX512-BF16. A tile of keys is
// transposed, so that no sum crosses lanes.
#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "kernels/choice/cpu/row_products_rows.h"
#include "kernels/choice/cpu/turned_keys_bf16.h"
#include "kernels/cpu/cpu_features.h"

namespace quire::cpu {
namespace {

constexpr int kQueries = 4;  ///< queries multiplied at once
constexpr std::int64_t kMostDim = 256;

/// Packs queries [first, first + kQueries), scaled and rounded, to [dim / 2][kQueries][2] with
/// zeros past the last one.
void pack(const RowScoresArgs& a, std::int64_t first, std::uint16_t* out) {
  for (std::int64_t i = 0; i < kQueries; ++i) {
    for (std::int64_t c = 0; c < a.keys.kv.head_dim; ++c) {
      out[(c / 2 * kQueries + i) * 2 + c % 2] = first + i < a.num_queries
                                                    ? f32_to_bf16(a.q[(first + i) * a.ldq + c] *
                                                                  a.scale)
                                                    : std::uint16_t{0};
    }
  }
}

/// Writes the addresses of a tile's keys; those past the last row repeat it.
void find(const ChosenRows& c, std::int64_t begin, std::int64_t end, const std::byte** keys) {
  for (std::int64_t j = 0; j < kTransposedTileKeys; ++j) {
    const std::int64_t at = std::min(begin + j, end - 1);
    const auto row = static_cast<std::uint64_t>(c.rows != nullptr ? c.rows[at] : c.first_row + at);
    keys[j] = static_cast<const std::byte*>(c.kv.pages[row / kPageTokens]) +
              c.kv_head * c.kv.head_stride +
              static_cast<std::int64_t>(row % kPageTokens) * c.kv.token_stride;
  }
}

}  // namespace

bool multiplies_rounded(const KvView& kv) {
  return kv.dtype == DType::kBF16 && kv.head_dim % 32 == 0 && isa() >= Isa::kAvx512Bf16;
}

void row_scores_rounded(const RowScoresArgs& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = a.keys.kv.head_dim;
  alignas(64) std::uint16_t queries[kMostDim * kQueries], keys[kMostDim * kTransposedTileKeys];
  alignas(64) float scores[kQueries * kTransposedTileKeys];
  const std::byte* rows[2][kTransposedTileKeys];
  for (std::int64_t first = 0; first < a.num_queries; first += kQueries) {
    pack(a, first, queries);
    const std::int64_t lanes = std::min<std::int64_t>(kQueries, a.num_queries - first);
    find(a.keys, begin, end, rows[0]);
    for (std::int64_t tile = begin, at = 0; tile < end; tile += kTransposedTileKeys, at ^= 1) {
      const std::byte** next = tile + kTransposedTileKeys < end ? rows[at ^ 1] : nullptr;
      if (next != nullptr) find(a.keys, tile + kTransposedTileKeys, end, next);
      turn_keys(rows[at], next, dim, keys);
      score_transposed_keys<kQueries>(keys, queries, kQueries * 2, dim, scores,
                                      kTransposedTileKeys);
      const std::int64_t n = std::min(kTransposedTileKeys, end - tile);
      for (std::int64_t i = 0; i < lanes; ++i)
        std::memcpy(a.scores + (first + i) * a.ld_scores + tile, scores + i * kTransposedTileKeys,
                    static_cast<std::size_t>(n) * sizeof(float));
    }
  }
}

}  // namespace quire::cpu
