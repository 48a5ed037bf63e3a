#include "kernels/rows/kv.h"

#include "kernels/rows/reference/rotate.h"

namespace quire {

Status kv_place_reference(const RopeTable& table, const KvPlaceArgs& a) {
  const std::int64_t d = a.dst.head_dim;
  for (std::int64_t r = 0; r < a.src.num_rows; ++r) {
    const std::int64_t row = a.dst_rows != nullptr ? a.dst_rows[r] : a.first_dst_row + r;
    for (std::int64_t h = 0; h < a.dst.num_kv_heads; ++h) {
      const auto* src = static_cast<const std::byte*>(a.src.data) + h * a.src.head_stride +
                        r * a.src.row_stride;
      auto* dst = static_cast<std::byte*>(a.dst.pages[row / kPageTokens]) + h * a.dst.head_stride +
                  (row % kPageTokens) * a.dst.token_stride;
      std::vector<double> k(d);
      for (std::int64_t c = 0; c < d; ++c) k[c] = load_f32(src, a.src.dtype, c);
      k = reference::rotate(table, a.positions[r], k);
      for (std::int64_t c = 0; c < d; ++c) {
        store_f32(dst, a.dst.dtype, c, static_cast<float>(k[c]));
        store_f32(dst + a.dst.kv_stride, a.dst.dtype, c,
                  load_f32(src + a.src.kv_stride, a.src.dtype, c));
      }
    }
  }
  return {};
}

Status kv_pack_reference(const KvPackArgs& a) {
  for (std::int64_t h = 0; h < a.num_kv_heads; ++h) {
    for (std::int64_t r = 0; r < a.rows; ++r) {
      for (std::int64_t c = 0; c < a.head_dim; ++c) {
        const std::int64_t k_index = (h * 2 * a.rows + r) * a.head_dim + c;
        store_f32(a.out, a.dtype, k_index, a.k[r * a.ldk + h * a.head_dim + c]);
        store_f32(a.out, a.dtype, k_index + a.rows * a.head_dim,
                  a.v[r * a.ldv + h * a.head_dim + c]);
      }
    }
  }
  return {};
}

}  // namespace quire
