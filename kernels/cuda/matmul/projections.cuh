/// This file holds kernels around the matrix products of a layer: splitting a stacked projection,
/// and int8 products of few rows.
///
/// Cost:
///   qkv_split    8 bytes and up to 5 operations an element: a warp has one head under way, so
///                latency and memory bound it. Measured on an H100: 0.59 of copy bandwidth for
///                8,192 rows of 6,144, with norms
///   int8_gemv    1.06 * n * k bytes for each four rows, 2 * r * n * k operations for r rows, and a
///                conversion a weight. A warp has 16 bytes a lane under way, and none while it
///                multiplies: latency bounds it. Measured, one row: 0.33 to 0.54 of copy bandwidth
///   int8_expand  1.06 * n * k bytes read, 2 * n * k written. Bound by memory; 0.7 or more of copy
///                bandwidth expected
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// One warp per head of a row.
struct QkvSplitKernel {
  // head_dim is at most 256
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kPerLane = 8;
  QkvSplitArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t heads = a.num_heads + 2 * a.num_kv_heads,
                       at = device.block_idx().x * kWarps + device.warp();
    if (at >= a.rows * heads) return;  // whole warps
    const std::int64_t row = at / heads, head = at % heads;
    const bool is_query = head < a.num_heads, is_value = head >= a.num_heads + a.num_kv_heads;
    const float* norm = is_query ? a.q_norm : is_value ? nullptr : a.k_norm;
    float x[kPerLane], squares = 0;
    QUIRE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const std::int64_t c = i * 32 + device.lane();
      x[i] = 0;
      if (c >= a.head_dim) continue;
      x[i] = device.load(a.qkv + row * a.ldqkv + head * a.head_dim + c);
      if (a.bias != nullptr) x[i] += device.load(a.bias + head * a.head_dim + c);
      squares += x[i] * x[i];
    }
    squares = warp_sum(device, squares);
    const float inverse = norm == nullptr
                              ? 1.0f
                              : 1.0f / sqrtf(squares / static_cast<float>(a.head_dim) + a.eps);
    float* out = is_query ? a.q + row * a.ldq + head * a.head_dim
                          : (is_value ? a.v : a.k) + row * a.ldkv +
                                (head - a.num_heads) % a.num_kv_heads * a.head_dim;
    QUIRE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const std::int64_t c = i * 32 + device.lane();
      if (c < a.head_dim)
        device.store(out + c, norm == nullptr ? x[i] : x[i] * inverse * device.load(norm + c));
    }
  }
};

template <class Launcher>
Status launch_qkv_split(Launcher& launcher, const QkvSplitArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.num_kv_heads, a.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  const std::int64_t heads = a.num_heads + 2 * a.num_kv_heads;
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.ldqkv < heads * a.head_dim)
    return Status::invalid("ldqkv", "must be at least (num_heads + 2 * num_kv_heads) * head_dim");
  if ((a.q_norm == nullptr) != (a.k_norm == nullptr))
    return Status::invalid("k_norm", "q_norm and k_norm come together");
  QkvSplitArgs strided = a;
  if (a.ldq == 0) strided.ldq = a.num_heads * a.head_dim;
  if (a.ldkv == 0) strided.ldkv = a.num_kv_heads * a.head_dim;
  if (strided.ldq < a.num_heads * a.head_dim || strided.ldkv < a.num_kv_heads * a.head_dim)
    return Status::invalid("ldq", "row strides must be at least heads * head_dim");
  return launcher.launch(
      {{(a.rows * heads + QkvSplitKernel::kWarps - 1) / QkvSplitKernel::kWarps, 1, 1},
       QkvSplitKernel::kThreads,
       0},
      QkvSplitKernel{strided});
}

/// `a.warps` of the kThreads / 32 warps of a block share an output. Each takes every a.warps-th
/// range of 512 inputs, 16 per lane; their sums are added in order.
struct Int8GemvKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / 32,
                       kSharedBytes = kWarps * static_cast<int>(kGemvRows) * 4;
  Int8GemvArgs a;

  struct alignas(16) Weights {
    std::int8_t q[16];
  };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t output = device.block_idx().x * (kWarps / a.warps) + device.warp() / a.warps,
                       first_row = device.block_idx().y * kGemvRows;
    float sums[kGemvRows] = {};
    if (output < a.n) {
      for (std::int64_t c = (device.warp() % a.warps * 32 + device.lane()) * 16; c < a.k;
           c += a.warps * 512)
        add(device, output, first_row, c, sums);
    }
    auto parts = device.template shared<float>(0, kWarps * kGemvRows);
    QUIRE_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      const float sum = warp_sum(device, sums[r]);
      if (device.lane() == 0) parts[device.warp() * static_cast<int>(kGemvRows) + r] = sum;
    }
    device.sync_threads();
    const int r = device.lane();
    if (output >= a.n || device.warp() % a.warps != 0 || r >= kGemvRows || first_row + r >= a.rows)
      return;
    float sum = 0;
    for (int w = 0; w < a.warps; ++w) {
      const float part = parts[(device.warp() + w) * static_cast<int>(kGemvRows) + r];
      sum += part;
    }
    if (a.bias != nullptr) sum += device.load(a.bias + output);
    float* y = a.y + (first_row + r) * (a.ldy > 0 ? a.ldy : a.n) + output;
    if (a.accumulate) sum += device.load(y);
    device.store(y, sum);
  }

 private:
  /// Adds sixteen inputs from c on, all in one group.
  template <class Device>
  QUIRE_DEVICE void add(Device& device, std::int64_t output, std::int64_t first_row, std::int64_t c,
                        float (&sums)[kGemvRows]) const {
    const Weights w = device.load(reinterpret_cast<const Weights*>(a.weight + output * a.k + c));
    const float scale = device.load(a.scale + output * (a.k / kGemvGroup) + c / kGemvGroup);
    QUIRE_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      if (first_row + r >= a.rows) continue;
      float sum = 0;
      QUIRE_UNROLL
      for (int i = 0; i < 16; i += 4) {
        const Pack<float> x = device.load(
            reinterpret_cast<const Pack<float>*>(a.x + (first_row + r) * a.k + c + i));
        QUIRE_UNROLL
        for (int j = 0; j < 4; ++j) sum += static_cast<float>(w.q[i + j]) * x.e[j];
      }
      sums[r] += scale * sum;
    }
  }
};

/// Each thread expands sixteen weights.
struct Int8ExpandKernel {
  static constexpr int kThreads = 256;
  Int8ExpandArgs a;

  struct alignas(16) Weights {
    std::int8_t q[16];
  };
  struct alignas(16) Halves {
    BF16 e[8];
  };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t at = (device.block_idx().x * kThreads + device.thread_idx()) * 16;
    if (at >= a.n * a.k) return;
    const Weights w = device.load(reinterpret_cast<const Weights*>(a.weight + at));
    const float scale = device.load(a.scale + at / kGemvGroup);
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      Halves out;
      QUIRE_UNROLL
      for (int i = 0; i < 8; ++i)
        out.e[i] = device.template from_float<BF16>(scale * static_cast<float>(w.q[half * 8 + i]));
      device.store(reinterpret_cast<Halves*>(static_cast<BF16*>(a.out) + at) + half, out);
    }
  }
};

template <class Launcher>
Status launch_int8_expand(Launcher& launcher, const Int8ExpandArgs& a) {
  if (a.n < 0 || a.k <= 0 || a.k % kGemvGroup != 0)
    return Status::invalid(
        "k", "must be a multiple of " + std::to_string(kGemvGroup) + ", is " + std::to_string(a.k));
  constexpr std::int64_t kPerBlock = Int8ExpandKernel::kThreads * 16;
  return launcher.launch(
      {{(a.n * a.k + kPerBlock - 1) / kPerBlock, 1, 1}, Int8ExpandKernel::kThreads, 0},
      Int8ExpandKernel{a});
}

template <class Launcher>
Status launch_int8_gemv(Launcher& launcher, const Int8GemvArgs& a) {
  if (a.rows < 0 || a.rows > 65535 * kGemvRows)
    return Status::invalid("rows", "0 to " + std::to_string(65535 * kGemvRows) + " rows a call");
  if (a.n < 0 || a.k <= 0 || a.k % kGemvGroup != 0)
    return Status::invalid(
        "k", "must be a multiple of " + std::to_string(kGemvGroup) + ", is " + std::to_string(a.k));
  if (a.ldy != 0 && a.ldy < a.n) return Status::invalid("ldy", "must be at least n, or 0");
  if (a.warps != 1 && a.warps != 2 && a.warps != 4)
    return Status::invalid("warps", "must be 1, 2 or 4, is " + std::to_string(a.warps));
  const std::int64_t per_block = Int8GemvKernel::kWarps / a.warps;
  return launcher.launch(
      {{(a.n + per_block - 1) / per_block, (a.rows + kGemvRows - 1) / kGemvRows, 1},
       Int8GemvKernel::kThreads,
       Int8GemvKernel::kSharedBytes},
      Int8GemvKernel{a});
}

}  // namespace quire::cuda
