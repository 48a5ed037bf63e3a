/// This file holds voted_lists() on the GPU (kernels/choice/voted_lists.h): votes, the k best of
/// each list, and their bits.
///
/// Cost of g groups of h query heads over n rows, for one KV head at head_dim d:
///   operations  2 * n * d * g * h, on tensor cores for KV of 16 bits
///   bytes       2 * n * d of keys once, 4 * n * g of votes written and, by top_k, read six times
/// The products bound it from about 8 query heads on; below that, votes do.
#pragma once

#include <type_traits>

#include "kernels/choice/voted_lists.h"
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/choice/select.cuh"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// For KV of 16 bits. One thread block handles kKeys keys of one KV head over all groups, as many
/// whole groups at a time as kRows query rows hold. Of eight warps four have 16 rows each, with one
/// half of the keys, and four the same rows with the other half. Votes are in base 2, which changes
/// no order.
template <class E, int kDim>
struct RowVotesMmaKernel {
  static constexpr int kThreads = 256, kRows = 64, kKeys = kDim <= 128 ? 128 : 64,
                       kRow = kTileRow<kDim>,
                       kLine = kKeys + 8;  ///< of scores; kRow of queries and keys
  static constexpr int kPositionsAt = kKeys * kRow * 2, kLseAt = kPositionsAt + kKeys * 4,
                       kQueriesAt = kLseAt + kRows * 4, kQueryBytes = kRows * kRow * 2,
                       kScoreBytes = kRows * kLine * 4;
  /// Scores lie where queries were.
  static constexpr int kSharedBytes = kQueriesAt +
                                      (kQueryBytes > kScoreBytes ? kQueryBytes : kScoreBytes);
  static constexpr int kTile = QueryRows::kTile, kHalf = kKeys / 2, kBlocks = kHalf / 8;
  using Product = ProductElement<E>;  ///< of queries and keys in shared memory
  static constexpr float kLog2E = 1.4426950408889634f;
  /// The members that load_tile_queries() reads, and the rest of the call.
  const float* q;
  std::int64_t ldq;
  float scale;
  KvView kv;
  VotedListsArgs a;
  bool wide;  ///< whether rows of queries allow accesses of 16 bytes

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t first_key = a.first_row + device.block_idx().x * kKeys,
                       end = a.first_row + a.num_rows;
    const int group = a.num_heads / kv.num_kv_heads,
              kv_head = static_cast<int>(device.block_idx().y), groups = kRows / group;
    copy_tile_keys<E, kDim, kKeys, kThreads>(device, kv, first_key, end, kv_head, 0);
    device.commit_copies();
    auto positions = device.template shared<std::int32_t>(kPositionsAt, kKeys);
    if (const int i = device.thread_idx(); i < kKeys)
      positions[i] = first_key + i < end ? device.load(kv.positions + first_key + i) : 0;
    for (std::int64_t first = 0; first < a.num_groups; first += groups) {
      const std::int64_t left = a.num_groups - first;
      const QueryRows rows{first, 0, group,
                           group * static_cast<int>(left < groups ? left : groups)};
      load_tile_queries<Product, kDim, kRows, kThreads>(device, *this, rows, kv_head, wide,
                                                        kQueriesAt);
      load_lse(device, rows, kv_head);
      device.template wait_copies<0>();
      device.sync_threads();
      const int tile = device.warp() % (kRows / kTile) * kTile,
                key = device.warp() / (kRows / kTile) * kHalf;
      float scores[kBlocks][4] = {};
      if (tile < rows.count) {
        multiply_tile<Product, kDim>(
            device, device.template shared<Product>(kQueriesAt, kRows * kRow), tile,
            device.template shared<Product>(0, kKeys * kRow), key, scores);
      }
      device.sync_threads();  // nobody reads these queries
      if (tile < rows.count) store_scores(device, tile, key, scores);
      device.sync_threads();
      store_votes(device, rows, kv_head, first_key, end);
      device.sync_threads();  // nobody reads these scores
    }
  }

 private:
  struct alignas(8) Two {
    float e[2];
  };

  template <class Device>
  QUIRE_DEVICE void load_lse(Device& device, const QueryRows& rows, int kv_head) const {
    auto lse = device.template shared<float>(kLseAt, kRows);
    const int i = device.thread_idx();
    if (i >= kRows) return;
    lse[i] = i < rows.count ? device.load(a.lse + rows.row_of(i) * a.num_heads +
                                          kv_head * rows.group + rows.head_of(i)) *
                                  kLog2E
                            : 0.0f;
  }

  template <class Device>
  QUIRE_DEVICE void store_scores(Device& device, int tile, int key,
                                 const float (&scores)[kBlocks][4]) const {
    auto twos = device.template shared<Two>(kQueriesAt, kRows * (kLine / 2));
    auto lse = device.template shared<float>(kLseAt, kRows);
    const int first = key + device.lane() % 4 * 2;
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = tile + device.lane() / 4 + half * 8;
      const float own_lse = lse[row];
      QUIRE_UNROLL
      for (int n = 0; n < kBlocks; ++n)
        twos[row * (kLine / 2) + first / 2 + n * 4] = Two{
            {scores[n][2 * half] - own_lse, scores[n][2 * half + 1] - own_lse}};
    }
  }

  /// Reduces each group's rows; neighbouring threads have neighbouring keys.
  template <class Device>
  QUIRE_DEVICE void store_votes(Device& device, const QueryRows& rows, int kv_head,
                                std::int64_t first_key, std::int64_t end) const {
    auto scores = device.template shared<float>(kQueriesAt, kRows * kLine);
    auto positions = device.template shared<std::int32_t>(kPositionsAt, kKeys);
    const int key = device.thread_idx() % kKeys;
    if (first_key + key >= end) return;
    const std::int32_t position = positions[key];
    for (int i = device.thread_idx() / kKeys; i < rows.count / rows.group; i += kThreads / kKeys) {
      float vote = -kInfinity;
      if (position <= device.load(a.limits + rows.row + i)) {
        for (int g = 0; g < rows.group; ++g) {
          const float score = scores[(i * rows.group + g) * kLine + key];
          vote = fmaxf(vote, score);
        }
      }
      device.store(a.votes + (kv_head * a.num_groups + rows.row + i) * a.num_rows + first_key +
                       key - a.first_row,
                   vote);
    }
  }
};

/// For f32 KV. One thread block handles kThreads keys, one a thread, of one KV head for one group,
/// whose queries are in shared memory.
struct RowVotesKernel {
  static constexpr int kThreads = 128;
  VotedListsArgs a;

  int shared_bytes() const { return a.num_heads / a.kv.num_kv_heads * a.kv.head_dim * 4; }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t kv_head = device.block_idx().y, i = device.block_idx().z;
    const int group = a.num_heads / a.kv.num_kv_heads, dim = a.kv.head_dim, values = group * dim;
    auto query = device.template shared<float>(0, values);
    const std::int64_t head = i * a.num_heads + kv_head * group;
    for (int c = device.thread_idx(); c < values; c += kThreads)
      query[c] = device.load(a.q + head * dim + c) * a.scale;
    device.sync_threads();
    const std::int64_t key = device.block_idx().x * kThreads + device.thread_idx();
    if (key >= a.num_rows) return;
    const std::int64_t row = a.first_row + key;
    const char* at = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                     kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
    float vote = -kInfinity;
    const bool visible = device.load(a.kv.positions + row) <= device.load(a.limits + i);
    for (int g = 0; visible && g < group; ++g) {
      float sum = 0;
      for (int c = 0; c < dim; c += 8) {
        float channels[8];
        load8<float>(device, at + c * 4, channels);
        QUIRE_UNROLL
        for (int n = 0; n < 8; ++n) {
          const float q = query[g * dim + c + n];
          sum += q * channels[n];
        }
      }
      vote = fmaxf(vote, sum - device.load(a.lse + head + g));
    }
    device.store(a.votes + (kv_head * a.num_groups + i) * a.num_rows + key, vote);
  }
};

/// One thread writes one word of a list: it looks up where the word begins among the list's rows,
/// which ascend.
struct MarkListsKernel {
  static constexpr int kThreads = 128;
  VotedListsArgs a;
  std::int64_t kept;  ///< min(k, num_rows)

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t word = device.block_idx().x * kThreads + device.thread_idx(),
                       list = device.block_idx().y;
    if (word >= a.list_words) return;
    const std::int32_t* best = a.best + list * kept;
    const float* votes = a.votes + list * a.num_rows;
    const std::int64_t begin = word * 64 - a.first_row;
    std::int64_t low = 0, high = kept;  // the first entry at or after `begin`
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (device.load(best + middle) < begin)
        low = middle + 1;
      else
        high = middle;
    }
    std::uint64_t bits = 0;
    for (; low < kept; ++low) {
      const std::int64_t row = device.load(best + low);
      if (row >= begin + 64) break;
      if (device.load(votes + row) > -kInfinity) bits |= std::uint64_t{1} << (row - begin);
    }
    const std::int64_t kv_head = list / a.num_groups, group = list % a.num_groups;
    device.store(a.lists + (kv_head * a.ld_lists + group) * a.list_words + word, bits);
  }
};

/// Launches the kernels. Errors: kInvalidArgument (shapes; positions are not checked).
template <class Launcher>
Status launch_voted_lists(Launcher& launcher, const VotedListsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_voted_lists(a));
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads, kv_heads = a.kv.num_kv_heads;
  if (group > 16) return Status::invalid("num_heads", "at most 16 query heads of a KV head");
  if (a.kv.head_stride % 16 != 0 || a.kv.token_stride % 16 != 0)
    return Status::invalid("kv", "strides must be multiples of 16 bytes");
  if (a.num_groups > 65535 / kv_heads)
    return Status::invalid("num_groups", "65535 lists a call at most");
  if (a.num_groups == 0 || a.list_words == 0) return {};
  if (a.num_rows > 0) {
    QUIRE_RETURN_IF_ERROR(with_kv_element(a.kv.dtype, a.kv.head_dim, "kv.dtype", [&]<class E>(E) {
      if constexpr (std::is_same_v<E, float>) {
        const RowVotesKernel kernel{a};
        return launcher.launch(
            {{(a.num_rows + RowVotesKernel::kThreads - 1) / RowVotesKernel::kThreads, kv_heads,
              a.num_groups},
             RowVotesKernel::kThreads,
             kernel.shared_bytes()},
            kernel);
      } else {
        const std::int64_t width = std::int64_t{a.num_heads} * a.kv.head_dim;
        const auto vote = [&]<int kDim>() {
          using Kernel = RowVotesMmaKernel<E, kDim>;
          return launcher.launch({{(a.num_rows + Kernel::kKeys - 1) / Kernel::kKeys, kv_heads, 1},
                                  Kernel::kThreads,
                                  Kernel::kSharedBytes},
                                 Kernel{a.q, width, a.scale, a.kv, a, wide_rows(a.q, width)});
        };
        if (a.kv.head_dim <= 64) return vote.template operator()<64>();
        if (a.kv.head_dim <= 96) return vote.template operator()<96>();
        if (a.kv.head_dim <= 128) return vote.template operator()<128>();
        return vote.template operator()<256>();
      }
    }));
  }
  const std::int64_t lists = kv_heads * a.num_groups;
  QUIRE_RETURN_IF_ERROR(launch_top_k(launcher, {.scores = a.votes,
                                                .rows = lists,
                                                .n = a.num_rows,
                                                .k = a.k,
                                                .order = TopKOrder::kAscendingIndex,
                                                .out = a.best}));
  return launcher.launch(
      {{(a.list_words + MarkListsKernel::kThreads - 1) / MarkListsKernel::kThreads, lists, 1},
       MarkListsKernel::kThreads,
       0},
      MarkListsKernel{a, a.k < a.num_rows ? a.k : a.num_rows});
}

}  // namespace quire::cuda
