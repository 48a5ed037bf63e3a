/// This file holds how kernels that multiply all query heads of a KV head with its keys on tensor
/// cores bring both into shared memory.
#pragma once

#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/rows/kv.h"

namespace quire::cuda {

/// Some consecutive query rows of a KV head. A row is one query head of one row of the call, rows
/// of the call in order and the heads of each in order.
struct QueryRows {
  std::int64_t row;        ///< the first one's row of the call
  int head, group, count;  ///< its query head of the KV head, how many there are; rows at hand

  static constexpr int kTile = 16;  ///< rows of a product
  QUIRE_DEVICE std::int64_t row_of(int i) const { return row + (head + i) / group; }
  QUIRE_DEVICE int head_of(int i) const { return (head + i) % group; }
  QUIRE_DEVICE int whole_tiles() const { return (count + kTile - 1) / kTile * kTile; }
  QUIRE_DEVICE void advance(int rows) {
    row = row_of(rows);  // before head, on which it depends
    head = head_of(rows);
  }
};

/// Elements of a row of kDim channels in shared memory; eight more put the rows of a matrix load
/// into different banks.
template <int kDim>
inline constexpr int kTileRow = kDim + 8;

/// Starts copies of the keys [first, first + kKeys) of a KV head to shared memory at `offset`;
/// zeros from `end` on and past the last channel. There is a row in the cache. Keys of F8 are there
/// when the call returns, as F16.
template <class E, int kDim, int kKeys, int kThreads, class Device>
QUIRE_DEVICE void copy_tile_keys(Device& device, const KvView& kv, std::int64_t first,
                                 std::int64_t end, int kv_head, int offset) {
  constexpr int kPack = Pack<E>::kCount, kPacks = kDim / kPack, kRowPacks = kTileRow<kDim> / 8,
                kEach = kKeys * kPacks / kThreads;
  // Pointers of pages first, so that no copy waits for the next one's
  const Pack<E>* from[kEach];
  bool present[kEach];
  QUIRE_UNROLL
  for (int n = 0; n < kEach; ++n) {
    const int i = n * kThreads + device.thread_idx(), pack = i % kPacks;
    const std::int64_t key = first + i / kPacks;
    present[n] = key < end && pack * kPack < kv.head_dim;
    const std::int64_t row = present[n] ? key : 0;
    const char* at = static_cast<const char*>(device.load(kv.pages + row / kPageTokens)) +
                     kv_head * kv.head_stride + row % kPageTokens * kv.token_stride;
    from[n] = reinterpret_cast<const Pack<E>*>(at) + (present[n] ? pack : 0);
  }
  if constexpr (std::is_same_v<E, F8>) {
    auto words = device.template shared<Pack<std::uint32_t>>(offset, kKeys * kRowPacks);
    Pack<std::uint16_t> narrow[kEach];
    QUIRE_UNROLL
    for (int n = 0; n < kEach; ++n) {
      narrow[n] = {};
      if (present[n])
        narrow[n] = device.load(reinterpret_cast<const Pack<std::uint16_t>*>(from[n]));
    }
    QUIRE_UNROLL
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + device.thread_idx();
      store_widened(device, narrow[n], words, i / kPacks * kRowPacks + i % kPacks * 2);
    }
  } else {
    auto packs = device.template shared<Pack<E>>(offset, kKeys * kRowPacks);
    QUIRE_UNROLL
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + device.thread_idx();
      device.copy_async_or_zero(packs, i / kPacks * kRowPacks + i % kPacks, from[n], present[n]);
    }
  }
}

/// Adds the products of 16 query rows and kBlocks * 8 keys, which lie in shared memory from these
/// rows on, to a warp's scores, in the fragment layout of mma(). kBlocks is even.
template <class E, int kDim, int kBlocks, class Device, class Elements>
QUIRE_DEVICE void multiply_tile(Device& device, Elements queries, int query_row, Elements keys,
                                int key_row, float (&scores)[kBlocks][4]) {
  constexpr int kRow = kTileRow<kDim>;
  const int lane = device.lane();
  // Rows of a left operand: lanes 0 to 15 its 16 rows, lanes 16 to 31 the same, 8 channels on
  const int query = (query_row + lane % 16) * kRow + lane / 16 * 8;
  // Of a right operand: keys 0 to 7, the same 8 channels on, and keys 8 to 15 likewise
  const int key = (key_row + lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8;
  QUIRE_UNROLL
  for (int step = 0; step < kDim / 16; ++step) {
    std::uint32_t q[4];
    device.load_matrices(q, queries, query + step * 16);
    QUIRE_UNROLL
    for (int n = 0; n < kBlocks; n += 2) {
      std::uint32_t k[4];
      device.load_matrices(k, keys, key + n * 8 * kRow + step * 16);
      const std::uint32_t even[2] = {k[0], k[1]}, odd[2] = {k[2], k[3]};
      device.mma(scores[n], q, even, E{});
      device.mma(scores[n + 1], q, odd, E{});
    }
  }
}

/// Puts whole tiles of query rows into shared memory at `offset`; zeros past the last row and
/// channel. They are scaled for powers of two and rounded to E exactly as attention_prefill.cuh
/// does it, which lse comes from. `wide` says whether rows allow accesses of 16 bytes. Args are
/// those of scores or mass.
template <class E, int kDim, int kRows, int kThreads, class Device, class Args>
QUIRE_DEVICE void load_tile_queries(Device& device, const Args& a, const QueryRows& rows,
                                    int kv_head, bool wide, int offset) {
  constexpr int kPacks = kDim / 8, kRowPacks = kTileRow<kDim> / 8, kAhead = 4;
  constexpr float kLog2E = 1.4426950408889634f;
  auto packs = device.template shared<Pack<E>>(offset, kRows * kRowPacks);
  const float scale = a.scale * kLog2E;
  const int end = rows.whole_tiles() * kPacks;
  for (int first = device.thread_idx(); first < end; first += kThreads * kAhead) {
    float query[kAhead][8] = {};
    QUIRE_UNROLL
    for (int n = 0; n < kAhead; ++n) {
      const int i = first + n * kThreads, channel = i % kPacks * 8, row = i / kPacks;
      if (row >= rows.count || channel >= a.kv.head_dim) continue;
      const float* q = a.q + rows.row_of(row) * a.ldq + channel +
                       std::int64_t{kv_head * rows.group + rows.head_of(row)} * a.kv.head_dim;
      if (wide) {
        load8<float>(device, q, query[n]);
      } else {
        QUIRE_UNROLL
        for (int c = 0; c < 8; ++c) query[n][c] = device.load(q + c);
      }
    }
    QUIRE_UNROLL
    for (int n = 0; n < kAhead; ++n) {
      const int i = first + n * kThreads;
      if (i >= end) continue;
      Pack<E> rounded;
      QUIRE_UNROLL
      for (int c = 0; c < 8; ++c) rounded.e[c] = device.template from_float<E>(query[n][c] * scale);
      packs[i / kPacks * kRowPacks + i % kPacks] = rounded;
    }
  }
}

}  // namespace quire::cuda
