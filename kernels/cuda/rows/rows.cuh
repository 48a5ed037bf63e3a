/// This file holds kernels over rows of activations: RMS norm with residual, SwiGLU, embedding,
/// rounding, bias, joined columns and column sums.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/activation.h"

namespace quire::cuda {

/// One thread block per row, which it reads twice. It serves rows that allow no wide accesses or
/// are longer than RmsNormWideKernel keeps.
template <class E>
struct RmsNormKernel {
  static constexpr int kThreads = 256;
  float* x;
  const float *residual, *weight;
  E* out;
  std::int64_t dim;
  float eps;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    auto scratch = device.template shared<float>(0, kThreads / 32);
    const std::int64_t row = device.block_idx().x * dim;
    float squares = 0;
    for (std::int64_t c = device.thread_idx(); c < dim; c += kThreads) {
      float v = device.load(x + row + c);
      if (residual != nullptr) {
        v += device.load(residual + row + c);
        device.store(x + row + c, v);
      }
      squares += v * v;
    }
    const float inverse = 1.0f /
                          sqrtf(block_sum(device, squares, scratch) / static_cast<float>(dim) +
                                eps);
    for (std::int64_t c = device.thread_idx(); c < dim; c += kThreads) {
      device.store(out + row + c, device.template from_float<E>(device.load(x + row + c) * inverse *
                                                                device.load(weight + c)));
    }
  }
};

/// One thread block per row, which stays in registers: a thread has kEach packs of four values, a
/// block apart. All loads, those of weights too, are under way together, because a single row is
/// bound by latency: row, sum over the block, result. Eight bytes an f32 element, sixteen with a
/// residual: many rows are bound by memory, 0.98 of an H100's copy bandwidth.
///
/// Threads and packs follow from the length of a row alone, and so does the order of its sum: the
/// bits of a row do not depend on how many rows there are.
template <class E, int kEach>
struct RmsNormWideKernel {
  static constexpr int kThreads = 512, kMost = kThreads * kEach * 4;  ///< kMost: the longest row
  RmsNormKernel<E> a;
  struct alignas(4 * sizeof(E)) Four {
    E e[4];
  };

  /// The fewest whole warps whose threads have kEach packs each.
  static int threads(std::int64_t dim) {
    return static_cast<int>((dim / 4 + 32 * kEach - 1) / (32 * kEach)) * 32;
  }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x * a.dim;
    const int packs = static_cast<int>(a.dim / 4), stride = device.block_dim(),
              first = device.thread_idx();
    auto* x = reinterpret_cast<Pack<float>*>(a.x + row);
    const bool adds = a.residual != nullptr;
    const auto *residual = reinterpret_cast<const Pack<float>*>(adds ? a.residual + row : nullptr),
               *weight = reinterpret_cast<const Pack<float>*>(a.weight);
    Pack<float> v[kEach] = {}, r[kEach] = {}, w[kEach] = {};
    QUIRE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * stride;
      if (at >= packs) continue;
      v[i] = device.load(x + at);
      w[i] = device.load(weight + at);
      if (adds) r[i] = device.load(residual + at);
    }
    float squares = 0;
    QUIRE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      QUIRE_UNROLL
      for (int c = 0; c < 4; ++c) {
        if (adds) v[i].e[c] += r[i].e[c];
        squares += v[i].e[c] * v[i].e[c];
      }
    }
    if (adds) {
      QUIRE_UNROLL
      for (int i = 0; i < kEach; ++i) {
        if (first + i * stride < packs) device.store(x + first + i * stride, v[i]);
      }
    }
    auto scratch = device.template shared<float>(0, device.block_dim() / 32);
    const float inverse = 1.0f /
                          sqrtf(block_sum(device, squares, scratch) / static_cast<float>(a.dim) +
                                a.eps);
    auto* out = reinterpret_cast<Four*>(a.out + row);
    QUIRE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (first + i * stride >= packs) continue;
      Four four;
      QUIRE_UNROLL
      for (int c = 0; c < 4; ++c)
        four.e[c] = device.template from_float<E>(v[i].e[c] * inverse * w[i].e[c]);
      device.store(out + first + i * stride, four);
    }
  }
};

template <class E, class Launcher>
Status launch_rms_norm_to(Launcher& launcher, const ResidualRmsNormArgs& args) {
  const RmsNormArgs& a = args.norm;
  // The kernel writes x only with a residual.
  const RmsNormKernel<E> kernel{const_cast<float*>(a.x),     args.residual, a.weight,
                                reinterpret_cast<E*>(a.out), a.dim,         a.eps};
  const auto in_registers = [&]<int kEach>() {
    using Kernel = RmsNormWideKernel<E, kEach>;
    const int threads = Kernel::threads(a.dim);
    return launcher.launch({{a.rows, 1, 1}, threads, Kernel::kThreads / 32 * 4}, Kernel{kernel});
  };
  const bool wide = wide_rows(a.x, a.dim) && wide_rows(args.residual, a.dim) &&
                    wide_rows(a.weight, a.dim) && wide_rows(a.out, a.dim);
  if (wide && a.dim <= RmsNormWideKernel<E, 1>::kMost) return in_registers.template operator()<1>();
  if (wide && a.dim <= RmsNormWideKernel<E, 2>::kMost) return in_registers.template operator()<2>();
  if (wide && a.dim <= RmsNormWideKernel<E, 4>::kMost) return in_registers.template operator()<4>();
  return launcher.launch(
      {{a.rows, 1, 1}, RmsNormKernel<E>::kThreads, RmsNormKernel<E>::kThreads / 32 * 4}, kernel);
}

template <class Launcher>
Status launch_rms_norm(Launcher& launcher, const ResidualRmsNormArgs& args) {
  const RmsNormArgs& a = args.norm;
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0) return Status::invalid("dim", "must be at least 1");
  if (a.out == a.x && (args.residual != nullptr || args.to != DType::kF32)) {
    return Status::invalid("out",
                           "must not be x when it is rounded, or when x keeps the sum with a "
                           "residual");
  }
  return with_element(args.to, "to",
                      [&]<class E>(E) { return launch_rms_norm_to<E>(launcher, args); });
}

/// How one block covers a piece of a row: a thread has kPieceEach values, next to each other where
/// rows allow accesses of 16 bytes, else a block apart.
inline constexpr int kPieceThreads = 128, kPieceEach = 8, kPiece = kPieceThreads * kPieceEach;

/// Returns a launch with a block for each piece of each row.
inline LaunchShape pieces_of(std::int64_t rows, std::int64_t dim) {
  return {{rows, (dim + kPiece - 1) / kPiece, 1}, kPieceThreads, 0};
}

/// Stores elements [0, 8) at p, which is aligned to 16 bytes.
template <class E, class Device>
QUIRE_DEVICE void store8(Device& device, void* p, const float (&x)[8]) {
  auto* packs = static_cast<Pack<E>*>(p);
  QUIRE_UNROLL
  for (int i = 0; i < 8 / Pack<E>::kCount; ++i) {
    Pack<E> pack;
    QUIRE_UNROLL
    for (int c = 0; c < Pack<E>::kCount; ++c)
      pack.e[c] = device.template from_float<E>(x[i * Pack<E>::kCount + c]);
    device.store(packs + i, pack);
  }
}

/// 12 bytes an f32 output and an exponential: bound by memory, 95 percent of an H100's copy
/// bandwidth for many rows; a single row of 14,336 takes 14 blocks and one round of latency, 2.1
/// us.
template <class E, bool kWide>
struct SwigluKernel {
  static constexpr int kThreads = kPieceThreads;
  SwigluArgs a;

  QUIRE_DEVICE static float value(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }
  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const float *gates = a.gate_up + device.block_idx().x * 2 * a.dim, *ups = gates + a.dim;
    E* out = reinterpret_cast<E*>(a.out) + device.block_idx().x * a.dim;
    const std::int64_t first = device.block_idx().y * kPiece;
    if constexpr (kWide) {
      const std::int64_t c = first + device.thread_idx() * kPieceEach;
      if (c >= a.dim) return;
      float gate[8], up[8];
      load8<float>(device, gates + c, gate);
      load8<float>(device, ups + c, up);
      QUIRE_UNROLL
      for (int i = 0; i < 8; ++i) gate[i] = value(gate[i], up[i]);
      store8<E>(device, out + c, gate);
    } else {
      for (int i = 0; i < kPieceEach; ++i) {
        const std::int64_t c = first + i * kThreads + device.thread_idx();
        if (c >= a.dim) continue;
        const float x = value(device.load(gates + c), device.load(ups + c));
        device.store(out + c, device.template from_float<E>(x));
      }
    }
  }
};

template <class Launcher>
Status launch_swiglu(Launcher& launcher, const RoundedSwigluArgs& args) {
  const SwigluArgs& a = args.swiglu;
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0) return Status::invalid("dim", "must be at least 1");
  const LaunchShape shape = pieces_of(a.rows, a.dim);
  const bool wide = a.dim % 8 == 0 && wide_rows(a.gate_up, a.dim) && wide_rows(a.out, a.dim);
  return with_element(args.to, "to", [&]<class E>(E) {
    if (wide) return launcher.launch(shape, SwigluKernel<E, true>{a});
    return launcher.launch(shape, SwigluKernel<E, false>{a});
  });
}

/// One thread block per row. Four bytes an element and those of the table's, an access each: bound
/// by memory and latency, 0.70 of an H100's copy bandwidth for 8,192 rows of 4,096.
template <class E>
struct EmbeddingKernel {
  static constexpr int kThreads = 128;
  EmbeddingArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    const std::int64_t id = device.load(a.ids + row);
    const bool known = id >= 0 && id < a.vocab;
    for (std::int64_t c = device.thread_idx(); c < a.dim; c += kThreads) {
      device.store(
          a.out + row * a.dim + c,
          known ? device.to_float(device.load(static_cast<const E*>(a.table) + id * a.ld + c))
                : 0.0f);
    }
  }
};

template <class Launcher>
Status launch_embedding(Launcher& launcher, const EmbeddingArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0) return Status::invalid("dim", "must be at least 1");
  if (a.ld != 0 && a.ld < a.dim) return Status::invalid("ld", "must be at least dim");
  EmbeddingArgs strided = a;
  if (a.ld == 0) strided.ld = a.dim;
  return with_element(a.dtype, "dtype", [&]<class E>(E) {
    return launcher.launch({{a.rows, 1, 1}, EmbeddingKernel<E>::kThreads, 0},
                           EmbeddingKernel<E>{strided});
  });
}

/// Six bytes an element for E of two bytes: bound by memory; a row of 4,096 takes an H100 1.1 us.
template <class E, bool kWide>
struct ConvertKernel {
  static constexpr int kThreads = kPieceThreads;
  ConvertArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const float* x = a.x + device.block_idx().x * a.ldx;
    E* out = static_cast<E*>(a.out) + device.block_idx().x * a.dim;
    const std::int64_t first = device.block_idx().y * kPiece;
    if constexpr (kWide) {
      const std::int64_t c = first + device.thread_idx() * kPieceEach;
      if (c >= a.dim) return;
      float values[8];
      load8<float>(device, x + c, values);
      store8<E>(device, out + c, values);
    } else {
      for (int i = 0; i < kPieceEach; ++i) {
        const std::int64_t c = first + i * kThreads + device.thread_idx();
        if (c < a.dim) device.store(out + c, device.template from_float<E>(device.load(x + c)));
      }
    }
  }
};

template <class Launcher>
Status launch_convert(Launcher& launcher, const ConvertArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0 || a.ldx < a.dim)
    return Status::invalid("ldx", "must be at least dim, which is at least 1");
  return with_element(a.dtype, "dtype", [&]<class E>(E) {
    const LaunchShape shape = pieces_of(a.rows, a.dim);
    if (a.dim % 8 == 0 && wide_rows(a.x, a.ldx) && wide_rows(a.out, a.dim))
      return launcher.launch(shape, ConvertKernel<E, true>{a});
    return launcher.launch(shape, ConvertKernel<E, false>{a});
  });
}

/// One thread block per row. Eight bytes an element, and the bias from a cache: bound as
/// EmbeddingKernel is, the same share expected.
struct AddBiasKernel {
  static constexpr int kThreads = 128;
  AddBiasArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    float* x = a.x + device.block_idx().x * a.ldx;
    for (std::int64_t c = device.thread_idx(); c < a.dim; c += kThreads)
      device.store(x + c, device.load(x + c) + device.load(a.bias + c));
  }
};

template <class Launcher>
Status launch_add_bias(Launcher& launcher, const AddBiasArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0 || a.ldx < a.dim)
    return Status::invalid("ldx", "must be at least dim, which is at least 1");
  return launcher.launch({{a.rows, 1, 1}, AddBiasKernel::kThreads, 0}, AddBiasKernel{a});
}

/// Eight bytes an f32 element, twelve with `accumulate`; four for bf16: bound by memory.
template <class E, bool kWide>
struct JoinColumnsKernel {
  static constexpr int kThreads = kPieceThreads;
  JoinColumnsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x, first = a.first + device.block_idx().y * kPiece;
    if constexpr (kWide) {
      const std::int64_t c = first + device.thread_idx() * kPieceEach;
      if (c >= a.n) return;
      float values[8], other[8] = {};
      load8<E>(device, from(row, c), values);
      E* y = to(row, c);
      if (a.accumulate) load8<E>(device, y, other);
      QUIRE_UNROLL
      for (int i = 0; i < 8; ++i) values[i] = value(device, values[i], other[i], c + i);
      store8<E>(device, y, values);
    } else {
      for (int i = 0; i < kPieceEach; ++i) {
        const std::int64_t c = first + i * kThreads + device.thread_idx();
        if (c >= a.n) continue;
        E* y = to(row, c);
        const float part = device.to_float(device.load(from(row, c)));
        const float before = a.accumulate ? device.to_float(device.load(y)) : 0.0f;
        device.store(y, device.template from_float<E>(value(device, part, before, c)));
      }
    }
  }

 private:
  QUIRE_DEVICE const E* from(std::int64_t row, std::int64_t c) const {
    const std::int64_t begin = c / a.width * a.width,
                       columns = begin + a.width < a.n ? a.width : a.n - begin;
    return static_cast<const E*>(a.parts) + a.rows * (begin - a.first) + row * columns + c - begin;
  }
  QUIRE_DEVICE E* to(std::int64_t row, std::int64_t c) const {
    return static_cast<E*>(a.y) + row * a.ldy + c;
  }
  template <class Device>
  QUIRE_DEVICE float value(Device& device, float part, float before, std::int64_t c) const {
    const float bias = a.bias != nullptr ? device.load(a.bias + c) : 0.0f;
    if (a.bias != nullptr && !a.bias_last) part += bias;
    if (a.accumulate) part += before;
    return a.bias != nullptr && a.bias_last ? part + bias : part;
  }
};

template <class Launcher>
Status launch_join_columns(Launcher& launcher, const JoinColumnsArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.n <= 0 || a.ldy < a.n)
    return Status::invalid("ldy", "must be at least n, which is at least 1");
  if (a.width <= 0) return Status::invalid("width", "must be at least 1");
  if (a.first < 0 || a.first % a.width != 0)
    return Status::invalid("first", "must be a multiple of width");
  if (a.dtype != DType::kF32 && (a.dtype != DType::kBF16 || a.bias != nullptr || a.accumulate))
    return Status::invalid("dtype", "is f32, or bf16 without bias and sum");
  if (a.first >= a.n) return {};
  const auto launch = [&]<class E>(E) {
    const LaunchShape shape = pieces_of(a.rows, a.n - a.first);
    const bool eights = a.width % 8 == 0 && a.n % 8 == 0 && a.ldy % 8 == 0;
    if (eights && wide_rows(a.parts, a.width) && wide_rows(a.y, a.ldy))
      return launcher.launch(shape, JoinColumnsKernel<E, true>{a});
    return launcher.launch(shape, JoinColumnsKernel<E, false>{a});
  };
  return a.dtype == DType::kF32 ? launch(float{}) : launch(BF16{});
}

/// One thread per column, rows in order, with the loads of kAhead rows in flight. Four bytes an
/// element: few columns are bound by latency, of which a round has kAhead rows.
struct ColumnSumsKernel {
  static constexpr int kThreads = 64, kAhead = 8;
  ColumnSumsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t c = device.block_idx().x * kThreads + device.thread_idx();
    if (c >= a.dim) return;
    float sum = device.load(a.sums + c);
    std::int64_t row = 0;
    for (; row + kAhead <= a.rows; row += kAhead) {
      float x[kAhead];
      for (int i = 0; i < kAhead; ++i) x[i] = device.load(a.x + (row + i) * a.ldx + c);
      for (int i = 0; i < kAhead; ++i) sum += x[i];
    }
    for (; row < a.rows; ++row) sum += device.load(a.x + row * a.ldx + c);
    device.store(a.sums + c, sum);
  }
};

template <class Launcher>
Status launch_column_sums(Launcher& launcher, const ColumnSumsArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0 || a.ldx < a.dim)
    return Status::invalid("ldx", "must be at least dim, which is at least 1");
  if (a.rows == 0) return {};
  return launcher.launch(
      {{(a.dim + ColumnSumsKernel::kThreads - 1) / ColumnSumsKernel::kThreads, 1, 1},
       ColumnSumsKernel::kThreads,
       0},
      ColumnSumsKernel{a});
}

}  // namespace quire::cuda
