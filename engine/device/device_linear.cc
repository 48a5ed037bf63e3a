#include "engine/device/device_linear.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

/// Products read int8, w8 and w4 weights as they are: up to kGemvRows rows with inputs in f32, up
/// to kFewRowsMost on tensor cores. Products with more rows expand the weights to bf16 in tiles of
/// kTileBytes.
constexpr std::int64_t kTileBytes = std::int64_t{64} << 20;

/// Returns outputs [first, first + n) of a matrix.
cuda::GroupedWeights rows_of(const cuda::GroupedWeights& w, std::int64_t first, std::int64_t n) {
  const std::int64_t segments = first * cuda::row_segments(w.kind, w.k);
  const std::int64_t groups = segments * cuda::segment_groups(w.kind);
  return {w.numbers + segments * cuda::kSegmentBytes,
          w.scales + groups,
          w.minimums == nullptr ? nullptr : w.minimums + groups,
          n,
          w.k,
          w.kind,
          w.whole_n};
}

/// Returns the row stride of the outputs by which a product chooses: that of the whole matrix.
std::int64_t choosing_stride(const DeviceMatrix& w, std::int64_t ldy) {
  return w.whole_n() > w.n() ? w.whole_n() : ldy;
}

}  // namespace

DType DeviceLinear::input_dtype(const ComputeMatrix& weights, std::int64_t rows) const {
  const auto& w = static_cast<const DeviceMatrix&>(weights);
  if (w.grouped().empty() && w.dtype() != DType::kI8) return w.dtype();
  return rows <= cuda::kGemvRows ? DType::kF32 : DType::kBF16;
}

bool DeviceLinear::adds_bias_first(const ComputeMatrix& weights, std::int64_t rows) {
  const auto& w = static_cast<const DeviceMatrix&>(weights);
  return (!w.grouped().empty() || w.dtype() == DType::kI8) && rows <= cuda::kFewRowsMost;
}

Result<const void*> DeviceLinear::inputs(const ProductArgs& a) {
  const std::int64_t k = a.weights->k();
  const DType dtype = input_dtype(*a.weights, a.rows);
  if (a.x_dtype == dtype && a.ldx == k) return a.x;
  if (a.x_dtype != DType::kF32)
    return Status::invalid("x_dtype", "inputs are f32, or what these weights read without gaps");
  QUIRE_RETURN_IF_ERROR(
      rounded_.reserve(a.rows * k * static_cast<std::int64_t>(dtype_bytes(dtype))));
  QUIRE_RETURN_IF_ERROR(memory_->run(
      cuda::ConvertArgs{static_cast<const float*>(a.x), a.rows, k, a.ldx, dtype, rounded_.data()}));
  return static_cast<const void*>(rounded_.data());
}

Status DeviceLinear::multiply(const ProductArgs& a, bool accumulate) {
  if (a.rows == 0) return {};
  const auto& w = static_cast<const DeviceMatrix&>(*a.weights);
  if (!w.grouped().empty()) return multiply_grouped(a, w, accumulate);
  if (w.dtype() == DType::kI8) return multiply_int8(a, w, accumulate);
  QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::MatmulArgs{.x = x,
                                                      .weight = w.data(),
                                                      .dtype = w.dtype(),
                                                      .rows = a.rows,
                                                      .n = w.n(),
                                                      .k = w.k(),
                                                      .y = a.y,
                                                      .ldy = a.ldy,
                                                      .accumulate = accumulate,
                                                      .whole_n = w.whole_n(),
                                                      .whole_ldy = choosing_stride(w, a.ldy)}));
  return a.bias == nullptr ? Status()
                           : memory_->run(cuda::AddBiasArgs{a.y, a.bias, a.rows, w.n(), a.ldy});
}

Status DeviceLinear::multiply_int8(const ProductArgs& a, const DeviceMatrix& w, bool accumulate) {
  const auto* codes = static_cast<const std::int8_t*>(w.data());
  if (a.rows <= cuda::kGemvRows) {
    QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a));
    return memory_->run(cuda::Int8GemvArgs{.x = static_cast<const float*>(x),
                                           .weight = codes,
                                           .scale = w.scales(),
                                           .bias = a.bias,
                                           .rows = a.rows,
                                           .n = w.n(),
                                           .k = w.k(),
                                           .warps = 0,
                                           .y = a.y,
                                           .ldy = a.ldy,
                                           .accumulate = accumulate,
                                           .whole_n = w.whole_n()});
  }
  if (a.rows <= cuda::kFewRowsMost) {
    QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a));
    QUIRE_ASSIGN_OR_RETURN(const cuda::FewRowsArgs rows,
                           few_rows(a, x, {0, w.n(), w.whole_n()}, accumulate));
    return memory_->run(
        cuda::Int8ProductArgs{{codes, w.scales(), w.n(), w.k(), w.whole_n()}, rows});
  }
  QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a));
  QUIRE_RETURN_IF_ERROR(
      by_tiles(a, x, {0, w.n(), w.whole_n()}, accumulate, [&](std::int64_t first, std::int64_t n) {
        const float* scales = w.scales() + first * (w.k() / cuda::kGemvGroup);
        return memory_->run(
            cuda::Int8ExpandArgs{codes + first * w.k(), scales, n, w.k(), expanded_.data()});
      }));
  return a.bias == nullptr ? Status()
                           : memory_->run(cuda::AddBiasArgs{a.y, a.bias, a.rows, w.n(), a.ldy});
}

Status DeviceLinear::multiply_grouped(const ProductArgs& a, const DeviceMatrix& w,
                                      bool accumulate) {
  const bool gemv = a.rows <= cuda::kGemvRows, few = a.rows <= cuda::kFewRowsMost;
  QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a));
  std::int64_t first = 0;
  for (const cuda::GroupedWeights& part : w.grouped()) {
    ProductArgs one = a;
    one.y += first;
    if (one.bias != nullptr) one.bias += first;
    if (gemv) {
      QUIRE_RETURN_IF_ERROR(memory_->run(cuda::GroupedGemvArgs{.x = static_cast<const float*>(x),
                                                               .weight = part,
                                                               .bias = one.bias,
                                                               .rows = a.rows,
                                                               .warps = 0,
                                                               .y = one.y,
                                                               .ldy = a.ldy,
                                                               .accumulate = accumulate}));
    } else if (few) {
      QUIRE_ASSIGN_OR_RETURN(const cuda::FewRowsArgs rows,
                             few_rows(one, x, {first, part.n, part.whole_n}, accumulate));
      QUIRE_RETURN_IF_ERROR(memory_->run(cuda::GroupedProductArgs{part, rows}));
    } else {
      const auto expand = [&](std::int64_t begin, std::int64_t n) {
        return memory_->run(cuda::GroupedExpandArgs{rows_of(part, begin, n), expanded_.data()});
      };
      QUIRE_RETURN_IF_ERROR(by_tiles(a, x, {first, part.n, part.whole_n}, accumulate, expand));
    }
    first += part.n;
  }
  if (few || a.bias == nullptr) return {};
  return memory_->run(cuda::AddBiasArgs{a.y, a.bias, a.rows, w.n(), a.ldy});
}

Result<cuda::FewRowsArgs> DeviceLinear::few_rows(const ProductArgs& a, const void* x,
                                                 const Outputs& outputs, bool accumulate) {
  const std::int64_t splits = cuda::few_rows_most_splits(outputs.whole_n, a.weights->k());
  if (splits > 1)
    QUIRE_RETURN_IF_ERROR(
        parts_.reserve(splits * a.rows * outputs.n * static_cast<std::int64_t>(sizeof(float))));
  return cuda::FewRowsArgs{.x = x,
                           .bias = a.bias,
                           .rows = a.rows,
                           .splits = 0,
                           .parts = splits > 1 ? reinterpret_cast<float*>(parts_.data()) : nullptr,
                           .y = a.y,
                           .ldy = a.ldy,
                           .accumulate = accumulate};
}

template <class Expand>
Status DeviceLinear::by_tiles(const ProductArgs& a, const void* x, Outputs outputs, bool accumulate,
                              Expand expand) {
  const std::int64_t k = a.weights->k(), bytes = k * 2;
  const std::int64_t tile = std::max<std::int64_t>(64, kTileBytes / bytes / 64 * 64);
  // Every tile chooses as a full one, so that an output does not depend on the tile that it is in.
  const std::int64_t choosing = std::min(tile, outputs.whole_n);
  const std::int64_t stride = choosing_stride(static_cast<const DeviceMatrix&>(*a.weights), a.ldy);
  QUIRE_RETURN_IF_ERROR(expanded_.reserve(std::min(tile, outputs.n) * bytes));
  for (std::int64_t begin = 0; begin < outputs.n; begin += tile) {
    const std::int64_t n = std::min(tile, outputs.n - begin);
    QUIRE_RETURN_IF_ERROR(expand(begin, n));
    QUIRE_RETURN_IF_ERROR(memory_->run(cuda::MatmulArgs{.x = x,
                                                        .weight = expanded_.data(),
                                                        .dtype = DType::kBF16,
                                                        .rows = a.rows,
                                                        .n = n,
                                                        .k = k,
                                                        .y = a.y + outputs.first + begin,
                                                        .ldy = a.ldy,
                                                        .accumulate = accumulate,
                                                        .whole_n = choosing,
                                                        .whole_ldy = stride}));
  }
  return {};
}

}  // namespace quire
