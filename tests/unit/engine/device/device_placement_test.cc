/// Stored rows reach the device by asynchronous copies, concurrently with computation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "engine/cache/working_cache.h"
#include "engine/device/device_compute.h"
#include "engine/device/pinned_values.h"
#include "kernels/cuda/backend/ops.h"
#include "kernels/rows/raw_rows.h"
#include "tests/support/simt/emulated_ops.h"
#include "tests/support/simt/refusing_ops.h"

namespace quire {
namespace {

constexpr std::int32_t kHeads = 2, kDim = 8;

RopeTable small_table() {
  RopeConfig config;
  config.head_dim = config.rotary_dim = kDim;
  return std::move(*RopeTable::build(config, 512));
}

/// Expects equal values up to the last bit of the dtype, because the two backends round rotations
/// differently.
void expect_same(const std::vector<float>& got, const std::vector<float>& expected, DType dtype) {
  const float bound = dtype == DType::kF32 ? 1e-6f : dtype == DType::kF16 ? 1e-3f : 8e-3f;
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], bound * (1 + std::abs(expected[i]))) << i;
}

/// Blocks of stored KV [head][2][tokens][dim] in f32, and their target rows: every second row of a
/// layer from `first` on.
struct Stored {
  Stored(const std::vector<std::int64_t>& tokens, std::int32_t first, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> value;
    std::int32_t at = first;
    for (const std::int64_t n : tokens) {
      auto& block = blocks.emplace_back(static_cast<std::size_t>(kHeads * 2 * n * kDim));
      for (float& x : block) x = value(random);
      std::vector<std::int32_t>& to = rows.emplace_back();
      for (std::int64_t i = 0; i < n; ++i, at += 2) to.push_back(at);
    }
  }
  /// Moves block `i` to pinned memory, as a store's DRAM tier does.
  void pin(const std::shared_ptr<PinnedValues>& values, std::size_t i) {
    pinned.resize(blocks.size());
    const std::size_t bytes = blocks[i].size() * sizeof(float);
    std::byte* const to = values->take(kLead + bytes);
    ASSERT_NE(to, nullptr);
    pinned[i] = {to, [values](std::byte* p) { values->give(p); }};
    std::memcpy(to + kLead, blocks[i].data(), bytes);
    std::fill(blocks[i].begin(), blocks[i].end(), -1.0f);
  }
  std::vector<StoredRows> view() const {
    std::vector<StoredRows> out;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto n = static_cast<std::int64_t>(rows[i].size()), row = std::int64_t{kDim} * 4;
      const void* data = blocks[i].data();
      if (i < pinned.size() && pinned[i]) data = pinned[i].get() + kLead;
      out.push_back({{.data = data,
                      .num_rows = n,
                      .dtype = DType::kF32,
                      .head_stride = 2 * n * row,
                      .kv_stride = n * row,
                      .row_stride = row},
                     rows[i],
                     rows[i]});
    }
    return out;
  }
  void forget() {
    for (auto& block : blocks) std::fill(block.begin(), block.end(), -1.0f);
    pinned.clear();
  }
  static constexpr std::size_t kLead = 128;  ///< before a block in its value
  std::vector<std::vector<float>> blocks;
  std::vector<std::shared_ptr<std::byte>> pinned;  ///< [block]; null: it is in `blocks`
  std::vector<std::vector<std::int32_t>> rows;
};

/// A cache of five layers of 90 rows whose pages hold zeros.
struct Cache {
  Cache(const std::shared_ptr<ComputeMemory>& memory, DType dtype)
      : pool({kHeads, kDim, dtype}, 0, memory), cache(pool, 5) {
    std::vector<std::int32_t> positions(90);
    std::iota(positions.begin(), positions.end(), 0);
    for (std::int32_t layer = 0; layer < 5; ++layer) {
      EXPECT_TRUE(cache.add_rows(layer, positions).ok());
      const std::vector<void*> all = pages(layer);
      const std::vector<std::byte> zeros(all.size() *
                                         static_cast<std::size_t>(pool.format().page_bytes()));
      EXPECT_TRUE(pool.write_pages(zeros.data(), all).ok());
    }
  }
  std::vector<void*> pages(std::int32_t layer) {
    const KvView view = cache.view(layer);
    std::vector<void*> out;
    for (std::int64_t page = 0; page * kPageTokens < view.num_rows; ++page)
      out.push_back(const_cast<void*>(view.pages[page]));
    return out;
  }
  Status place(Compute& compute, const RopeTable& table, std::int32_t layer, const Stored& stored) {
    std::vector<std::int32_t> rows;
    for (const auto& part : stored.rows) rows.insert(rows.end(), part.begin(), part.end());
    QUIRE_ASSIGN_OR_RETURN(const MutableKvView to, cache.writable(layer, rows));
    return compute.kv().place(table, to, stored.view());
  }
  std::vector<float> values() {
    std::vector<float> out;
    const DType dtype = pool.format().dtype;
    for (std::int32_t layer = 0; layer < 5; ++layer) {
      const std::vector<void*> all = pages(layer);
      std::vector<std::byte> bytes(all.size() *
                                   static_cast<std::size_t>(pool.format().page_bytes()));
      EXPECT_TRUE(pool.read_pages(all, bytes.data()).ok());
      for (std::size_t i = 0; i < bytes.size() / dtype_bytes(dtype); ++i)
        out.push_back(load_f32(bytes.data(), dtype, static_cast<std::int64_t>(i)));
    }
    return out;
  }
  PagePool pool;
  WorkingCache cache;
};

std::vector<Stored> five_layers() {
  return {Stored({16, 5}, 0, 1), Stored({1}, 77, 2), Stored({16, 16, 9}, 3, 3),
          Stored({7, 16}, 2, 4), Stored({2, 1, 3}, 31, 5)};
}

TEST(DevicePlacementTest, LayersAreThereInOrderWheneverCopiesRunAndNobodyWaits) {
  const RopeTable table = small_table();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Cache expected(nullptr, dtype);
    const auto cpu = make_cpu_compute();
    const auto layers = five_layers();
    for (std::int32_t layer = 0; layer < 5; ++layer)
      ASSERT_TRUE(expected.place(*cpu, table, layer, layers[static_cast<std::size_t>(layer)]).ok());
    for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
      const auto ops = simt::make_emulated_ops({.copies = copies});
      const auto compute = make_device_compute(ops);
      const auto known = std::move(*compute->register_rope(table));
      Cache cache(compute->memory(), dtype);
      constexpr int kGrowing = 4;  // rounds until each of four slots has had its longest layer
      for (int round = 0; round <= kGrowing; ++round) {
        const std::int64_t waits = ops->waits();
        auto stored = five_layers();
        for (std::int32_t layer = 0; layer < 5; ++layer) {
          ASSERT_TRUE(
              cache.place(*compute, table, layer, stored[static_cast<std::size_t>(layer)]).ok());
          stored[static_cast<std::size_t>(layer)].forget();
        }
        EXPECT_TRUE(round < kGrowing || ops->waits() == waits);
        ASSERT_TRUE(compute->synchronize().ok());
      }
      expect_same(cache.values(), expected.values(), dtype);
      EXPECT_EQ(ops->runs(cuda::OpCode::kCopyAsync), 5 * (kGrowing + 1));
      EXPECT_EQ(ops->runs(cuda::OpCode::kPlaceRows), 5 * (kGrowing + 1));
    }
  }
}

/// Packing ahead is a hint: whatever was packed, the rows of the call are placed.
TEST(DevicePlacementTest, RowsPackedAheadAreThoseThatTheNextCallGets) {
  const RopeTable table = small_table();
  Cache expected(nullptr, DType::kBF16);
  const auto cpu = make_cpu_compute();
  const auto layers = five_layers();
  for (std::int32_t layer = 0; layer < 5; ++layer)
    ASSERT_TRUE(expected.place(*cpu, table, layer, layers[static_cast<std::size_t>(layer)]).ok());
  const auto ops = simt::make_emulated_ops({.copies = simt::Copies::kLate});
  const auto compute = make_device_compute(ops);
  const auto known = std::move(*compute->register_rope(table));
  const auto raw = [](const Stored& stored) {
    std::vector<RawKvView> rows;
    for (const StoredRows& piece : stored.view()) rows.push_back(piece.raw);
    return rows;
  };
  Stored zeros({16, 3}, 40, 9);
  for (auto& block : zeros.blocks) std::fill(block.begin(), block.end(), 0.0f);
  ASSERT_TRUE(expected.place(*cpu, table, 1, zeros).ok());
  Cache cache(compute->memory(), DType::kBF16);
  for (int round = 0; round < 6; ++round) {
    auto stored = five_layers();
    for (std::size_t layer = 0; layer < 5; ++layer) {
      ASSERT_TRUE(
          cache.place(*compute, table, static_cast<std::int32_t>(layer), stored[layer]).ok());
      stored[layer].forget();
      // The next layer, or another one; the last round packs nothing.
      const std::size_t ahead = round % 2 == 0 ? layer + 1 : (layer + 3) % 5;
      if (round == 5 || ahead >= 5) continue;
      ASSERT_TRUE(compute->kv().pack_ahead(raw(stored[ahead]), kHeads, kDim).ok());
    }
    // What was packed is forgotten, so rows at the same address are packed as they are then.
    Stored changing({16, 3}, 40, 9);
    ASSERT_TRUE(compute->kv().pack_ahead(raw(changing), kHeads, kDim).ok());
    compute->kv().end_packing();
    std::fill(changing.blocks[0].begin(), changing.blocks[0].end(), 0.0f);
    std::fill(changing.blocks[1].begin(), changing.blocks[1].end(), 0.0f);
    ASSERT_TRUE(cache.place(*compute, table, 1, changing).ok());
    ASSERT_TRUE(compute->synchronize().ok());
  }
  expect_same(cache.values(), expected.values(), DType::kBF16);
  // Rows of different types are refused, and nothing is packed.
  std::vector<RawKvView> mixed = raw(layers[0]);
  mixed.back().dtype = DType::kF16;
  EXPECT_EQ(compute->kv().pack_ahead(mixed, kHeads, kDim).field(), "rows");
}

TEST(DevicePlacementTest, ACopyThatFailsFailsThatCallAlone) {
  const RopeTable table = small_table();
  const auto layers = five_layers();
  for (int n = 0; n < 5; ++n) {
    const auto ops = simt::make_emulated_ops();
    const auto compute = make_device_compute(ops);
    const auto known = std::move(*compute->register_rope(table));
    Cache cache(compute->memory(), DType::kF16), expected(nullptr, DType::kF16);
    const auto cpu = make_cpu_compute();
    ops->fail_copy(n);
    for (std::int32_t layer = 0; layer < 5; ++layer) {
      const Status status = cache.place(*compute, table, layer,
                                        layers[static_cast<std::size_t>(layer)]);
      EXPECT_EQ(status.ok(), layer != n) << status.to_string();
      ASSERT_TRUE(expected.place(*cpu, table, layer, layers[static_cast<std::size_t>(layer)]).ok());
    }
    ASSERT_TRUE(cache.place(*compute, table, n, layers[static_cast<std::size_t>(n)]).ok());
    ASSERT_TRUE(compute->synchronize().ok());
    expect_same(cache.values(), expected.values(), DType::kF16);
  }
}

TEST(DevicePlacementTest, RowsOfTwoDtypesAreRefused) {
  const RopeTable table = small_table();
  const auto compute = make_device_compute(simt::make_emulated_ops());
  const auto known = std::move(*compute->register_rope(table));
  Cache cache(compute->memory(), DType::kF16);
  const Stored stored({3, 3}, 0, 1);
  auto rows = stored.view();
  rows[1].raw.dtype = DType::kF16;
  const std::vector<std::int32_t> to = {0, 2, 4, 6, 8, 10};
  const auto pages = cache.cache.writable(0, to);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(compute->kv().place(table, *pages, rows).code(), Code::kInvalidArgument);
}

/// A device with pinned memory for values.
struct PinnedDevice {
  explicit PinnedDevice(simt::Copies copies, std::int64_t most_bytes = 1 << 20)
      : emulated(simt::make_emulated_ops({.copies = copies})),
        ops(std::make_shared<simt::RefusingOps>(emulated)),
        values(std::make_shared<PinnedValues>(ops, most_bytes, 1 << 20)),
        compute(make_device_compute(ops, "cuda", values)) {}
  /// Overwrites all pinned memory that no value is in.
  void overwrite_free() const {
    std::vector<std::byte*> taken;
    while (std::byte* const page = values->take(PinnedValues::kPage)) {
      std::memset(page, 0xff, PinnedValues::kPage);
      taken.push_back(page);
    }
    for (std::byte* const page : taken) values->give(page);
  }
  std::shared_ptr<simt::EmulatedOps> emulated;
  std::shared_ptr<simt::RefusingOps> ops;
  std::shared_ptr<PinnedValues> values;
  std::shared_ptr<Compute> compute;
};

enum class Pinned { kAll, kEverySecond, kFirst };
bool is_pinned(Pinned which, std::size_t block) {
  if (which == Pinned::kEverySecond) return block % 2 == 0;
  return which == Pinned::kAll || block == 0;
}

/// A value may be freed, and its memory given to another, once the call that places it returns.
TEST(DevicePlacementTest, PinnedValuesAreReadWhereTheyLieAlsoOnceTheyAreFreed) {
  const RopeTable table = small_table();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Cache expected(nullptr, dtype);
    const auto cpu = make_cpu_compute();
    const auto layers = five_layers();
    for (std::int32_t layer = 0; layer < 5; ++layer)
      ASSERT_TRUE(expected.place(*cpu, table, layer, layers[static_cast<std::size_t>(layer)]).ok());
    for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
      for (const Pinned which : {Pinned::kAll, Pinned::kEverySecond, Pinned::kFirst}) {
        SCOPED_TRACE(static_cast<int>(which));
        const PinnedDevice device(copies);
        const auto known = std::move(*device.compute->register_rope(table));
        Cache cache(device.compute->memory(), dtype);
        constexpr int kGrowing = 4;  // rounds until each of four slots has had its longest layer
        for (int round = 0; round <= kGrowing; ++round) {
          const std::int64_t waits = device.emulated->waits();
          auto stored = five_layers();
          for (std::int32_t layer = 0; layer < 5; ++layer) {
            Stored& now = stored[static_cast<std::size_t>(layer)];
            for (std::size_t i = 0; i < now.blocks.size(); ++i)
              if (is_pinned(which, i)) now.pin(device.values, i);
            ASSERT_TRUE(cache.place(*device.compute, table, layer, now).ok());
            now.forget();
            device.overwrite_free();
          }
          EXPECT_TRUE(round < kGrowing || device.emulated->waits() == waits);
          ASSERT_TRUE(device.compute->synchronize().ok());
        }
        expect_same(cache.values(), expected.values(), dtype);
        // A copy brings the one block of a layer, or what a gather is told.
        EXPECT_EQ(device.emulated->runs(cuda::OpCode::kCopyAsync), 5 * (kGrowing + 1));
        EXPECT_GE(device.emulated->runs(cuda::OpCode::kGatherRows), 4 * (kGrowing + 1));
      }
    }
  }
}

TEST(DevicePlacementTest, SomeRowsOfPinnedBlocksArePlaced) {
  const RopeTable table = small_table();
  const auto pieces = [](const Stored& stored) {
    // Rows [first, first + n) of blocks of 40, 37 and 16 tokens.
    constexpr std::int64_t kCut[][3] = {{0, 3, 1},  {0, 7, 18}, {1, 0, 37}, {1, 36, 1},
                                        {2, 15, 1}, {2, 2, 5},  {0, 39, 1}};
    std::vector<StoredRows> out;
    const auto all = stored.view();
    for (const auto& [block, first, n] : kCut) {
      const StoredRows& whole = all[static_cast<std::size_t>(block)];
      const auto at = static_cast<std::size_t>(first), count = static_cast<std::size_t>(n);
      out.push_back({raw_rows(whole.raw, first, n), whole.positions.subspan(at, count),
                     whole.dst_rows.subspan(at, count)});
    }
    return out;
  };
  const auto place = [&](Compute& compute, Cache& cache, const std::vector<StoredRows>& rows) {
    std::vector<std::int32_t> to;
    for (const StoredRows& piece : rows)
      to.insert(to.end(), piece.dst_rows.begin(), piece.dst_rows.end());
    const auto pages = cache.cache.writable(0, to);
    ASSERT_TRUE(pages.ok());
    ASSERT_TRUE(compute.kv().place(table, *pages, rows).ok());
  };
  const auto blocks = [] {
    Stored stored({40, 37, 16}, 0, 8);
    std::int32_t row = 0;  // 93 rows for 90 places: the pieces use less than half of them
    for (auto& part : stored.rows)
      for (auto& at : part) at = row++ % 90;
    return stored;
  };
  Cache expected(nullptr, DType::kF16);
  place(*make_cpu_compute(), expected, pieces(blocks()));
  for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
    for (const Pinned which : {Pinned::kAll, Pinned::kEverySecond, Pinned::kFirst}) {
      const PinnedDevice device(copies);
      const auto known = std::move(*device.compute->register_rope(table));
      Cache cache(device.compute->memory(), DType::kF16);
      Stored stored = blocks();
      for (std::size_t i = 0; i < 3; ++i)
        if (is_pinned(which, i)) stored.pin(device.values, i);
      place(*device.compute, cache, pieces(stored));
      stored.forget();
      device.overwrite_free();
      ASSERT_TRUE(device.compute->synchronize().ok());
      expect_same(cache.values(), expected.values(), DType::kF16);
    }
  }
}

TEST(DevicePlacementTest, PackingAheadLeavesPinnedRowsWhereTheyLie) {
  const RopeTable table = small_table();
  Cache expected(nullptr, DType::kF16);
  const auto cpu = make_cpu_compute();
  const auto layers = five_layers();
  for (std::int32_t layer = 0; layer < 5; ++layer)
    ASSERT_TRUE(expected.place(*cpu, table, layer, layers[static_cast<std::size_t>(layer)]).ok());
  const PinnedDevice device(simt::Copies::kLate);
  const auto known = std::move(*device.compute->register_rope(table));
  Cache cache(device.compute->memory(), DType::kF16);
  for (int round = 0; round < 6; ++round) {
    auto stored = five_layers();
    for (Stored& layer : stored)
      for (std::size_t i = 0; i < layer.blocks.size(); ++i)
        if (round % 3 == 0 || i % 2 == static_cast<std::size_t>(round % 2))
          layer.pin(device.values, i);
    for (std::size_t layer = 0; layer < 5; ++layer) {
      ASSERT_TRUE(
          cache.place(*device.compute, table, static_cast<std::int32_t>(layer), stored[layer])
              .ok());
      stored[layer].forget();
      device.overwrite_free();
      const std::size_t ahead = round < 4 ? layer + 1 : (layer + 3) % 5;
      if (ahead >= 5) continue;
      std::vector<RawKvView> rows;
      for (const StoredRows& piece : stored[ahead].view()) rows.push_back(piece.raw);
      ASSERT_TRUE(device.compute->kv().pack_ahead(rows, kHeads, kDim).ok());
      if (ahead < layer) device.compute->kv().end_packing();  // these are gone already
    }
    ASSERT_TRUE(device.compute->synchronize().ok());
  }
  expect_same(cache.values(), expected.values(), DType::kF16);
}

/// Memory of freed values comes back with the use of the slots that read them.
TEST(DevicePlacementTest, MemoryOfAFreedValueIsHeldUntilItsCopyHasRun) {
  const RopeTable table = small_table();
  const PinnedDevice device(simt::Copies::kLate);
  const auto known = std::move(*device.compute->register_rope(table));
  Cache cache(device.compute->memory(), DType::kF16);
  Stored stored({16, 16}, 0, 4);
  stored.pin(device.values, 0);
  stored.pin(device.values, 1);
  const std::byte* const first = stored.pinned[0].get();
  const std::int64_t both = device.values->use().given_bytes;
  ASSERT_TRUE(cache.place(*device.compute, table, 0, stored).ok());
  stored.forget();
  EXPECT_EQ(device.values->use().held_bytes, both);
  std::byte* const other = device.values->take(PinnedValues::kPage);
  EXPECT_NE(other, first);
  device.values->give(other);
  const Stored ordinary({3}, 50, 5);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(device.values->use().held_bytes, both) << i;
    ASSERT_TRUE(cache.place(*device.compute, table, 1, ordinary).ok());
  }
  EXPECT_EQ(device.values->use().held_bytes, 0);
  EXPECT_EQ(device.values->use().given_bytes, 0);
}

/// What a compute holds when it ends is not given to others before its copies have run.
TEST(DevicePlacementTest, AComputeThatEndsWaitsForItsCopiesOfPinnedValues) {
  const RopeTable table = small_table();
  PinnedDevice device(simt::Copies::kLate);
  auto known = std::move(*device.compute->register_rope(table));
  const auto twin = device.compute->twin();
  Cache cache(twin->memory(), DType::kF16), expected(nullptr, DType::kF16);
  Stored stored({16, 5}, 0, 4);
  ASSERT_TRUE(expected.place(*make_cpu_compute(), table, 0, stored).ok());
  stored.pin(device.values, 0);
  stored.pin(device.values, 1);
  ASSERT_TRUE(cache.place(*device.compute, table, 0, stored).ok());
  stored.forget();
  EXPECT_GT(device.values->use().held_bytes, 0);
  device.ops->at_synchronize = [&] { device.overwrite_free(); };
  device.compute.reset();
  device.ops->at_synchronize = {};
  EXPECT_EQ(device.values->use().given_bytes, 0);
  EXPECT_TRUE(twin->synchronize().ok());
  expect_same(cache.values(), expected.values(), DType::kF16);
}

/// A call that fails between two of its gathers leaves the first one under way.
TEST(DevicePlacementTest, AGatherThatWasEnqueuedBeforeAnErrorReadsItsOwnLists) {
  const RopeTable table = small_table();
  const PinnedDevice device(simt::Copies::kLate);
  const auto known = std::move(*device.compute->register_rope(table));
  Cache cache(device.compute->memory(), DType::kF16), expected(nullptr, DType::kF16);
  // Lists of other lengths, in the same slot: an address lies where a move was.
  Stored first({8, 8, 8, 5}, 0, 4), second({5, 7, 3}, 3, 5);
  ASSERT_TRUE(expected.place(*make_cpu_compute(), table, 0, second).ok());
  for (std::size_t i = 0; i < 4; ++i) first.pin(device.values, i);
  for (std::size_t i = 0; i < 3; ++i) second.pin(device.values, i);
  device.emulated->fail_copy(2);
  EXPECT_FALSE(cache.place(*device.compute, table, 0, first).ok());
  ASSERT_TRUE(cache.place(*device.compute, table, 0, second).ok());
  first.forget();
  second.forget();
  device.overwrite_free();
  EXPECT_TRUE(device.compute->synchronize().ok());
  expect_same(cache.values(), expected.values(), DType::kF16);
}

TEST(DevicePlacementTest, ACopyOfPinnedValuesThatFailsFailsThatCallAlone) {
  const RopeTable table = small_table();
  for (int n = 0; n < 12; ++n) {
    SCOPED_TRACE(n);
    const PinnedDevice device(simt::Copies::kLate);
    const auto known = std::move(*device.compute->register_rope(table));
    Cache cache(device.compute->memory(), DType::kF16), expected(nullptr, DType::kF16);
    const auto cpu = make_cpu_compute();
    auto layers = five_layers();
    const auto there = five_layers();
    device.emulated->fail_copy(n);
    int failed = 0;
    for (int round = 0; round < 2; ++round) {
      for (std::int32_t layer = 0; layer < 5; ++layer) {
        const auto at = static_cast<std::size_t>(layer);
        layers = five_layers();
        for (std::size_t i = 0; i < layers[at].blocks.size(); i += 2)
          layers[at].pin(device.values, i);
        failed += cache.place(*device.compute, table, layer, layers[at]).ok() ? 0 : 1;
        layers[at].forget();
        device.overwrite_free();
        ASSERT_TRUE(expected.place(*cpu, table, layer, there[at]).ok());
      }
    }
    EXPECT_EQ(failed, 1);
    ASSERT_TRUE(device.compute->synchronize().ok());
    expect_same(cache.values(), expected.values(), DType::kF16);
  }
}

/// Large blocks come by copies of their own, and the rest of the call by a gather.
TEST(DevicePlacementTest, LargePinnedBlocksAreCopiedOneByOne) {
  constexpr std::int32_t kLargeDim = 64;
  constexpr std::int64_t kRow = kLargeDim * 4;
  RopeConfig config;
  config.head_dim = config.rotary_dim = kLargeDim;
  const RopeTable table = std::move(*RopeTable::build(config, 512));
  // 32 rows are 32 KiB, 31 a little less.
  const std::vector<std::int64_t> tokens = {32, 31, 40, 32, 7};
  std::mt19937 random(3);
  std::normal_distribution<float> value;
  std::vector<std::vector<float>> blocks;
  for (const std::int64_t n : tokens) {
    auto& block = blocks.emplace_back(static_cast<std::size_t>(kHeads * 2 * n * kLargeDim));
    for (float& x : block) x = value(random);
  }
  std::vector<std::int32_t> rows(142);
  std::iota(rows.begin(), rows.end(), 0);
  const auto place = [&](Compute& compute, const std::vector<const void*>& data, bool one) {
    PagePool pool({kHeads, kLargeDim, DType::kF16}, 0, compute.memory());
    WorkingCache cache(pool, 1);
    EXPECT_TRUE(cache.add_rows(0, rows).ok());
    std::vector<StoredRows> stored;
    std::size_t first = 0;
    for (std::size_t i = 0; i < (one ? 1 : tokens.size()); ++i) {
      const auto to = std::span<const std::int32_t>(rows).subspan(
          first, static_cast<std::size_t>(tokens[i]));
      const std::int64_t n = tokens[i];
      stored.push_back({{.data = data[i],
                         .num_rows = n,
                         .dtype = DType::kF32,
                         .head_stride = 2 * n * kRow,
                         .kv_stride = n * kRow,
                         .row_stride = kRow},
                        to,
                        to});
      first += to.size();
    }
    const auto all = std::span<const std::int32_t>(rows).first(first);
    const auto pages = cache.writable(0, all);
    EXPECT_TRUE(pages.ok() && compute.kv().place(table, *pages, stored).ok());
    const KvView view = cache.view(0);
    std::vector<void*> there;
    for (std::size_t page = 0; page < first / kPageTokens; ++page)
      there.push_back(const_cast<void*>(view.pages[page]));
    std::vector<std::byte> bytes(there.size() *
                                 static_cast<std::size_t>(pool.format().page_bytes()));
    EXPECT_TRUE(pool.read_pages(there, bytes.data()).ok());
    std::vector<float> out;
    for (std::size_t i = 0; i < bytes.size() / 2; ++i)
      out.push_back(load_f32(bytes.data(), DType::kF16, static_cast<std::int64_t>(i)));
    return out;
  };
  std::vector<const void*> ordinary;
  for (const auto& block : blocks) ordinary.push_back(block.data());
  const auto cpu = make_cpu_compute();
  for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
    for (const bool one : {false, true}) {
      const PinnedDevice device(copies);
      const auto known = std::move(*device.compute->register_rope(table));
      std::vector<const void*> data = ordinary;
      std::vector<std::byte*> taken;
      for (const std::size_t i : {0, 1, 2}) {
        const std::size_t bytes = blocks[i].size() * sizeof(float);
        taken.push_back(device.values->take(bytes));
        ASSERT_NE(taken.back(), nullptr);
        std::memcpy(taken.back(), blocks[i].data(), bytes);
        data[i] = taken.back();
      }
      expect_same(place(*device.compute, data, one), place(*cpu, ordinary, one), DType::kF16);
      EXPECT_EQ(device.emulated->runs(cuda::OpCode::kCopyAsync), one ? 1 : 3)
          << "the blocks of 32 and of 40 rows, and the lists";
      for (std::byte* const block : taken) device.values->give(block);
    }
  }
}

}  // namespace
}  // namespace quire
