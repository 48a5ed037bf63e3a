#include "kernels/choice/row_products.h"

#include <cstddef>

#include "base/dtype.h"

namespace quire {
namespace {

const std::byte* row_at(const ChosenRows& c, std::int64_t j, int value) {
  const std::int64_t row = c.rows != nullptr ? c.rows[j] : c.first_row + j;
  return static_cast<const std::byte*>(c.kv.pages[row / kPageTokens]) + value * c.kv.kv_stride +
         c.kv_head * c.kv.head_stride + row % kPageTokens * c.kv.token_stride;
}

}  // namespace

Status row_scores_reference(const RowScoresArgs& a) {
  for (std::int64_t i = 0; i < a.num_queries; ++i) {
    for (std::int64_t j = 0; j < a.keys.num_rows; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < a.keys.kv.head_dim; ++c)
        sum += double{a.q[i * a.ldq + c]} * load_f32(row_at(a.keys, j, 0), a.keys.kv.dtype, c);
      a.scores[i * a.ld_scores + j] = static_cast<float>(sum * a.scale);
    }
  }
  return {};
}

Status key_products_reference(const KeyProductsArgs& a) {
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads;
  for (std::int64_t h = 0; h < a.num_heads; ++h) {
    const ChosenRows keys{a.kv, static_cast<std::int32_t>(h / group), nullptr, a.first_row,
                          a.num_rows};
    QUIRE_RETURN_IF_ERROR(row_scores_reference({a.q + h * a.kv.head_dim, 1, a.kv.head_dim, a.scale,
                                                keys, a.scores + h * a.ld_scores, a.ld_scores}));
  }
  return {};
}

Status row_values_reference(const RowValuesArgs& a) {
  for (std::int64_t i = 0; i < a.num_queries; ++i) {
    for (std::int64_t c = 0; c < a.values.kv.head_dim; ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < a.values.num_rows; ++j)
        sum += double{a.weights[i * a.ld_weights + j]} *
               load_f32(row_at(a.values, j, 1), a.values.kv.dtype, c);
      a.out[i * a.ldo + c] = static_cast<float>(sum);
    }
  }
  return {};
}

}  // namespace quire
