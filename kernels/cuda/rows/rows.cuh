/// This file holds kernels over rows of activations: RMS norm with residual, SwiGLU, embedding,
/// rounding, bias and column sums.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/activation.h"

namespace quire::cuda {

/// One thread block per row.
struct RmsNormKernel {
  static constexpr int kThreads = 256;
  float* x;
  const float *residual, *weight;
  float* out;
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
      device.store(out + row + c, device.load(x + row + c) * inverse * device.load(weight + c));
    }
  }
};

template <class Launcher>
Status launch_rms_norm(Launcher& launcher, const ResidualRmsNormArgs& args) {
  const RmsNormArgs& a = args.norm;
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0) return Status::invalid("dim", "must be at least 1");
  if (args.residual != nullptr && a.out == a.x)
    return Status::invalid("out", "must not be x when there is a residual, whose sum x keeps");
  // The kernel writes x only with a residual.
  const RmsNormKernel kernel{const_cast<float*>(a.x), args.residual, a.weight, a.out, a.dim, a.eps};
  return launcher.launch(
      {{a.rows, 1, 1}, RmsNormKernel::kThreads, RmsNormKernel::kThreads / 32 * 4}, kernel);
}

/// Each thread computes kPerThread outputs, kThreads apart.
struct SwigluKernel {
  static constexpr int kThreads = 256, kPerThread = 4;
  SwigluArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t at = (device.block_idx().x * kPerThread + i) * kThreads +
                              device.thread_idx();
      if (at >= a.rows * a.dim) return;
      const std::int64_t row = at / a.dim, c = at % a.dim;
      const float gate = device.load(a.gate_up + row * 2 * a.dim + c),
                  up = device.load(a.gate_up + row * 2 * a.dim + a.dim + c);
      device.store(a.out + at, gate / (1.0f + expf(-gate)) * up);
    }
  }
};

template <class Launcher>
Status launch_swiglu(Launcher& launcher, const SwigluArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0) return Status::invalid("dim", "must be at least 1");
  constexpr std::int64_t kPerBlock = SwigluKernel::kThreads * SwigluKernel::kPerThread;
  return launcher.launch(
      {{(a.rows * a.dim + kPerBlock - 1) / kPerBlock, 1, 1}, SwigluKernel::kThreads, 0},
      SwigluKernel{a});
}

/// One thread block per row.
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

/// One thread block per row.
template <class E>
struct ConvertKernel {
  static constexpr int kThreads = 128;
  ConvertArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    for (std::int64_t c = device.thread_idx(); c < a.dim; c += kThreads) {
      device.store(static_cast<E*>(a.out) + row * a.dim + c,
                   device.template from_float<E>(device.load(a.x + row * a.ldx + c)));
    }
  }
};

template <class Launcher>
Status launch_convert(Launcher& launcher, const ConvertArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0 || a.ldx < a.dim)
    return Status::invalid("ldx", "must be at least dim, which is at least 1");
  return with_element(a.dtype, "dtype", [&]<class E>(E) {
    return launcher.launch({{a.rows, 1, 1}, ConvertKernel<E>::kThreads, 0}, ConvertKernel<E>{a});
  });
}

/// One thread block per row.
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

/// One thread per column, rows in order, with the loads of kAhead rows in flight.
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
