/// This file holds attention of many query rows over paged f16, bf16 or f8 KV on tensor cores
/// (FlashAttention-2). Tiles of keys and values pass through shared memory; scores, softmax and
/// sums stay in registers. The mask is by position only, so query rows and cache rows may come in
/// any order.
///
/// Cost of a tile of 64 keys at head_dim d, for a block of 128 query lanes (64 lanes):
///   operations  4 * 64 * d for each lane: 4.2e6 (2.1e6) at d = 128
///   bytes       256 * d from the second-level cache: 32 KiB at d = 128
///   a warp      2 * d (d) products of 16x8x16, 5/8 * d (9/16 * d) loads of four matrices
///   counted     938 (578) instructions of sm_90a on a whole tile at d = 128; 940 (580) of sm_80
/// Counted for an H100 at d = 128:
///   instructions 938 of 4 warps over 4 schedulers: 938 clocks a tile
///   products     4 * 256 of 2,048 multiply-adds at 2,048 a clock: 1,024 clocks. mma.sync reaches
///                about 0.62 of that rate on sm_90: 1,650 clocks
///   shared       4 * 80 loads of 512 bytes and 32 KiB of copies at 128 bytes a clock: 1,536 clocks
///   L2           128 operations a byte: 3.1 TB/s at 400 TFLOP/s (6.2 with 64 lanes, hence two
///                sizes of blocks)
/// Results in bf16 take no launch of a conversion and 8 bytes less an element; both dtypes leave
/// one kernel, with 253 (161) registers on sm_80 and 255 (165) on sm_90a at d = 128, without
/// spills; with f8 254 (165) and 255 (165), of which the 255 spill one word. Products and shared
/// memory are near balance and do not overlap fully. Measured there: 236 to 337 TFLOP/s, 32 to 46
/// percent of cuBLASLt's rate. On sm_80, where mma.sync has the full rate, 60 to 70 percent are
/// expected.
#pragma once

#include <limits>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// Query rows times heads from which on blocks have 128 query lanes: two blocks on each of 132
/// multiprocessors.
inline constexpr std::int64_t kLargePrefill = std::int64_t{2} * 132 * 128;
inline constexpr std::int64_t kMostPrefillCounts = std::int64_t{1} << 30;

/// Stores neighbouring results, in bf16 as one word.
template <class Device>
QUIRE_DEVICE void store_pair(Device& device, float* out, float low, float high) {
  device.store(out, low);
  device.store(out + 1, high);
}
template <class Device>
QUIRE_DEVICE void store_pair(Device& device, BF16* out, float low, float high) {
  device.store(reinterpret_cast<std::uint32_t*>(out), device.template from_floats<BF16>(low, high));
}

/// One thread block attends with kLanes query lanes of one KV head. Query lane n is query row n /
/// group with head n % group of the group, so the heads of a group share keys and values. Each of
/// four warps takes kParts times 16 query lanes, the rows of the tensor-core products.
///
/// There is one buffer of keys and one of values: a tile's values arrive while its scores are
/// computed, and the next tile's keys while its values are added. Queries and softmax weights are
/// rounded to Product. A lane's bits do not depend on kParts, because tiles of keys start at row 0.
///
/// F8 arrives in a third buffer, where a thread finds what it copied itself; it writes that as F16
/// where other types arrive. With 256 channels there is no room, and no copy is asynchronous.
template <class E, int kDim, int kParts>
struct PrefillAttentionKernel {
  static constexpr int kThreads = 128, kWarpLanes = 16 * kParts, kLanes = 4 * kWarpLanes,
                       kKeys = 64;
  using Product = ProductElement<E>;
  static constexpr bool kWidens = !std::is_same_v<E, Product>, kStages = kWidens && kDim <= 128;
  // Eight elements of padding let neighbouring rows start in different banks
  static constexpr int kRow = kDim + 8;
  static constexpr int kTileBytes = kKeys * kRow * 2, kKeysAt = kLanes * kRow * 2,
                       kValuesAt = kKeysAt + kTileBytes, kStagedAt = kValuesAt + kTileBytes,
                       kSharedBytes = kStagedAt + (kStages ? kKeys * kDim : 0);
  static_assert(kSharedBytes <= kPortableSharedBytes);
  // The padding of a query lane's row has its position, and the next word of the first four rows
  // the latest position of each warp: at 256 channels there is no other place for them
  static constexpr int kRowWords = kRow / 2, kPositionWord = kDim / 2, kLatestWord = kDim / 2 + 1;
  static constexpr int kKeyBlocks = kKeys / 8, kChannelBlocks = kDim / 8, kSteps = kDim / 16;
  // A tile is copied in passes of kCopyRows rows; a thread copies 16 bytes of one row
  static constexpr int kPack = Pack<E>::kCount, kPacks = kDim / kPack, kWide = kPack / 8,
                       kCopyRows = kPacks == 12                       ? 8
                                   : kThreads / kPacks <= kPageTokens ? kThreads / kPacks
                                                                      : kPageTokens,
                       kTilePages = kKeys / kPageTokens;
  static_assert(kPageTokens % kCopyRows == 0);
  static constexpr std::int32_t kUnseen = std::numeric_limits<std::int32_t>::max(),
                                kSeesNothing = std::numeric_limits<std::int32_t>::min();
  static constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  AttentionArgs a;
  DType out_dtype;

  /// A thread's part of its warp's query lanes: of each 16, `lane() / 4` and that plus 8. Scores
  /// are logarithms to base 2. `total` covers only the thread's own columns.
  struct Fragment {
    float out[kParts][kChannelBlocks][4];
    float largest[kParts][2], total[kParts][2];
    std::int32_t earliest, latest;  ///< positions of the warp's lanes
  };
  /// What a thread needs of a tile's rows, loaded a tile ahead.
  struct TileRows {
    const char* pages[kTilePages];
    std::int32_t first, second;  ///< positions of keys lane() and lane() + 32
  };
  using Weights = std::uint32_t[kParts][kKeyBlocks][2];

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const auto group = static_cast<std::uint32_t>(a.num_heads / a.kv.num_kv_heads),
               kv_heads = static_cast<std::uint32_t>(a.kv.num_kv_heads),
               block = static_cast<std::uint32_t>(device.block_idx().x),
               lane_tiles = static_cast<std::uint32_t>(device.grid_dim().x) / kv_heads;
    const std::uint32_t kv_head = block % kv_heads;
    // Blocks with most keys start first, so that short ones fill the end of the launch
    const std::uint32_t first_lane = (lane_tiles - 1 - block / kv_heads) * kLanes;
    Fragment f;
    start(device, first_lane, group, f);
    load_queries(device, first_lane, group, kv_head);
    if (a.kv.head_dim < kDim) clear_padding(device);
    const std::int64_t rows = visible_rows(device, f.latest);  // also a barrier
    const int tiles = static_cast<int>((rows + kKeys - 1) / kKeys);
    // The thread's place in a page
    const auto own = static_cast<int>(kv_head * a.kv.head_stride +
                                      device.thread_idx() / kPacks * a.kv.token_stride +
                                      device.thread_idx() % kPacks * 16);
    TileRows next;
    if (tiles > 0) {
      load_rows(device, 0, next);
      start_copies(device, kKeysAt, 0, next, own);
    }
    device.commit_copies();
    for (int tile = 0; tile < tiles; ++tile) {
      device.template wait_copies<0>();
      widen_copies(device, kKeysAt);
      device.sync_threads();  // the keys are there, and nobody reads the previous values
      start_copies(device, kValuesAt, tile, next, own + static_cast<int>(a.kv.kv_stride));
      device.commit_copies();
      const bool some = any(device, next.first <= f.latest || next.second <= f.latest),
                 masked = any(device, next.first > f.earliest || next.second > f.earliest);
      if (tile + 1 < tiles) load_rows(device, tile + 1, next);
      Weights weights;
      if (some) {
        float scores[kParts][kKeyBlocks][4] = {};
        multiply_keys(device, scores);
        if (masked) mask(device, tile, scores);
        weigh(device, f, scores, weights);
      }
      device.template wait_copies<0>();
      widen_copies(device, kValuesAt);
      device.sync_threads();  // the values are there, and nobody reads these keys
      if (tile + 1 < tiles) start_copies(device, kKeysAt, tile + 1, next, own);
      device.commit_copies();
      if (some) add_values(device, weights, f);
    }
    store(device, first_lane, group, kv_head, f);
  }

 private:
  template <class Device>
  QUIRE_DEVICE static bool any(Device& device, bool set) {
    return device.ballot(set) != 0;
  }

  /// The first of the warp's query lanes, relative to the block's.
  template <class Device>
  QUIRE_DEVICE static int warp_lane(Device& device) {
    return device.warp() * kWarpLanes;
  }

  /// The rows of the block's queries with their padding.
  template <class Device>
  QUIRE_DEVICE static auto query_words(Device& device) {
    return device.template shared<std::int32_t>(0, kLanes * kRowWords);
  }

  template <class Device>
  QUIRE_DEVICE void start(Device& device, std::uint32_t first_lane, std::uint32_t group,
                          Fragment& f) const {
    QUIRE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      QUIRE_UNROLL
      for (int c = 0; c < kChannelBlocks; ++c) {
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) f.out[part][c][i] = 0;
      }
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        f.largest[part][half] = -kInfinity;
        f.total[part][half] = 0;
      }
    }
    f.earliest = kUnseen;
    f.latest = kSeesNothing;
    if (device.lane() < kWarpLanes) {
      const int lane = warp_lane(device) + device.lane();
      const std::uint32_t t = (first_lane + static_cast<std::uint32_t>(lane)) / group;
      std::int32_t position = kSeesNothing;
      if (t < a.rows) {
        // Rows past the end have position kUnseen, which no query may reach
        position = least(device.load(a.query_positions + t), kUnseen - 1);
        f.earliest = f.latest = position;
      }
      query_words(device)[lane * kRowWords + kPositionWord] = position;
    }
    for (int mask = 1; mask < 32; mask *= 2) {
      f.earliest = least(f.earliest, device.shuffle_xor(f.earliest, mask));
      f.latest = most(f.latest, device.shuffle_xor(f.latest, mask));
    }
  }
  QUIRE_DEVICE static std::int32_t least(std::int32_t x, std::int32_t y) { return x < y ? x : y; }
  QUIRE_DEVICE static std::int32_t most(std::int32_t x, std::int32_t y) { return x > y ? x : y; }

  /// Rounds the block's queries into shared memory, scaled for powers of two; zeros where there is
  /// no lane or channel.
  template <class Device>
  QUIRE_DEVICE void load_queries(Device& device, std::uint32_t first_lane, std::uint32_t group,
                                 std::uint32_t kv_head) const {
    constexpr int kEach = kDim / 8;
    auto packs = device.template shared<Pack<Product>>(0, kLanes * (kRow / 8));
    const float scale = a.scale * kLog2E;
    for (int i = device.thread_idx(); i < kLanes * kEach; i += kThreads) {
      const int pack = i % kEach;
      const std::uint32_t lane = first_lane + static_cast<std::uint32_t>(i / kEach);
      const std::int64_t t = lane / group;
      Pack<Product> rounded{};
      if (t < a.rows && pack * 8 < a.kv.head_dim) {
        const float* q = a.q + t * a.ldq + (kv_head * group + lane % group) * a.kv.head_dim +
                         pack * 8;
        QUIRE_UNROLL
        for (int c = 0; c < 8; ++c)
          rounded.e[c] = device.template from_float<Product>(device.load(q + c) * scale);
      }
      packs[i / kEach * (kRow / 8) + pack] = rounded;
    }
  }

  /// Copies never touch channels past head_dim; zeros there keep products finite.
  template <class Device>
  QUIRE_DEVICE void clear_padding(Device& device) const {
    constexpr int kEach = kDim / 8;
    auto packs = device.template shared<Pack<Product>>(kKeysAt, 2 * kKeys * (kRow / 8));
    const int first = a.kv.head_dim / 8;
    for (int i = device.thread_idx(); i < 2 * kKeys * kEach; i += kThreads) {
      if (i % kEach >= first) packs[i / kEach * (kRow / 8) + i % kEach] = Pack<Product>{};
    }
  }

  /// Returns the number of cache rows that some query lane of the block may see. Sorted positions
  /// allow later rows to be cut off. All threads of the block meet here.
  template <class Device>
  QUIRE_DEVICE std::int64_t visible_rows(Device& device, std::int32_t latest) const {
    auto words = query_words(device);
    if (device.lane() == 0) words[device.warp() * kRowWords + kLatestWord] = latest;
    device.sync_threads();
    if (!a.kv.sorted) return a.kv.num_rows;
    for (int warp = 0; warp < 4; ++warp) {
      const std::int32_t other = words[warp * kRowWords + kLatestWord];
      latest = most(latest, other);
    }
    // Rows before low are visible, rows from high on are not; the lanes of a warp try 32 rows
    std::int64_t low = 0, high = a.kv.num_rows;
    while (low < high) {
      const std::int64_t step = (high - low + 31) / 32, tried = low + device.lane() * step;
      int visible = tried < high && device.load(a.kv.positions + tried) <= latest ? 1 : 0;
      for (int mask = 1; mask < 32; mask *= 2) visible += device.shuffle_xor(visible, mask);
      const std::int64_t first_unseen = low + visible * step;
      if (visible > 0) low = first_unseen - step + 1;
      high = first_unseen < high ? first_unseen : high;
    }
    return low;
  }

  template <class Device>
  QUIRE_DEVICE std::int32_t position_of(Device& device, int tile, int key) const {
    const int row = tile * kKeys + key;
    return row < num_rows() ? device.load(a.kv.positions + row) : kUnseen;
  }
  template <class Device>
  QUIRE_DEVICE void load_rows(Device& device, int tile, TileRows& rows) const {
    const int last_page = (num_rows() - 1) / kPageTokens;
    QUIRE_UNROLL
    for (int p = 0; p < kTilePages; ++p) {
      const int page = tile * kTilePages + p < last_page ? tile * kTilePages + p : last_page;
      rows.pages[p] = static_cast<const char*>(device.load(a.kv.pages + page));
    }
    rows.first = position_of(device, tile, device.lane());
    rows.second = position_of(device, tile, device.lane() + 32);
  }

  /// Starts copying a tile of keys or values, with zeros past the last row. `own` is the thread's
  /// place in a page.
  template <class Device>
  QUIRE_DEVICE void start_copies(Device& device, int to, int tile, const TileRows& rows,
                                 int own) const {
    const int row = device.thread_idx() / kPacks, pack = device.thread_idx() % kPacks;
    if (row >= kCopyRows || pack * kPack >= a.kv.head_dim) return;
    const int rows_left = num_rows() - tile * kKeys;
    if constexpr (kWidens && !kStages) {
      auto words = device.template shared<Pack<std::uint32_t>>(to, kKeys * (kRow / 8));
      QUIRE_UNROLL
      for (int first = 0; first < kKeys; first += kCopyRows) {
        Pack<std::uint16_t> narrow{};
        if (first + row < rows_left)
          narrow = device.load(
              reinterpret_cast<const Pack<std::uint16_t>*>(source(rows, first, own)));
        store_widened(device, narrow, words, (row + first) * (kRow / 8) + pack * kWide);
      }
      return;
    }
    constexpr int kTo = kStages ? kPacks : kRow / 8;  // packs from row to row
    auto packs = device.template shared<Pack<E>>(kStages ? kStagedAt : to, kKeys * kTo);
    const int at = row * kTo + pack;
    // Both loops stand alone, so that a whole tile costs no comparisons
    if (rows_left >= kKeys) {
      QUIRE_UNROLL
      for (int first = 0; first < kKeys; first += kCopyRows)
        device.copy_async(packs, at + first * kTo, source(rows, first, own));
    } else {
      QUIRE_UNROLL
      for (int first = 0; first < kKeys; first += kCopyRows) {
        device.copy_async_or_zero(packs, at + first * kTo, source(rows, first, own),
                                  first + row < rows_left);
      }
    }
  }
  /// Writes as F16 what start_copies() has brought to this thread; other types are in place.
  template <class Device>
  QUIRE_DEVICE void widen_copies(Device& device, int to) const {
    if constexpr (kStages) {
      const int row = device.thread_idx() / kPacks, pack = device.thread_idx() % kPacks;
      if (row >= kCopyRows || pack * kPack >= a.kv.head_dim) return;
      auto narrow = device.template shared<Pack<std::uint16_t>>(kStagedAt, kKeys * kPacks);
      auto words = device.template shared<Pack<std::uint32_t>>(to, kKeys * (kRow / 8));
      QUIRE_UNROLL
      for (int first = 0; first < kKeys; first += kCopyRows) {
        const Pack<std::uint16_t> sixteen = narrow[(row + first) * kPacks + pack];
        store_widened(device, sixteen, words, (row + first) * (kRow / 8) + pack * kWide);
      }
    }
  }
  QUIRE_DEVICE const Pack<E>* source(const TileRows& rows, int first, int own) const {
    const int strides = first % kPageTokens * static_cast<int>(a.kv.token_stride);
    return reinterpret_cast<const Pack<E>*>(rows.pages[first / kPageTokens] + (own + strides));
  }
  QUIRE_DEVICE int num_rows() const { return static_cast<int>(a.kv.num_rows); }

  template <class Device>
  QUIRE_DEVICE void multiply_keys(Device& device, float (&scores)[kParts][kKeyBlocks][4]) const {
    auto queries = device.template shared<Product>(0, kLanes * kRow);
    auto keys = device.template shared<Product>(kKeysAt, kKeys * kRow);
    const int lane = device.lane();
    // Rows of a left operand: lanes 0 to 15 its 16 rows, lanes 16 to 31 the same, 8 channels on
    const int query = (warp_lane(device) + lane % 16) * kRow + lane / 16 * 8;
    // Of a right operand: keys 0 to 7, the same 8 channels on, and keys 8 to 15 likewise
    const int key = (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8;
    QUIRE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t q[kParts][4];
      QUIRE_UNROLL
      for (int part = 0; part < kParts; ++part)
        device.load_matrices(q[part], queries, query + part * 16 * kRow + step * 16);
      QUIRE_UNROLL
      for (int n = 0; n < kKeyBlocks; n += 2) {
        std::uint32_t k[4];
        device.load_matrices(k, keys, key + n * 8 * kRow + step * 16);
        const std::uint32_t even[2] = {k[0], k[1]}, odd[2] = {k[2], k[3]};
        QUIRE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          device.mma(scores[part][n], q[part], even, Product{});
          device.mma(scores[part][n + 1], q[part], odd, Product{});
        }
      }
    }
  }

  /// Makes the scores of keys that a lane may not see -inf.
  template <class Device>
  QUIRE_DEVICE void mask(Device& device, int tile, float (&scores)[kParts][kKeyBlocks][4]) const {
    auto words = query_words(device);
    std::int32_t query[kParts][2];
    QUIRE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int lane = warp_lane(device) + part * 16 + half * 8 + device.lane() / 4;
        query[part][half] = words[lane * kRowWords + kPositionWord];
      }
    }
    QUIRE_UNROLL
    for (int n = 0; n < kKeyBlocks; ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::int32_t key = position_of(device, tile, n * 8 + device.lane() % 4 * 2 + i);
        QUIRE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          if (key > query[part][0]) scores[part][n][i] = -kInfinity;
          if (key > query[part][1]) scores[part][n][2 + i] = -kInfinity;
        }
      }
    }
  }

  /// Turns scores into weights relative to the running maximum and rescales earlier sums
  /// accordingly.
  template <class Device>
  QUIRE_DEVICE void weigh(Device& device, Fragment& f, const float (&scores)[kParts][kKeyBlocks][4],
                          Weights& weights) const {
    QUIRE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float largest = f.largest[part][half];
        QUIRE_UNROLL
        for (int n = 0; n < kKeyBlocks; ++n) {
          largest = fmaxf(largest, scores[part][n][2 * half]);
          largest = fmaxf(largest, scores[part][n][2 * half + 1]);
        }
        largest = fmaxf(largest, device.shuffle_xor(largest, 1));
        largest = fmaxf(largest, device.shuffle_xor(largest, 2));
        // A lane that has seen no key has largest -inf, and all its weights shall be 0
        const float base = largest == -kInfinity ? 0.0f : largest,
                    shrink = device.exp2_approx(f.largest[part][half] - base);
        f.largest[part][half] = largest;
        float total = f.total[part][half] * shrink;
        QUIRE_UNROLL
        for (int n = 0; n < kKeyBlocks; ++n) {
          const float low = device.exp2_approx(scores[part][n][2 * half] - base),
                      high = device.exp2_approx(scores[part][n][2 * half + 1] - base);
          total += low;
          total += high;
          weights[part][n][half] = device.template from_floats<Product>(low, high);
        }
        f.total[part][half] = total;
        QUIRE_UNROLL
        for (int c = 0; c < kChannelBlocks; ++c) {
          f.out[part][c][2 * half] *= shrink;
          f.out[part][c][2 * half + 1] *= shrink;
        }
      }
    }
  }

  template <class Device>
  QUIRE_DEVICE void add_values(Device& device, const Weights& weights, Fragment& f) const {
    auto values = device.template shared<Product>(kValuesAt, kKeys * kRow);
    // Keys 0 to 7 and 8 to 15 of 8 channels, then of the next 8
    const int value = device.lane() % 16 * kRow + device.lane() / 16 * 8;
    QUIRE_UNROLL
    for (int k = 0; k < kKeyBlocks; k += 2) {
      QUIRE_UNROLL
      for (int c = 0; c < kChannelBlocks; c += 2) {
        std::uint32_t v[4];
        device.load_matrices_transposed(v, values, value + k * 8 * kRow + c * 8);
        const std::uint32_t even[2] = {v[0], v[1]}, odd[2] = {v[2], v[3]};
        QUIRE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          // 16 keys: two blocks of weights form one left operand
          const std::uint32_t p[4] = {weights[part][k][0], weights[part][k][1],
                                      weights[part][k + 1][0], weights[part][k + 1][1]};
          device.mma(f.out[part][c], p, even, Product{});
          device.mma(f.out[part][c + 1], p, odd, Product{});
        }
      }
    }
  }

  /// Writes the thread's pairs of channels of a lane, `inverse` times the sums.
  template <class Device, class Out>
  QUIRE_DEVICE void store_row(Device& device, Out* out, const float (&sums)[kChannelBlocks][4],
                              int half, float inverse) const {
    QUIRE_UNROLL
    for (int block = 0; block < kChannelBlocks; ++block) {
      if (block * 8 >= a.kv.head_dim) continue;
      store_pair(device, out + block * 8, sums[block][2 * half] * inverse,
                 sums[block][2 * half + 1] * inverse);
    }
  }

  template <class Device>
  QUIRE_DEVICE void store(Device& device, std::uint32_t first_lane, std::uint32_t group,
                          std::uint32_t kv_head, const Fragment& f) const {
    QUIRE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float total = f.total[part][half];
        total += device.shuffle_xor(total, 1);
        total += device.shuffle_xor(total, 2);
        const std::uint32_t lane = first_lane +
                                   static_cast<std::uint32_t>(warp_lane(device) + part * 16 +
                                                              half * 8 + device.lane() / 4);
        const std::int64_t t = lane / group;
        if (t >= a.rows) continue;
        const std::int64_t head = kv_head * group + lane % group;
        const float inverse = total > 0 ? 1.0f / total : 0.0f;  // 0: the lane saw no key
        const std::int64_t at = t * a.ldo + head * a.kv.head_dim + device.lane() % 4 * 2;
        if (out_dtype == DType::kBF16) {
          store_row(device, reinterpret_cast<BF16*>(a.out) + at, f.out[part], half, inverse);
        } else {
          store_row(device, a.out + at, f.out[part], half, inverse);
        }
        if (a.lse != nullptr && device.lane() % 4 == 0) {
          device.store(a.lse + t * a.num_heads + head,
                       total > 0 ? f.largest[part][half] * kLn2 + logf(total) : -kInfinity);
        }
      }
    }
  }
};

inline Status check_prefill(const PrefillAttentionArgs& args) {
  const AttentionArgs& a = args.attention;
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  QUIRE_RETURN_IF_ERROR(quire::internal::check_kv_pieces(a.kv.dtype, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.rows < 0 || a.kv.num_rows < 0) return Status::invalid("rows", "must not be negative");
  const std::int64_t width = std::int64_t{a.num_heads} * a.kv.head_dim;
  if (a.rows > 0 && (a.ldq < width || a.ldo < width))
    return Status::invalid("ldq", "row strides must be at least num_heads * head_dim");
  if (a.kv.kv_stride % 16 != 0 || a.kv.head_stride % 16 != 0 || a.kv.token_stride % 16 != 0)
    return Status::invalid("kv", "strides must be multiples of 16 bytes");
  const std::int64_t page = a.kv.kv_stride + (a.kv.num_kv_heads - 1) * a.kv.head_stride +
                            (kPageTokens - 1) * a.kv.token_stride;
  if (a.kv.num_rows > kMostPrefillCounts || page > kMostPrefillCounts ||
      a.rows > kMostPrefillCounts / (a.num_heads / a.kv.num_kv_heads))
    return Status::invalid("rows", "kernels count rows and bytes of a page in 32 bits");
  QUIRE_RETURN_IF_ERROR(check_product_input(args.to, "to"));
  if (args.to == DType::kBF16 &&
      (reinterpret_cast<std::uintptr_t>(a.out) % 4 != 0 || a.ldo % 2 != 0))
    return Status::invalid("out", "rows of bf16 start at multiples of four bytes");
  return {};
}

/// Computes attention() with kParts times 64 query lanes a block, whose bits are the same for every
/// kParts. Errors: as launch_prefill_attention().
template <class E, int kParts, class Launcher>
Status launch_prefill_blocks(Launcher& launcher, const PrefillAttentionArgs& args) {
  QUIRE_RETURN_IF_ERROR(check_prefill(args));
  const AttentionArgs& a = args.attention;
  const auto attend = [&]<int kDim>() {
    // 256 channels of 32 lanes a warp do not fit its registers
    using Kernel = PrefillAttentionKernel<E, kDim, kDim == 256 ? 1 : kParts>;
    const std::int64_t lanes = a.rows * (a.num_heads / a.kv.num_kv_heads),
                       lane_tiles = (lanes + Kernel::kLanes - 1) / Kernel::kLanes;
    return launcher.launch(
        {{lane_tiles * a.kv.num_kv_heads, 1, 1}, Kernel::kThreads, Kernel::kSharedBytes},
        Kernel{a, args.to});
  };
  if (a.kv.head_dim <= 64) return attend.template operator()<64>();
  if constexpr (sizeof(E) == 2) {  // threads share rows of F8 evenly only with powers of two
    if (a.kv.head_dim <= 96) return attend.template operator()<96>();
  }
  if (a.kv.head_dim <= 128) return attend.template operator()<128>();
  return attend.template operator()<256>();
}

/// Computes attention() for KV of element type E, F16, BF16 or F8. Errors: kInvalidArgument
/// (shapes; positions are not checked).
template <class E, class Launcher>
Status launch_prefill_attention(Launcher& launcher, const PrefillAttentionArgs& args) {
  // Large blocks read keys and values half as often; small ones spread few lanes over the device
  return args.attention.rows * args.attention.num_heads >= kLargePrefill
             ? launch_prefill_blocks<E, 2>(launcher, args)
             : launch_prefill_blocks<E, 1>(launcher, args);
}

}  // namespace quire::cuda
