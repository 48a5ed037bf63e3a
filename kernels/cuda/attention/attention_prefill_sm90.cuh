/// This file holds attention of many query rows over paged f16 or bf16 KV on the tensor cores of
/// sm_90a, for head_dim 64 and 128 (FlashAttention-3). attention_prefill.cuh is its portable twin:
/// it has the same semantics for any shape, and nearly the same results. This file is compiled only
/// by nvcc, for sm_90a alone.
///
/// One warpgroup, the copier, brings tiles of keys and values into shared memory. The others, the
/// workers, have 64 query lanes each and keep scores, softmax and sums in registers. While the
/// tensor cores multiply for one worker, the other computes softmax, as it comes.
///
/// Cost of a tile of 128 keys at head_dim d, for a block of 128 query lanes:
///   operations  4 * 128 * d for each lane: 8.4e6 at d = 128
///   bytes       512 * d from the second-level cache: 64 KiB at d = 128
/// Counted for an H100 at d = 128, for each tile:
///   products    2 * 128 * 128 * d multiply-adds at 2,048 a clock: 2,048 clocks
///   shared      products read 2 * (16 + 32) KiB and 2 * 32 KiB, copies write 64 KiB, of 128 bytes
///               a clock: 1,792 clocks
///   powers      128 * 128 at 16 a clock: 1,024 clocks, while the other worker multiplies
///   scheduler   490 instructions of each of two workers' warps (150 more under masks) and 290 of a
///               copier's, counted for a tile: 1,270 clocks
///   L2          128 operations a byte: 4.7 TB/s at 600 TFLOP/s
/// A block begins with 64 KiB of queries and ends with 64 KiB of sums in f32 or 32 KiB in bf16,
/// which nothing hides: about 4,000 clocks in f32. Measured on an H100 80GB with 32 query and 8 KV
/// heads, bf16, beside the twin, in TFLOP/s: 487 (287) for 4,096 rows over 4,096, 578 (321) for
/// 8,192 over 8,192, 638 (320) for 2,048 over 32,768; at d = 64 390 (272) for 8,192 over 8,192.
/// cuBLASLt reaches 700 to 740 there. 168 registers, with one worker 188 (156 at d = 64); none
/// spill.
///
/// Tiles come by cp.async and not by TMA: a tensor map describes one array of fixed strides, while
/// the pages of a view lie anywhere in memory, and a bulk copy without a map does not swizzle rows.
#pragma once

#include <limits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/attention/attention_prefill.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/hopper.cuh"

namespace quire::cuda {

/// One thread block attends with kLanes query lanes of one KV head. Query lane n is query row n /
/// group with head n % group of the group, so the heads of a group share keys and values. Queries
/// and softmax weights are rounded to E. A lane's bits do not depend on kWorkers, because tiles of
/// keys start at row 0 and a tile of which a lane sees nothing leaves the lane as it is.
///
/// Tiles pass through two rings of kStages buffers, of keys and of values. Copied tile i, which is
/// the i-th of which some lane of the block sees a key, uses buffer i % kStages of both, in lap i /
/// kStages. Each buffer has two barriers in shared memory:
///   full   ends phase `lap` when tile i is there: each of the 128 copier threads arrives as its
///          copies arrive, and for keys once more after it wrote positions and mark of the tile
///   empty  ends phase `lap` when all warps of the workers have arrived, which have read tile i
/// Before it fills a buffer in lap n, the copier waits for phase n - 1 of `empty` (parity (n & 1) ^
/// 1; on a new barrier this returns at once). Workers wait for phase n of `full` (parity n & 1)
/// before they read and before they arrive at `empty`. So no barrier is two phases ahead of one
/// that waits for it, and parity is enough: `full` of lap n + 1 needs `empty` of lap n, to which
/// each warp arrives after it passed `full` of lap n, and likewise the other way round.
///
/// Nobody waits in a circle. The copier waits only for buffers, in the order keys 0, keys 1, values
/// 0, keys 2, values 1, ... Workers read in the same order, and a worker in round i has given up
/// keys up to i - 1 and values up to i - 2. So the copier reaches keys i and values i - 1 when no
/// worker is in a round before i, and two buffers are enough. The mark kEnd comes as keys after the
/// last. Workers do not wait for each other: taking turns at issuing products was measured to cost
/// a tenth to a quarter of the speed.
template <class E, int kDim, int kWorkers>
struct PrefillAttentionSm90 {
  static_assert(kDim == 64 || kDim == 128);
  static_assert(kWorkers == 1 || kWorkers == 2);
  static constexpr int kThreads = 128 * (1 + kWorkers), kLanes = 64 * kWorkers, kKeys = 128;
  static constexpr int kStages = kDim == 128 ? 2 : 4;
  static constexpr int kBlocks = kDim / 64;  // of columns, see hopper.cuh
  static constexpr int kQueryBlockBytes = 64 * hopper::kRowBytes,
                       kBlockBytes = kKeys * hopper::kRowBytes, kTileBytes = kBlocks * kBlockBytes;
  static constexpr int kKeysAt = kWorkers * kBlocks * kQueryBlockBytes,
                       kValuesAt = kKeysAt + kStages * kTileBytes,
                       kKeyPositionsAt = kValuesAt + kStages * kTileBytes,
                       kQueryPositionsAt = kKeyPositionsAt + kStages * kKeys * 4,
                       kMarksAt = kQueryPositionsAt + kLanes * 4,
                       kRangesAt = kMarksAt + kStages * 4, kBarriersAt = kRangesAt + 32;
  // Tiles start at a multiple of 1,024 bytes, which the start of shared memory need not be
  static constexpr int kSharedBytes = kBarriersAt + 4 * kStages * 8 + hopper::kEightRows;
  static_assert(kKeysAt % hopper::kEightRows == 0 && kBarriersAt % 8 == 0);
  // 65,536 registers for 384 threads are 168 a thread, until the copier gives up 112 of its own
  static constexpr int kCopierRegisters = 56, kWorkerRegisters = 224;
  static constexpr std::int32_t kUnseen = std::numeric_limits<std::int32_t>::max(),
                                kSeesNothing = std::numeric_limits<std::int32_t>::min();
  static constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  AttentionArgs a;
  DType out_dtype;
  bool wide;  ///< rows of q, and of out in f32, are aligned to 16 bytes

  QUIRE_DEVICE void operator()(HardwareDevice& device) const {
    const auto group = static_cast<std::uint32_t>(a.num_heads / a.kv.num_kv_heads),
               kv_heads = static_cast<std::uint32_t>(a.kv.num_kv_heads);
    const std::uint32_t kv_head = blockIdx.x % kv_heads, lane_tiles = gridDim.x / kv_heads;
    // Blocks with most keys start first, so that short ones fill the end of the launch
    const std::uint32_t first_lane = (lane_tiles - 1 - blockIdx.x / kv_heads) * kLanes;
    const Shared shared = find_shared(device);
    // The same in all lanes of a warp, and known to the compiler to be so
    const int warp = __shfl_sync(~0u, device.warp(), 0);
    if (device.thread_idx() == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        hopper::barrier_init(shared.full_keys(stage), 2 * 128);
        hopper::barrier_init(shared.full_values(stage), 128);
        hopper::barrier_init(shared.empty_keys(stage), 4 * kWorkers);
        hopper::barrier_init(shared.empty_values(stage), 4 * kWorkers);
      }
    }
    // The copier's first loads are under way while query positions are
    Tile ahead{};
    if (warp < 4) load_ahead(device, warp, 0, ahead);
    load_query_positions(device, warp, first_lane, group, shared);
    device.sync_threads();
    if (warp < 4) {
      if constexpr (kWorkers == 2) hopper::keep_registers<kCopierRegisters>();
      copy_tiles(device, warp, kv_head, ahead, shared);
    } else {
      if constexpr (kWorkers == 2) hopper::take_registers<kWorkerRegisters>();
      work(device, warp / 4 - 1, first_lane, group, kv_head, shared);
    }
  }

 private:
  static constexpr int kWhole = 0, kMasked = 1, kEnd = 2;  // marks of tiles

  QUIRE_DEVICE static int stage_of(std::uint32_t i) { return static_cast<int>(i % kStages); }
  QUIRE_DEVICE static std::uint32_t lap_parity(std::uint32_t i) { return i / kStages % 2; }

  struct Shared {
    char* start;
    std::uint32_t address;  ///< of start
    template <class T>
    QUIRE_DEVICE T* at(int byte) const {
      return reinterpret_cast<T*>(start + byte);
    }
    QUIRE_DEVICE std::uint32_t keys(int stage) const {
      return address + static_cast<std::uint32_t>(kKeysAt + stage * kTileBytes);
    }
    QUIRE_DEVICE std::uint32_t values(int stage) const {
      return address + static_cast<std::uint32_t>(kValuesAt + stage * kTileBytes);
    }
    QUIRE_DEVICE std::int32_t* key_positions(int stage) const {
      return at<std::int32_t>(kKeyPositionsAt + stage * kKeys * 4);
    }
    QUIRE_DEVICE std::int32_t* query_positions() const {
      return at<std::int32_t>(kQueryPositionsAt);
    }
    QUIRE_DEVICE std::int32_t* marks() const { return at<std::int32_t>(kMarksAt); }
    QUIRE_DEVICE std::int32_t* ranges() const { return at<std::int32_t>(kRangesAt); }
    QUIRE_DEVICE std::uint32_t full_keys(int stage) const { return barrier(0, stage); }
    QUIRE_DEVICE std::uint32_t full_values(int stage) const { return barrier(1, stage); }
    QUIRE_DEVICE std::uint32_t empty_keys(int stage) const { return barrier(2, stage); }
    QUIRE_DEVICE std::uint32_t empty_values(int stage) const { return barrier(3, stage); }

   private:
    QUIRE_DEVICE std::uint32_t barrier(int kind, int stage) const {
      return address + static_cast<std::uint32_t>(kBarriersAt + (kind * kStages + stage) * 8);
    }
  };
  QUIRE_DEVICE static Shared find_shared(HardwareDevice& device) {
    char* start = device.template shared<char>(0, kSharedBytes);
    const std::uint32_t address = hopper::shared_address(start);
    const std::uint32_t skipped = -address % hopper::kEightRows;
    return {start + skipped, address + skipped};
  }

  QUIRE_DEVICE static std::int32_t least(std::int32_t x, std::int32_t y) { return x < y ? x : y; }
  QUIRE_DEVICE static std::int32_t most(std::int32_t x, std::int32_t y) { return x > y ? x : y; }

  /// Puts the lanes' positions into shared memory, and the least and greatest of each 32.
  QUIRE_DEVICE void load_query_positions(HardwareDevice& device, int warp, std::uint32_t first_lane,
                                         std::uint32_t group, const Shared& shared) const {
    if (warp >= kLanes / 32) return;
    const std::uint32_t t = (first_lane + threadIdx.x) / group;
    std::int32_t position = kSeesNothing, earliest = kUnseen;
    if (t < a.rows) {
      // Rows past the end have position kUnseen, which no query may reach
      position = least(device.load(a.query_positions + t), kUnseen - 1);
      earliest = position;
    }
    shared.query_positions()[threadIdx.x] = position;
    earliest = __reduce_min_sync(~0u, earliest);
    position = __reduce_max_sync(~0u, position);
    if (device.lane() == 0) {
      shared.ranges()[warp] = earliest;
      shared.ranges()[4 + warp] = position;
    }
  }

  // ---- The copier ------------------------------------------------------------------------------

  /// A tile as a copier thread knows it. Each of the four warps copies 32 rows, two pages.
  struct Tile {
    int index;
    std::int32_t positions[4];  ///< of keys lane(), lane() + 32, ...
    const char* pages[2];       ///< of the warp
  };
  static constexpr int kPacks = kDim / 8, kPassRows = 32 / kPacks, kPasses = 32 / kPassRows;
  static constexpr int kPagePasses = kPageTokens / kPassRows, kPlaces = 8 / kPassRows;
  /// Where a copier thread reads and writes: in a page, and in the first tile of a ring at byte 0
  /// of shared memory. It copies kPassRows rows at a time together with its warp.
  struct Places {
    int from;
    std::uint32_t to[kPlaces];
  };

  QUIRE_DEVICE int num_rows() const { return static_cast<int>(a.kv.num_rows); }
  QUIRE_DEVICE int num_tiles() const { return (num_rows() + kKeys - 1) / kKeys; }

  /// Starts loading what is to be known of tile `index`, if there is one.
  QUIRE_DEVICE void load_ahead(HardwareDevice& device, int warp, int index, Tile& tile) const {
    tile.index = index;
    if (index >= num_tiles()) return;
    const int last_page = (num_rows() - 1) / kPageTokens;
    QUIRE_UNROLL
    for (int p = 0; p < 2; ++p) {
      const int page = least(index * (kKeys / kPageTokens) + 2 * warp + p, last_page);
      tile.pages[p] = static_cast<const char*>(device.load(a.kv.pages + page));
    }
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = index * kKeys + i * 32 + device.lane();
      tile.positions[i] = row < num_rows() ? device.load(a.kv.positions + row) : kUnseen;
    }
  }

  /// A tile that is to be copied.
  struct Chosen {
    int index, mark;
    std::int32_t position;  ///< of the key that is the thread's number
    const char* pages[2];
  };
  /// Finds the next tile of which some lane of the block sees a key, else one of mark kEnd. All
  /// warps of the copier find the same.
  QUIRE_DEVICE Chosen next_tile(HardwareDevice& device, int warp, std::int32_t earliest,
                                std::int32_t latest, Tile& ahead) const {
    while (ahead.index < num_tiles()) {
      const auto& p = ahead.positions;
      const bool some = __any_sync(
                     ~0u, p[0] <= latest || p[1] <= latest || p[2] <= latest || p[3] <= latest),
                 masked = __any_sync(
                     ~0u, p[0] > earliest || p[1] > earliest || p[2] > earliest || p[3] > earliest);
      const std::int32_t low = warp % 2 == 0 ? p[0] : p[1], high = warp % 2 == 0 ? p[2] : p[3];
      Chosen chosen{ahead.index,
                    masked ? kMasked : kWhole,
                    warp < 2 ? low : high,
                    {ahead.pages[0], ahead.pages[1]}};
      // What was loaded has been used: the next loads may arrive in the same registers, so that
      // nothing waits for them before the next call
      hopper::pin(chosen.position);
      hopper::pin(chosen.pages[0]);
      hopper::pin(chosen.pages[1]);
      load_ahead(device, warp, ahead.index + 1, ahead);
      if (some) return chosen;
      if (a.kv.sorted) break;  // later keys are seen even less
    }
    return {0, kEnd, 0, {}};
  }

  QUIRE_DEVICE void copy_tiles(HardwareDevice& device, int warp, std::uint32_t kv_head, Tile& ahead,
                               const Shared& shared) const {
    std::int32_t earliest = kUnseen, latest = kSeesNothing;
    for (int i = 0; i < kLanes / 32; ++i) {
      earliest = least(earliest, shared.ranges()[i]);
      latest = most(latest, shared.ranges()[4 + i]);
    }
    // Packs change places with the row, which repeats after eight rows
    const int row = device.lane() / kPacks, pack = device.lane() % kPacks;
    const std::uint32_t start = shared.address +
                                static_cast<std::uint32_t>(warp * 32 * hopper::kRowBytes +
                                                           pack / 8 * kBlockBytes);
    Places places;
    places.from = static_cast<int>(kv_head * a.kv.head_stride + row * a.kv.token_stride +
                                   pack * 16);
    QUIRE_UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      places.to[i] = start +
                     static_cast<std::uint32_t>(hopper::swizzled(i * kPassRows + row, pack % 8));
    }
    hopper::pin(places.to);  // else it would be computed again in every pass
    Chosen next = next_tile(device, warp, earliest, latest, ahead);
    copy_keys(device, warp, 0, next, places, shared);
    for (std::uint32_t i = 0; next.mark != kEnd; ++i) {
      const Chosen current = next;
      next = next_tile(device, warp, earliest, latest, ahead);
      copy_keys(device, warp, i + 1, next, places, shared);
      const int stage = stage_of(i);
      hopper::barrier_wait(shared.empty_values(stage), lap_parity(i) ^ 1);
      copy_rows(device, warp, current, places, static_cast<int>(a.kv.kv_stride),
                kValuesAt + stage * kTileBytes);
      hopper::barrier_arrive_after_copies(shared.full_values(stage));
    }
    hopper::wait_copies();  // a thread does not end before its copies
  }

  QUIRE_DEVICE void copy_keys(HardwareDevice& device, int warp, std::uint32_t i, const Chosen& tile,
                              const Places& places, const Shared& shared) const {
    const int stage = stage_of(i);
    hopper::barrier_wait(shared.empty_keys(stage), lap_parity(i) ^ 1);
    if (tile.mark == kMasked) shared.key_positions(stage)[threadIdx.x] = tile.position;
    if (threadIdx.x == 0) shared.marks()[stage] = tile.mark;
    hopper::barrier_arrive(shared.full_keys(stage));
    if (tile.mark == kEnd) {
      hopper::barrier_arrive(shared.full_keys(stage));
      return;
    }
    copy_rows(device, warp, tile, places, 0, kKeysAt + stage * kTileBytes);
    hopper::barrier_arrive_after_copies(shared.full_keys(stage));
  }

  /// Starts copying the warp's rows of a tile to byte `to` of shared memory, with zeros past the
  /// last row. `kind` is the place of keys or values in a page.
  QUIRE_DEVICE void copy_rows(HardwareDevice& device, int warp, const Chosen& tile,
                              const Places& places, int kind, int to) const {
    const int rows_left = num_rows() - tile.index * kKeys - warp * 32 - device.lane() / kPacks;
    // Both loops stand alone, so that a whole tile costs no comparisons
    if ((tile.index + 1) * kKeys <= num_rows()) {
      each_pass(tile, places, kind, to, [](std::uint32_t place, const char* source, int) {
        hopper::copy16(place, source);
      });
    } else {
      each_pass(tile, places, kind, to, [&](std::uint32_t place, const char* source, int row) {
        hopper::copy16_or_zero(place, source, row < rows_left);
      });
    }
  }
  template <class Copy>
  QUIRE_DEVICE void each_pass(const Chosen& tile, const Places& places, int kind, int to,
                              const Copy& copy) const {
    const int stride = static_cast<int>(a.kv.token_stride) * kPassRows;
    QUIRE_UNROLL
    for (int page = 0; page < 2; ++page) {
      const char* source = tile.pages[page] + (places.from + kind);
      QUIRE_UNROLL
      for (int pass = 0; pass < kPagePasses; ++pass) {
        const int row = page * kPageTokens + pass * kPassRows;
        copy(places.to[pass % kPlaces] +
                 static_cast<std::uint32_t>(to + row / 8 * hopper::kEightRows),
             source, row);
        source += stride;
        hopper::pin(source);  // else all sources would be kept in registers
      }
    }
  }

  // ---- Workers ---------------------------------------------------------------------------------

  /// A thread's part of its worker's query lanes: of each warp's 16, `lane() / 4` and that plus 8.
  /// Scores are logarithms to base 2. `total` covers only the thread's own columns.
  struct Sums {
    float out[kDim / 2];
    float largest[2], total[2], shrink[2];
  };
  using Weights = std::uint32_t[kKeys / 4];

  QUIRE_DEVICE void work(HardwareDevice& device, int worker, std::uint32_t first_lane,
                         std::uint32_t group, std::uint32_t kv_head, const Shared& shared) const {
    load_queries(device, worker, first_lane, group, kv_head, shared);
    hopper::show_to_products();
    hopper::meet<128>(1 + worker);  // the worker's queries are there
    const int own = worker * 64 + device.warp() % 4 * 16 + device.lane() / 4;
    const std::int32_t positions[2] = {shared.query_positions()[own],
                                       shared.query_positions()[own + 8]};
    const std::uint64_t queries = hopper::describe_operand(
        shared.address + static_cast<std::uint32_t>(worker * kBlocks * kQueryBlockBytes), 16);
    Sums sums;
    QUIRE_UNROLL
    for (int c = 0; c < kDim / 2; ++c) sums.out[c] = 0;
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      sums.largest[half] = -kInfinity;
      sums.total[half] = 0;
    }
    float scores[kKeys / 2] = {};
    Weights weights;
    std::uint32_t i = 0;
    int mark = wait_keys(0, shared);
    if (mark != kEnd) {
      // Round 0: scores of tile 0
      hopper::show_to_products();
      hopper::before_products();
      multiply_keys(queries, shared, 0, scores);
      hopper::commit_products();
      hopper::wait_products<0>();
      hopper::pin(scores);
      finish_keys(device, 0, mark, positions, scores, shared);
      weigh(device, scores, sums);
      round(device, scores, weights);
      // Round i: scores of tile i, and values of tile i - 1
      for (i = 1;; ++i) {
        mark = wait_keys(i, shared);
        hopper::barrier_wait(shared.full_values(stage_of(i - 1)), lap_parity(i - 1));
        hopper::show_to_products();
        if (mark == kEnd) break;
        hopper::pin(scores);
        hopper::pin(weights);
        hopper::pin(sums.out);
        hopper::before_products();
        multiply_keys(queries, shared, i, scores);
        hopper::commit_products();
        add_values(weights, shared, i - 1, sums.out);
        hopper::commit_products();
        hopper::wait_products<1>();
        hopper::pin(scores);
        finish_keys(device, i, mark, positions, scores, shared);
        weigh(device, scores, sums);
        // This never holds, but depends on all weights: without it the compiler puts the wait
        // before softmax, which would then not run while values are added
        if (__any_sync(~0u, sums.total[0] + sums.total[1] < 0)) __trap();
        hopper::wait_products<0>();
        hopper::pin(sums.out);
        hopper::pin(weights);
        release(device, shared.empty_values(stage_of(i - 1)));
        rescale(sums);
        round(device, scores, weights);
      }
      hopper::pin(weights);
      hopper::pin(sums.out);
      hopper::before_products();
      add_values(weights, shared, i - 1, sums.out);
      hopper::commit_products();
      hopper::wait_products<0>();
      hopper::pin(sums.out);
    }
    store(device, own, first_lane, group, kv_head, sums);
  }

  /// Rounds the worker's queries into shared memory, scaled for powers of two; zeros where there is
  /// no lane.
  QUIRE_DEVICE void load_queries(HardwareDevice& device, int worker, std::uint32_t first_lane,
                                 std::uint32_t group, std::uint32_t kv_head,
                                 const Shared& shared) const {
    const float scale = a.scale * kLog2E;
    char* queries = shared.start + worker * kBlocks * kQueryBlockBytes;
    constexpr int kRows = 128 / kPacks;
    const int pack = static_cast<int>(threadIdx.x) % kPacks;
    QUIRE_UNROLL
    for (int first = 0; first < 64; first += kRows) {
      const int row = first + static_cast<int>(threadIdx.x) % 128 / kPacks;
      const std::uint32_t lane = first_lane + static_cast<std::uint32_t>(worker * 64 + row);
      const std::int64_t t = lane / group;
      Pack<E> rounded{};
      if (t < a.rows) {
        const float* q = a.q + t * a.ldq + (kv_head * group + lane % group) * kDim + pack * 8;
        float x[8];
        if (wide) {
          load8<float>(device, q, x);
        } else {
          QUIRE_UNROLL
          for (int c = 0; c < 8; ++c) x[c] = device.load(q + c);
        }
        QUIRE_UNROLL
        for (int c = 0; c < 8; ++c) rounded.e[c] = device.template from_float<E>(x[c] * scale);
      }
      device.store(reinterpret_cast<Pack<E>*>(queries + pack / 8 * kQueryBlockBytes +
                                              hopper::swizzled(row, pack % 8)),
                   rounded);
    }
  }

  QUIRE_DEVICE static int wait_keys(std::uint32_t i, const Shared& shared) {
    hopper::barrier_wait(shared.full_keys(stage_of(i)), lap_parity(i));
    return shared.marks()[stage_of(i)];
  }
  /// Tells the copier that the warp has read a buffer.
  QUIRE_DEVICE static void release(HardwareDevice& device, std::uint32_t empty) {
    device.sync_warp();
    if (device.lane() == 0) hopper::barrier_arrive(empty);
  }

  QUIRE_DEVICE static void multiply_keys(std::uint64_t queries, const Shared& shared,
                                         std::uint32_t i, float (&scores)[kKeys / 2]) {
    const std::uint64_t keys = hopper::describe_operand(shared.keys(stage_of(i)), 16);
    QUIRE_UNROLL
    for (int step = 0; step < kDim / 16; ++step) {
      const int block = step / 4, columns = step % 4 * 32;
      hopper::multiply_rows(scores, hopper::advanced(queries, block * kQueryBlockBytes + columns),
                            hopper::advanced(keys, block * kBlockBytes + columns), step > 0, E{});
    }
  }

  QUIRE_DEVICE static void add_values(const Weights& weights, const Shared& shared, std::uint32_t i,
                                      float (&out)[kDim / 2]) {
    const std::uint64_t values = hopper::describe_operand(shared.values(stage_of(i)),
                                                          static_cast<std::uint32_t>(kBlockBytes));
    QUIRE_UNROLL
    for (int step = 0; step < kKeys / 16; ++step) {
      hopper::add_rows(out, weights[4 * step], weights[4 * step + 1], weights[4 * step + 2],
                       weights[4 * step + 3],
                       hopper::advanced(values, step * 16 * hopper::kRowBytes), E{});
    }
  }

  /// Masks scores that have just been computed, and gives the keys' buffer back.
  QUIRE_DEVICE static void finish_keys(HardwareDevice& device, std::uint32_t i, int mark,
                                       const std::int32_t (&positions)[2],
                                       float (&scores)[kKeys / 2], const Shared& shared) {
    if (mark == kMasked) {
      const std::int32_t* keys = shared.key_positions(stage_of(i)) + device.lane() % 4 * 2;
      QUIRE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        const int2 pair = *reinterpret_cast<const int2*>(keys + n * 8);
        QUIRE_UNROLL
        for (int half = 0; half < 2; ++half) {
          if (pair.x > positions[half]) scores[4 * n + 2 * half] = -kInfinity;
          if (pair.y > positions[half]) scores[4 * n + 2 * half + 1] = -kInfinity;
        }
      }
    }
    release(device, shared.empty_keys(stage_of(i)));
  }

  /// Turns scores into weights relative to the new maximum. `shrink` is what earlier sums are to be
  /// multiplied with.
  QUIRE_DEVICE static void weigh(HardwareDevice& device, float (&scores)[kKeys / 2], Sums& sums) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      // Two chains each for the maximum and the sum, because one would wait for itself
      float even = sums.largest[half], odd = scores[2 * half + 1];
      QUIRE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        even = fmaxf(even, scores[4 * n + 2 * half]);
        odd = fmaxf(odd, scores[4 * n + 2 * half + 1]);
      }
      float largest = fmaxf(even, odd);
      largest = fmaxf(largest, device.shuffle_xor(largest, 1));
      largest = fmaxf(largest, device.shuffle_xor(largest, 2));
      // A lane that has seen no key has largest -inf, and all its weights shall be 0
      const float base = largest == -kInfinity ? 0.0f : largest,
                  shrink = device.exp2_approx(sums.largest[half] - base);
      sums.largest[half] = largest;
      sums.shrink[half] = shrink;
      even = sums.total[half] * shrink;
      odd = 0;
      QUIRE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        float& first = scores[4 * n + 2 * half];
        float& second = scores[4 * n + 2 * half + 1];
        first = device.exp2_approx(first - base);
        second = device.exp2_approx(second - base);
        even += first;
        odd += second;
      }
      sums.total[half] = even + odd;
    }
  }
  QUIRE_DEVICE static void rescale(Sums& sums) {
    QUIRE_UNROLL
    for (int c = 0; c < kDim / 2; ++c) sums.out[c] *= sums.shrink[c / 2 % 2];
  }
  QUIRE_DEVICE static void round(HardwareDevice& device, const float (&scores)[kKeys / 2],
                                 Weights& weights) {
    QUIRE_UNROLL
    for (int i = 0; i < kKeys / 4; ++i)
      weights[i] = device.template from_floats<E>(scores[2 * i], scores[2 * i + 1]);
  }

  QUIRE_DEVICE void store(HardwareDevice& device, int own, std::uint32_t first_lane,
                          std::uint32_t group, std::uint32_t kv_head, const Sums& sums) const {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float total = sums.total[half];
      total += device.shuffle_xor(total, 1);
      total += device.shuffle_xor(total, 2);
      const std::uint32_t lane = first_lane + static_cast<std::uint32_t>(own + half * 8);
      const std::int64_t t = lane / group;
      if (t >= a.rows) continue;
      const std::int64_t head = kv_head * group + lane % group;
      const float inverse = total > 0 ? 1.0f / total : 0.0f;  // 0: the lane saw no key
      const std::int64_t at = t * a.ldo + head * kDim + device.lane() % 4 * 2;
      float* out = a.out + at;
      QUIRE_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        const float2 pair{sums.out[4 * n + 2 * half] * inverse,
                          sums.out[4 * n + 2 * half + 1] * inverse};
        if (out_dtype == DType::kBF16) {
          store_pair(device, reinterpret_cast<BF16*>(a.out) + at + n * 8, pair.x, pair.y);
        } else if (wide) {
          *reinterpret_cast<float2*>(out + n * 8) = pair;
        } else {
          store_pair(device, out + n * 8, pair.x, pair.y);
        }
      }
      if (a.lse != nullptr && device.lane() % 4 == 0) {
        device.store(a.lse + t * a.num_heads + head,
                     total > 0 ? sums.largest[half] * kLn2 + logf(total) : -kInfinity);
      }
    }
  }
};

/// Computes attention() for KV of element type E, F16 or BF16, and head_dim 64 or 128, which the
/// caller has checked. Errors: as launch_prefill_attention().
template <class E, int kWorkers>
Status launch_prefill_sm90(HardwareLauncher& launcher, const PrefillAttentionArgs& args) {
  QUIRE_RETURN_IF_ERROR(check_prefill(args));
  const AttentionArgs& a = args.attention;
  const auto aligned = [](const float* p, std::int64_t ld) {
    return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
  };
  const bool wide = aligned(a.q, a.ldq) && (args.to != DType::kF32 || aligned(a.out, a.ldo));
  const auto attend = [&]<int kDim>() {
    using Kernel = PrefillAttentionSm90<E, kDim, kWorkers>;
    const std::int64_t lanes = a.rows * (a.num_heads / a.kv.num_kv_heads),
                       lane_tiles = (lanes + Kernel::kLanes - 1) / Kernel::kLanes;
    return launcher.launch(
        {{lane_tiles * a.kv.num_kv_heads, 1, 1}, Kernel::kThreads, Kernel::kSharedBytes},
        Kernel{a, args.to, wide});
  };
  return a.kv.head_dim == 64 ? attend.template operator()<64>() : attend.template operator()<128>();
}

}  // namespace quire::cuda
