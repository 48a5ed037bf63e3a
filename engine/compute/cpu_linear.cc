#include "engine/compute/cpu_linear.h"

#include <cstring>
#include <vector>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {

Status CpuLinear::embed(const void* table, DType dtype, std::int64_t, std::int64_t dim,
                        std::span<const std::int32_t> ids, float* x) {
  parallel_for(count_of(ids), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t base = ids[at(r)] * dim;
      float* out = x + r * dim;
      if (dtype == DType::kF32) {
        std::memcpy(out, static_cast<const float*>(table) + base, to_size(dim) * sizeof(float));
      } else {
        for (std::int64_t c = 0; c < dim; ++c) out[c] = load_f32(table, dtype, base + c);
      }
    }
  });
  return {};
}

Status CpuLinear::product(const ProductArgs& a) {
  return static_cast<const CpuMatrix&>(*a.weights)
      .packed()
      .multiply(static_cast<const float*>(a.x), a.rows, a.ldx, a.bias, a.y, a.ldy);
}

Status CpuLinear::add_product(const ProductArgs& a, float* scratch) {
  const std::int64_t n = a.weights->n();
  QUIRE_RETURN_IF_ERROR(
      static_cast<const CpuMatrix&>(*a.weights)
          .packed()
          .multiply(static_cast<const float*>(a.x), a.rows, a.ldx, a.bias, scratch, n));
  add_inplace(a.y, scratch, a.rows * n);
  return {};
}

/// Normalises each token's heads, which are dense as rms_norm() requires.
Status CpuLinear::norm_heads(const HeadNormArgs& a) {
  std::vector<Status> failed(to_size(a.rows));
  parallel_for(a.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* q = a.qkv + r * a.ld;
      float* k = q + std::int64_t{a.num_heads} * a.head_dim;
      Status s = rms_norm({.x = q,
                           .weight = a.q_norm,
                           .out = q,
                           .rows = a.num_heads,
                           .dim = a.head_dim,
                           .eps = a.eps});
      if (s.ok())
        s = rms_norm({.x = k,
                      .weight = a.k_norm,
                      .out = k,
                      .rows = a.num_kv_heads,
                      .dim = a.head_dim,
                      .eps = a.eps});
      failed[at(r)] = std::move(s);
    }
  });
  for (const Status& s : failed) QUIRE_RETURN_IF_ERROR(s);
  return {};
}

Status CpuLinear::take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                            std::int64_t dim, float* out) {
  for (const std::int32_t row : rows) {
    std::memcpy(out, x + row * ldx, to_size(dim) * sizeof(float));
    out += dim;
  }
  return {};
}

Status CpuLinear::copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                            float* out) {
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(out + r * dim, x + r * ldx, to_size(dim) * sizeof(float));
  return {};
}

}  // namespace quire
