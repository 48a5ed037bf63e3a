/// This file holds copies of rows between paged caches: host pages to device slots, and layers back
/// to the host.
///
/// Cost of a move of r rows at head_dim d, elements of e bytes: 4 * e * r * d bytes, half of them
/// read, and 16 of the move; for each 16 bytes two page pointers from a cache and several
/// 64-bit divisions. A full block has 16 KiB under way. Host memory: the bus bounds it, and 0.8 or
/// more of what the bus copies is expected. Device memory: memory does, 0.5 expected for whole
/// pages.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_gather.h"

namespace quire::cuda {

/// One thread block per move, one thread per piece of 16 bytes. Reads of host memory across the bus
/// need many pieces in flight, so a thread starts kAtOnce loads before its first store.
struct KvGatherKernel {
  static constexpr int kThreads = 256;
  static constexpr int kAtOnce = 4;
  KvGatherArgs a;
  std::int32_t pieces;  ///< number of 16-byte pieces in a row of K or V

  static std::int32_t pieces_of(const KvView& kv) {
    return static_cast<std::int32_t>(kv.head_dim *
                                     static_cast<std::int64_t>(dtype_bytes(kv.dtype)) / 16);
  }
  /// Returns the threads of a block for moves of at most so many rows.
  static int threads_for(const KvView& kv, std::int64_t most_rows) {
    const std::int64_t most = (2 * most_rows * pieces_of(kv) + kAtOnce - 1) / kAtOnce;
    int threads = 32;
    while (threads < kThreads && threads < most) threads *= 2;
    return threads;
  }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    using Piece = Pack<float>;
    const KvMove move = device.load(a.moves + device.block_idx().x);
    const std::int64_t all = std::int64_t{2} * move.rows * pieces,
                       step = std::int64_t{device.block_dim()} * kAtOnce;
    for (std::int64_t first = device.thread_idx(); first < all; first += step) {
      Piece held[kAtOnce];
      QUIRE_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const std::int64_t at = first + std::int64_t{n} * device.block_dim();
        if (at < all)
          held[n] = device.load(
              piece<const Piece>(device, a.src, move.head, move.from, move.rows, at));
      }
      QUIRE_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const std::int64_t at = first + std::int64_t{n} * device.block_dim();
        if (at < all)
          device.store(piece<Piece>(device, a.dst, move.head, move.to, move.rows, at), held[n]);
      }
    }
  }

 private:
  /// Returns the address of piece `at` of a move: rows of K, then rows of V, each in order.
  template <class Piece, class Device, class View>
  QUIRE_DEVICE Piece* piece(Device& device, const View& kv, std::int64_t head,
                            std::int64_t first_row, std::int64_t rows, std::int64_t at) const {
    const std::int64_t row_of_both = at / pieces, row = first_row + row_of_both % rows,
                       value = row_of_both / rows;
    const std::uint64_t page = reinterpret_cast<std::uint64_t>(
        device.load(kv.pages + row / kPageTokens));
    return reinterpret_cast<Piece*>(
        page + static_cast<std::uint64_t>(head * kv.head_stride + value * kv.kv_stride +
                                          row % kPageTokens * kv.token_stride + at % pieces * 16));
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; moves are not checked).
template <class Launcher>
Status launch_kv_gather(Launcher& launcher, const KvGatherArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_gather(a));
  return launcher.launch({{a.num_moves, 1, 1}, KvGatherKernel::threads_for(a.src, a.most_rows), 0},
                         KvGatherKernel{a, KvGatherKernel::pieces_of(a.src)});
}

}  // namespace quire::cuda
