/// This file holds attention of few query rows over paged KV of 16 or 8 bits on tensor cores: the
/// query heads of a KV head are rows of one product (flash decoding with packed groups).
///
/// Cost of a tile of 64 keys at head_dim d, for a block of one KV head and up to eight query heads:
///   bytes       256 * d of keys and values, 256 of positions, 32 of pages: 32 KiB at d = 128
///   results     4 * (d + 1) bytes a query head and chunk, written and read once: 3 percent of the
///               keys and values with groups of four, 6 with eight; mostly in the L2 cache
///   operations  8 * 64 * 4 * d, and as many for the second parts: 5.2e5 at d = 128
///   a warp      d / 4 products of 16x8x16, d / 8 loads of four matrices, d / 8 copies a lane
///   counted     591 instructions of sm_90a at d = 128 with what ends a chunk (one tile of four);
///               609 of sm_80
/// Counted for an H100 at d = 128:
///   instructions 591 clocks for 32 KiB of a multiprocessor: 13 TB/s, four times the memory's rate
///   latency      three blocks a multiprocessor, each with 32 KiB under way in about 1 us, ask for
///                13 TB/s; one block for 4.3 TB/s
/// With f8 a tile has 16 KiB; its fragments are widened in registers, 64 conversions of two numbers
/// a warp and lane. Four blocks a multiprocessor have the registers for it (126 each); the other
/// types have 134 on sm_90a (bf16 141 on sm_80), without spills at any d.
/// So memory bounds it. Measured there, with the merge: 82 to 90 percent of copy bandwidth for 8 to
/// 64 sequences of 8 Ki keys. One sequence of 8 Ki keys takes 23 us, 11 at copy bandwidth.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// The number of chunks, how many of them a thread block attends to, and where results go.
struct DecodeSplit {
  std::int64_t num_chunks, run;
  float* out;  ///< [num_chunks, rows, num_heads, head_dim], normalized; unwritten where lse is -inf
  float* lse;  ///< [num_chunks, rows, num_heads]
};

template <class Device>
QUIRE_DEVICE RowList load_list(Device& device, const RowList* p) {
  return {device.load(&p->rows), device.load(&p->length)};
}

/// Returns the cache of query row t.
template <class Device>
QUIRE_DEVICE SequenceKv sequence_of(Device& device, const AttentionArgs& a, const RowList* lists,
                                    const SequenceKv* sequences, std::int64_t t) {
  if (sequences == nullptr) return {a.kv.pages, a.kv.positions, a.kv.num_rows, lists};
  const SequenceKv* p = sequences + t;
  return {device.load(&p->pages), device.load(&p->positions), device.load(&p->num_rows),
          device.load(&p->lists)};
}

/// One thread block attends with up to eight query heads of one KV head and one query row to a run
/// of chunks of keys, one partial result each. A chunk's bits depend on nothing but its keys.
///
/// A product has 16 rows: queries and softmax weights are sums of two numbers of type E, and rows g
/// and g + 8 are the two parts of head g. A thread holds both sums, so nothing is rounded to E but
/// what is left of the second part, 2^-17 (bf16) or 2^-22 (f16) of a value.
///
/// Of a tile of keys each of four warps copies and scores a quarter. Scores meet in shared memory;
/// then each warp adds a quarter of the channels of all values. Two tiles take turns, so that one
/// is copied while the other one is used.
template <class E, int kDim>
struct DecodeAttentionTensorKernel {
  static constexpr int kThreads = 128, kHeads = 8, kKeys = kDim > 128 ? 32 : 64,
                       kWarpKeys = kKeys / 4, kTiles = kDecodeChunk / kKeys;
  // F8 lies in shared memory as it is and becomes F16 in registers
  using Product = ProductElement<E>;
  static constexpr bool kWidens = !std::is_same_v<E, Product>;
  // A pack of padding lets neighbouring rows start in different banks
  static constexpr int kPack = Pack<E>::kCount, kRow = kDim + kPack, kRowPacks = kRow / kPack,
                       kScoreRow = kKeys + 8;
  static constexpr int kPartBytes = kKeys * kRow * static_cast<int>(sizeof(E)),
                       kTileBytes = 2 * kPartBytes, kScores = 2 * kTileBytes,
                       kScoreBytes = kHeads * kScoreRow * 4,
                       kSharedBytes = kScores + 2 * kScoreBytes;
  static constexpr int kSteps = kDim / 16, kKeyBlocks = kWarpKeys / 8, kChannels = kDim / 4,
                       kChannelBlocks = kChannels / 8;
  // A warp copies kCopyRows rows at once; a lane copies 16 bytes of one row
  static constexpr int kPacks = kDim / kPack, kCopyRows = 32 / kPacks;
  static constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  AttentionArgs a;
  const RowList* lists;
  const SequenceKv* sequences;
  DecodeSplit split;

  struct alignas(8) Two {
    float low, high;
  };
  /// The keys of a block, and what it does with them.
  struct Work {
    SequenceKv kv;
    RowList list;
    std::int64_t begin, end;  ///< keys of the block's run
    std::int32_t position;    ///< of the query
    std::int64_t kv_head, first_head, t;
    int heads, tiles;
  };
  /// A lane's key of the next tile: lane() % kWarpKeys of the warp's.
  struct Key {
    std::int64_t row;  ///< cache row; -1: none
    std::int32_t position;
    const char* page;
  };
  /// Running softmax of head lane() / 4. Scores are logarithms to base 2; `total` covers only the
  /// thread's own keys, `out` the warp's channels.
  struct Running {
    float largest = -kInfinity, total = 0, out[kChannelBlocks][4] = {};
  };
  using Query = std::uint32_t[kSteps][4];

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const Work work = begin(device);
    if (work.tiles == 0) return;
    Query query;
    load_query(device, work, query);
    if (a.kv.head_dim < kDim) clear_padding(device);
    Key key = load_key(device, work, key_row(device, work, 0));
    std::uint32_t seen = start_tile(device, work, 0, key);
    key = load_key(device, work, key_row(device, work, 1));
    std::int64_t row = key_row(device, work, 2);
    Running running;
    for (int tile = 0; tile < work.tiles; ++tile) {
      device.template wait_copies<0>();
      device.sync_warp();
      score(device, tile, seen, query);
      device.sync_threads();  // scores and values are there; nobody uses the previous tile
      if (tile + 1 < work.tiles) {
        seen = start_tile(device, work, tile + 1, key);
        key = load_key(device, work, row);
        row = key_row(device, work, tile + 3);
      }
      add(device, tile, running);
      if ((tile + 1) % kTiles == 0 || tile + 1 == work.tiles) {
        store(device, work, tile / kTiles, running);
        running = Running{};
      }
    }
  }

 private:
  template <class Device>
  QUIRE_DEVICE Work begin(Device& device) const {
    const std::int64_t group = a.num_heads / a.kv.num_kv_heads,
                       head_tiles = (group + kHeads - 1) / kHeads;
    Work w;
    w.t = device.block_idx().z;
    w.kv_head = device.block_idx().y / head_tiles;
    w.first_head = w.kv_head * group + device.block_idx().y % head_tiles * kHeads;
    const std::int64_t heads_left = (w.kv_head + 1) * group - w.first_head;
    w.heads = static_cast<int>(heads_left < kHeads ? heads_left : kHeads);
    w.kv = sequence_of(device, a, lists, sequences, w.t);
    w.list = w.kv.lists != nullptr ? load_list(device, w.kv.lists + w.kv_head)
                                   : RowList{nullptr, w.kv.num_rows};
    w.position = device.load(a.query_positions + w.t);
    const std::int64_t first = device.block_idx().x * split.run;
    const std::int64_t last = first + split.run < split.num_chunks ? first + split.run
                                                                   : split.num_chunks;
    w.begin = first * kDecodeChunk;
    w.end = last * kDecodeChunk < w.list.length ? last * kDecodeChunk : w.list.length;
    w.tiles = w.end > w.begin ? static_cast<int>((w.end - w.begin + kKeys - 1) / kKeys) : 0;
    // Chunks past the end of the list are empty
    for (std::int64_t chunk = first + (w.tiles + kTiles - 1) / kTiles; chunk < last; ++chunk) {
      if (device.thread_idx() < w.heads)
        device.store(split.lse + result_row(w, chunk) + device.thread_idx(), -kInfinity);
    }
    return w;
  }
  QUIRE_DEVICE std::int64_t result_row(const Work& w, std::int64_t chunk) const {
    return (chunk * a.rows + w.t) * a.num_heads + w.first_head;
  }

  /// Splits two numbers into their parts of type Product.
  template <class Device>
  QUIRE_DEVICE static void two_parts(Device& device, float low, float high, std::uint32_t& first,
                                     std::uint32_t& second) {
    first = device.template from_floats<Product>(low, high);
    const Product l{static_cast<std::uint16_t>(first)}, h{static_cast<std::uint16_t>(first >> 16)};
    second = device.template from_floats<Product>(low - device.to_float(l),
                                                  high - device.to_float(h));
  }

  /// Loads the query, scaled for powers of two, as left operands; zeros past head_dim and past the
  /// last head.
  template <class Device>
  QUIRE_DEVICE void load_query(Device& device, const Work& w, Query& query) const {
    const int head = device.lane() / 4;
    const float* q = a.q + w.t * a.ldq + (w.first_head + head) * a.kv.head_dim;
    const float scale = a.scale * kLog2E;
    QUIRE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        // A lane's word of F8 has four neighbouring channels
        const int c = step * 16 + (kWidens ? device.lane() % 4 * 4 + half * 2
                                           : half * 8 + device.lane() % 4 * 2);
        const bool inside = head < w.heads && c < a.kv.head_dim;
        two_parts(device, inside ? device.load(q + c) * scale : 0.0f,
                  inside ? device.load(q + c + 1) * scale : 0.0f, query[step][2 * half],
                  query[step][2 * half + 1]);
      }
    }
  }

  /// Copies never touch channels past head_dim; zeros there keep products finite.
  template <class Device>
  QUIRE_DEVICE void clear_padding(Device& device) const {
    auto packs = device.template shared<Pack<E>>(0, 4 * kKeys * kRowPacks);
    const int first = a.kv.head_dim / kPack;
    for (int i = device.thread_idx(); i < 4 * kKeys * kPacks; i += kThreads) {
      if (i % kPacks >= first) packs[i / kPacks * kRowPacks + i % kPacks] = Pack<E>{};
    }
    device.sync_threads();
  }

  /// Returns the cache row of the lane's key of a tile; -1: none. A list's entry is loaded a step
  /// before load_key() needs it, and that a step before the copy does.
  template <class Device>
  QUIRE_DEVICE std::int64_t key_row(Device& device, const Work& w, int tile) const {
    const std::int64_t i = w.begin + std::int64_t{tile} * kKeys + device.warp() * kWarpKeys +
                           device.lane() % kWarpKeys;
    if (i >= w.end) return -1;
    return w.list.rows != nullptr ? device.load(w.list.rows + i) : i;
  }
  template <class Device>
  QUIRE_DEVICE Key load_key(Device& device, const Work& w, std::int64_t row) const {
    Key key{row, 0, nullptr};
    if (row < 0) return key;
    key.position = device.load(w.kv.positions + row);
    key.page = static_cast<const char*>(device.load(w.kv.pages + row / kPageTokens));
    return key;
  }

  /// Starts copying the warp's keys and values of a tile, with zeros where the query does not see a
  /// key. Returns which keys it sees, a bit each.
  template <class Device>
  QUIRE_DEVICE std::uint32_t start_tile(Device& device, const Work& w, int tile,
                                        const Key& key) const {
    const std::uint32_t seen = device.ballot(key.row >= 0 && key.position <= w.position);
    const auto own = reinterpret_cast<std::uint64_t>(key.page) +
                     static_cast<std::uint64_t>(w.kv_head * a.kv.head_stride +
                                                key.row % kPageTokens * a.kv.token_stride);
    const int pack = device.lane() % kPacks, first = device.lane() / kPacks;
    auto packs = device.template shared<Pack<E>>(tile % 2 * kTileBytes, 2 * kKeys * kRowPacks);
    QUIRE_UNROLL
    for (int pass = 0; pass < kWarpKeys; pass += kCopyRows) {
      const int k = pass + first;
      const std::uint64_t from = device.shuffle(own, k);
      if (first >= kCopyRows || pack * kPack >= a.kv.head_dim) continue;
      // The address of a key that is not seen is none, so it is computed as a number.
      const std::uint64_t keys = from + static_cast<std::uint64_t>(pack) * sizeof(Pack<E>);
      const std::uint64_t values = keys + static_cast<std::uint64_t>(a.kv.kv_stride);
      const int at = (device.warp() * kWarpKeys + k) * kRowPacks + pack;
      const bool present = (seen >> k & 1) != 0;
      device.copy_async_or_zero(packs, at, reinterpret_cast<const Pack<E>*>(keys), present);
      device.copy_async_or_zero(packs, at + kKeys * kRowPacks,
                                reinterpret_cast<const Pack<E>*>(values), present);
    }
    device.commit_copies();
    return seen;
  }

  /// Writes the scores of the warp's keys.
  template <class Device>
  QUIRE_DEVICE void score(Device& device, int tile, std::uint32_t seen, const Query& query) const {
    auto keys = device.template shared<E>(tile % 2 * kTileBytes, kKeys * kRow);
    auto scores = device.template shared<Two>(kScores + tile % 2 * kScoreBytes,
                                              kHeads * kScoreRow / 2);
    const int lane = device.lane();
    // Eight keys of 32 channels, or of 64 in F8: right operands of two steps, or of four
    const int at = (device.warp() * kWarpKeys + lane % 8) * kRow + lane / 8 * kPack;
    QUIRE_UNROLL
    for (int n = 0; n < kKeyBlocks; ++n) {
      float sums[4] = {};
      QUIRE_UNROLL
      for (int step = 0; step < kSteps; step += kPack / 4) {
        std::uint32_t k[4];
        device.load_matrices(k, keys, at + n * 8 * kRow + step * 16);
        if constexpr (kWidens) {
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const std::uint32_t wide[2] = {device.widen(static_cast<std::uint16_t>(k[i])),
                                           device.widen(static_cast<std::uint16_t>(k[i] >> 16))};
            device.mma(sums, query[step + i], wide, Product{});
          }
        } else {
          const std::uint32_t even[2] = {k[0], k[1]}, odd[2] = {k[2], k[3]};
          device.mma(sums, query[step], even, E{});
          device.mma(sums, query[step + 1], odd, E{});
        }
      }
      const int key = n * 8 + lane % 4 * 2;
      const bool low = (seen >> key & 1) != 0, high = (seen >> (key + 1) & 1) != 0;
      scores[(lane / 4 * kScoreRow + device.warp() * kWarpKeys + key) / 2] = Two{
          low ? sums[0] + sums[2] : -kInfinity, high ? sums[1] + sums[3] : -kInfinity};
    }
  }

  /// Adds a tile's values, weighted, to the warp's channels.
  template <class Device>
  QUIRE_DEVICE void add(Device& device, int tile, Running& r) const {
    auto scores = device.template shared<Two>(kScores + tile % 2 * kScoreBytes,
                                              kHeads * kScoreRow / 2);
    auto values = device.template shared<E>(tile % 2 * kTileBytes + kPartBytes, kKeys * kRow);
    const int lane = device.lane();
    Two s[kKeys / 8];
    float largest = r.largest;
    QUIRE_UNROLL
    for (int k = 0; k < kKeys / 8; ++k) {
      s[k] = scores[(lane / 4 * kScoreRow + k * 8) / 2 + lane % 4];
      largest = fmaxf(largest, fmaxf(s[k].low, s[k].high));
    }
    largest = fmaxf(largest, device.shuffle_xor(largest, 1));
    largest = fmaxf(largest, device.shuffle_xor(largest, 2));
    // A head that has seen no key has largest -inf, and all its weights shall be 0
    const float base = largest == -kInfinity ? 0.0f : largest,
                shrink = device.exp2_approx(r.largest - base);
    r.largest = largest;
    r.total *= shrink;
    QUIRE_UNROLL
    for (int c = 0; c < kChannelBlocks; ++c) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) r.out[c][i] *= shrink;
    }
    std::uint32_t p[kKeys / 16][4];
    QUIRE_UNROLL
    for (int k = 0; k < kKeys / 8; ++k) {
      const float low = device.exp2_approx(s[k].low - base),
                  high = device.exp2_approx(s[k].high - base);
      r.total += low;
      r.total += high;
      two_parts(device, low, high, p[k / 2][k % 2 * 2], p[k / 2][k % 2 * 2 + 1]);
    }
    // 32 keys of eight channels, or of sixteen in F8: right operands of two steps
    const int at = lane * kRow + device.warp() * kChannels;
    QUIRE_UNROLL
    for (int c = 0; c < kChannelBlocks; c += kPack / 8) {
      QUIRE_UNROLL
      for (int k = 0; k < kKeys / 16; k += 2) {
        std::uint32_t v[4];
        device.load_matrices_transposed(v, values, at + k * 16 * kRow + c * 8);
        if constexpr (kWidens) {
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) v[i] = swap_middle(v[i]);
          QUIRE_UNROLL
          for (int odd = 0; odd < 2; ++odd) {
            std::uint32_t wide[4];
            QUIRE_UNROLL
            for (int i = 0; i < 4; ++i)
              wide[i] = device.widen(static_cast<std::uint16_t>(v[i] >> 16 * odd));
            const std::uint32_t near[2] = {wide[0], wide[1]}, far[2] = {wide[2], wide[3]};
            device.mma(r.out[c + odd], p[k], near, Product{});
            device.mma(r.out[c + odd], p[k + 1], far, Product{});
          }
        } else {
          const std::uint32_t even[2] = {v[0], v[1]}, odd[2] = {v[2], v[3]};
          device.mma(r.out[c], p[k], even, E{});
          device.mma(r.out[c], p[k + 1], odd, E{});
        }
      }
    }
  }

  /// A word of a transposed matrix of F8 has two neighbouring channels of two keys, key by key;
  /// returns them channel by channel.
  QUIRE_HOST_DEVICE static std::uint32_t swap_middle(std::uint32_t word) {
    return (word & 0xff0000ffu) | (word >> 8 & 0xff00u) | (word & 0xff00u) << 8;
  }

  /// Returns the channel that column `i` of the lane has in a block of the warp's sums. In F8 even
  /// and odd channels of sixteen are blocks of their own.
  template <class Device>
  QUIRE_DEVICE static int channel_of(Device& device, int block, int i) {
    const int column = device.lane() % 4 * 2 + i;
    return device.warp() * kChannels +
           (kWidens ? block / 2 * 16 + column * 2 + block % 2 : block * 8 + column);
  }

  /// Writes the result of one chunk of the run.
  template <class Device>
  QUIRE_DEVICE void store(Device& device, const Work& w, int chunk, const Running& r) const {
    float total = r.total;
    total += device.shuffle_xor(total, 1);
    total += device.shuffle_xor(total, 2);
    const int head = device.lane() / 4;
    if (head >= w.heads) return;
    const std::int64_t row = result_row(w, device.block_idx().x * split.run + chunk) + head;
    const float inverse = total > 0 ? 1.0f / total : 0.0f;
    QUIRE_UNROLL
    for (int block = 0; block < kChannelBlocks; ++block) {
      QUIRE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int c = channel_of(device, block, i);
        if (c < a.kv.head_dim) {
          device.store(split.out + row * a.kv.head_dim + c,
                       (r.out[block][i] + r.out[block][2 + i]) * inverse);
        }
      }
    }
    if (device.warp() == 0 && device.lane() % 4 == 0) {
      device.store(split.lse + row, total > 0 ? r.largest * kLn2 + logf(total) : -kInfinity);
    }
  }
};

}  // namespace quire::cuda
