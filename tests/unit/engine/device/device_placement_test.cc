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
#include "kernels/cuda/backend/ops.h"
#include "tests/support/simt/emulated_ops.h"

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
  std::vector<StoredRows> view() const {
    std::vector<StoredRows> out;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto n = static_cast<std::int64_t>(rows[i].size()), row = std::int64_t{kDim} * 4;
      out.push_back({{.data = blocks[i].data(),
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
  }
  std::vector<std::vector<float>> blocks;
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

}  // namespace
}  // namespace quire
