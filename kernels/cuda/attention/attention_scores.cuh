/// This file holds attention_scores() on the GPU, by which compressors rank cached rows.
///
/// Cost of an f32 key for r query rows of h heads of its KV head at head_dim d (other types:
/// attention_scores_mma.cuh): 4 * d bytes once, 2 * d * r * h operations on the plain cores, and r
/// * h exponentials, which every lane of a team computes. A block reads 4 * d * r * h bytes of
/// queries from the second-level cache. Instructions bound it: at d = 128 about 110 of a warp
/// multiply 1,024 pairs, so a quarter of the f32 rate is expected. Not measured.
#pragma once

#include <type_traits>

#include "kernels/attention/attention_scores.h"
#include "kernels/cuda/attention/attention_scores_mma.cuh"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// For f32 KV; attention_scores_mma.cuh has the other types.
/// A sub-warp (team) of kLanes lanes holds kKeys keys, eight channels per lane; query rows pass
/// through shared memory in order. One thread reduces a score over rows, then heads, in order. Its
/// bits therefore do not depend on how rows are split into calls.
template <class E, int kLanes>
struct AttentionScoresKernel {
  static constexpr int kThreads = 128, kTeams = kThreads / kLanes, kKeys = 4, kWidth = kLanes * 8;
  AttentionScoresArgs a;

  static int shared_bytes(std::int64_t group) { return static_cast<int>(group) * (kWidth + 1) * 4; }
  static std::int64_t num_blocks(std::int64_t keys) {
    return (keys + kTeams * kKeys - 1) / (kTeams * kKeys);
  }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t kv_head = device.block_idx().y, group = a.num_heads / a.kv.num_kv_heads;
    const int team = device.thread_idx() / kLanes, channel = device.thread_idx() % kLanes * 8;
    const std::int64_t first = (device.block_idx().x * kTeams + team) * kKeys;
    float key[kKeys][8] = {}, score[kKeys] = {};
    std::int32_t position[kKeys] = {};
    QUIRE_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      const std::int64_t row = first + k;
      if (row >= a.kv.num_rows) continue;
      position[k] = device.load(a.kv.positions + row);
      score[k] = device.load(a.scores + kv_head * a.ld_scores + row);
      if (channel >= a.kv.head_dim) continue;
      const char* at = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                       kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
      load8<E>(device, at + channel * static_cast<int>(sizeof(E)), key[k]);
    }
    for (std::int64_t t = 0; t < a.rows; ++t) {
      load_query(device, t, kv_head * group, group);
      device.sync_threads();
      add_row(device, t, group, key, position, score);
      device.sync_threads();
    }
    QUIRE_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      if (channel == 0 && first + k < a.kv.num_rows)
        device.store(a.scores + kv_head * a.ld_scores + first + k, score[k]);
    }
  }

 private:
  template <class Device>
  QUIRE_DEVICE void load_query(Device& device, std::int64_t t, std::int64_t first_head,
                               std::int64_t group) const {
    auto query = device.template shared<float>(0, group * kWidth);
    auto lse = device.template shared<float>(group * kWidth * 4, group);
    for (std::int64_t i = device.thread_idx(); i < group * kWidth; i += kThreads) {
      const std::int64_t h = i / kWidth, c = i % kWidth;
      query[i] = c < a.kv.head_dim
                     ? device.load(a.q + t * a.ldq + (first_head + h) * a.kv.head_dim + c) * a.scale
                     : 0.0f;
    }
    for (std::int64_t h = device.thread_idx(); h < group; h += kThreads)
      lse[h] = device.load(a.lse + t * a.ld_lse + first_head + h);
  }

  template <class Device>
  QUIRE_DEVICE void add_row(Device& device, std::int64_t t, std::int64_t group,
                            const float (&key)[kKeys][8], const std::int32_t (&position)[kKeys],
                            float (&score)[kKeys]) const {
    auto query = device.template shared<float>(0, group * kWidth);
    auto lse = device.template shared<float>(group * kWidth * 4, group);
    const int channel = device.thread_idx() % kLanes * 8;
    const std::int32_t query_position = device.load(a.query_positions + t);
    for (std::int64_t h = 0; h < group; ++h) {
      float dot[kKeys] = {};
      QUIRE_UNROLL
      for (int c = 0; c < 8; ++c) {
        const float q = query[h * kWidth + channel + c];
        QUIRE_UNROLL
        for (int k = 0; k < kKeys; ++k) dot[k] += q * key[k][c];
      }
      const float head_lse = lse[h];
      QUIRE_UNROLL
      for (int k = 0; k < kKeys; ++k) {
        for (int mask = kLanes / 2; mask > 0; mask /= 2) dot[k] += device.shuffle_xor(dot[k], mask);
        if (position[k] > query_position || head_lse == -kInfinity) continue;
        const float p = expf(dot[k] - head_lse);
        score[k] = a.reduction == ScoreReduction::kMax ? fmaxf(score[k], p) : score[k] + p;
      }
    }
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; positions are not checked).
template <class Launcher>
Status launch_attention_scores(Launcher& launcher, const AttentionScoresArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0 ||
      a.num_heads / a.kv.num_kv_heads > 16) {
    return Status::invalid("num_heads", "must be 1 to 16 times num_kv_heads (" +
                                            std::to_string(a.kv.num_kv_heads) + "), is " +
                                            std::to_string(a.num_heads));
  }
  if (a.rows < 0 || a.kv.num_rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.rows > 0 && (a.ldq < std::int64_t{a.num_heads} * a.kv.head_dim || a.ld_lse < a.num_heads ||
                     a.ld_scores < a.kv.num_rows)) {
    return Status::invalid("ldq", "row strides must be at least as long as a row");
  }
  if (a.kv.head_stride % 16 != 0 || a.kv.token_stride % 16 != 0)
    return Status::invalid("kv", "strides must be multiples of 16 bytes");
  if (a.rows == 0) return {};
  return with_kv_element(a.kv.dtype, a.kv.head_dim, "kv.dtype", [&]<class E>(E) {
    if constexpr (!std::is_same_v<E, float>) {
      return launch_attention_scores_mma<E>(launcher, a);
    } else {
      const auto score = [&]<int kLanes>() {
        using Kernel = AttentionScoresKernel<E, kLanes>;
        return launcher.launch({{Kernel::num_blocks(a.kv.num_rows), a.kv.num_kv_heads, 1},
                                Kernel::kThreads,
                                Kernel::shared_bytes(a.num_heads / a.kv.num_kv_heads)},
                               Kernel{a});
      };
      if (a.kv.head_dim <= 64) return score.template operator()<8>();
      return a.kv.head_dim <= 128 ? score.template operator()<16>()
                                  : score.template operator()<32>();
    }
  });
}

}  // namespace quire::cuda
