/// Working caches whose pages lie on an emulated device, which the host cannot touch: what they
/// copy is what caches in ordinary memory copy.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "engine/cache/working_cache.h"
#include "engine/compute/compute.h"
#include "engine/device/device_compute.h"
#include "engine/device/device_memory.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

constexpr PageFormat kFormat{2, 8, DType::kF16};
constexpr std::int32_t kLayers = 2, kRows = 5000;  // more than keep_rows() moves at once

/// A cache of random rows.
struct Filled {
  explicit Filled(std::shared_ptr<ComputeMemory> memory, std::int32_t rows = kRows)
      : pool(kFormat, 0, std::move(memory)), cache(pool, kLayers) {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    std::mt19937 random(7);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_TRUE(cache.add_rows(layer, positions).ok());
      std::vector<std::byte> bytes(pages(layer).size() * page_bytes());
      for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      EXPECT_TRUE(pool.write_pages(bytes.data(), pages(layer)).ok());
    }
  }
  static std::size_t page_bytes() { return static_cast<std::size_t>(kFormat.page_bytes()); }
  std::vector<void*> pages(std::int32_t layer) const {
    std::vector<void*> out;
    const KvView kv = cache.view(layer);
    for (std::int64_t page = 0; page * kPageTokens < kv.num_rows; ++page)
      out.push_back(const_cast<void*>(kv.pages[page]));
    return out;
  }
  std::vector<std::byte> bytes(std::int32_t layer) const {
    std::vector<std::byte> out(pages(layer).size() * page_bytes());
    EXPECT_TRUE(pool.read_pages(pages(layer), out.data()).ok());
    return out;
  }
  void expect_same(const Filled& other) const {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(bytes(layer), other.bytes(layer)) << "layer " << layer;
      EXPECT_TRUE(std::ranges::equal(cache.positions(layer), other.cache.positions(layer)));
    }
  }

  PagePool pool;
  WorkingCache cache;
};

class DeviceCacheTest : public ::testing::Test {
 protected:
  std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
  std::shared_ptr<DeviceMemory> memory_ = std::make_shared<DeviceMemory>(ops_);
};

/// Returns about that share of the rows for each head, the first and the last among them.
std::vector<std::vector<std::int32_t>> some_rows(std::initializer_list<double> shares) {
  std::mt19937 random(3);
  std::vector<std::vector<std::int32_t>> out;
  for (const double share : shares) {
    auto& list = out.emplace_back();
    std::bernoulli_distribution kept(share);
    for (std::int32_t row = 0; row < kRows; ++row) {
      if (row == kRows - 1 || kept(random)) list.push_back(row);
    }
  }
  return out;
}

TEST_F(DeviceCacheTest, KeptRowsAreThoseOfOrdinaryMemory) {
  for (const auto& shares : {std::pair{0.9, 0.9}, std::pair{1.0, 0.5}, std::pair{0.1, 0.99}}) {
    Filled host(nullptr), device(memory_);
    const auto rows = some_rows({shares.first, shares.second});
    const std::int64_t waits = ops_->waits();
    for (Filled* each : {&host, &device}) ASSERT_TRUE(each->cache.keep_rows(1, rows).ok());
    EXPECT_LE(ops_->waits() - waits, 2) << "rows move on the device";
    device.expect_same(host);
  }
}

TEST_F(DeviceCacheTest, NothingIsKeptWhereNoRoomIsLeftToMoveRows) {
  Filled host(nullptr), device(memory_);
  ops_->fail_allocation(0);
  EXPECT_EQ(device.cache.keep_rows(1, some_rows({0.5, 0.5})).code(), Code::kResourceExhausted);
  device.expect_same(host);
}

TEST_F(DeviceCacheTest, WhatIsWrittenToASharedPageIsACopy) {
  Filled host(nullptr, 40), device(memory_, 40);
  const std::vector<std::byte> before = device.bytes(0);
  const std::vector<void*> held = device.cache.share_page(1);
  const std::vector<std::int32_t> rows = {17};
  const auto own = device.cache.writable(0, rows);
  ASSERT_TRUE(own.ok());
  EXPECT_NE(own->pages[1], held[0]);
  EXPECT_EQ(device.pages(1)[1], held[1]) << "the other layer still shares its page";
  device.expect_same(host);
  const std::vector<std::byte> ones(Filled::page_bytes(), std::byte{1});
  ASSERT_TRUE(device.pool.write_pages(ones.data(), {&own->pages[1], 1}).ok());
  std::vector<std::byte> shared(Filled::page_bytes());
  ASSERT_TRUE(device.pool.read_pages({held.data(), 1}, shared.data()).ok());
  EXPECT_TRUE(std::equal(shared.begin(), shared.end(),
                         before.begin() + static_cast<std::ptrdiff_t>(Filled::page_bytes())));
  for (void* page : held) device.pool.release(page);
}

TEST_F(DeviceCacheTest, RowsLeaveForOrdinaryMemoryAndComeBack) {
  Filled host(nullptr), device(memory_);
  ASSERT_TRUE(device.cache.move_out().ok());
  EXPECT_EQ(device.pool.bytes_in_use(), 0);
  EXPECT_GT(device.cache.bytes_out(), 0);
  ops_->fail_allocation(0);
  EXPECT_EQ(device.cache.move_in().code(), Code::kResourceExhausted);
  EXPECT_EQ(device.pool.bytes_in_use(), 0);
  ASSERT_TRUE(device.cache.move_in().ok());
  device.expect_same(host);
}

TEST_F(DeviceCacheTest, RowsThatCannotLeaveStayWhereTheyAre) {
  Filled host(nullptr, 40), device(memory_, 40);
  ops_->fail_allocation(0);
  EXPECT_EQ(device.cache.move_out().code(), Code::kResourceExhausted);
  EXPECT_EQ(device.cache.bytes_out(), 0);
  ASSERT_TRUE(device.cache.move_in().ok()) << "nothing is to come back";
  device.expect_same(host);
  ASSERT_TRUE(device.cache.move_out().ok());
  ASSERT_TRUE(device.cache.move_in().ok());
  device.expect_same(host);
}

TEST_F(DeviceCacheTest, ALostDeviceIsNamedWhenRowsAreToLeaveIt) {
  Filled device(memory_, 40);
  ops_->lose();
  EXPECT_EQ(device.cache.move_out().code(), Code::kDeviceLost);
  EXPECT_EQ(device.cache.bytes_out(), 0);
}

TEST_F(DeviceCacheTest, TheHostSeesACopyThatGrows) {
  Filled host(nullptr, 40), device(memory_, 40);
  HostRows room;
  const auto seen = [&room](const Filled& from) {
    const KvView kv = *from.cache.host_view(0, room);
    std::vector<std::byte> out;
    for (std::int64_t page = 0; page * kPageTokens < kv.num_rows; ++page) {
      const auto* first = static_cast<const std::byte*>(kv.pages[page]);
      out.insert(out.end(), first, first + Filled::page_bytes());
    }
    return out;
  };
  EXPECT_EQ(seen(device), host.bytes(0));
  const std::vector<std::int32_t> more = {40, 41, 42, 43, 44, 45, 46, 47, 48};
  ASSERT_TRUE(device.cache.add_rows(0, more).ok());
  const std::vector<std::byte> ones(2 * Filled::page_bytes(), std::byte{1});
  ASSERT_TRUE(
      device.pool.write_pages(ones.data(), std::span<void* const>(device.pages(0)).subspan(2))
          .ok());
  EXPECT_EQ(seen(device), device.bytes(0));
}

/// What the device keeps of pages and positions is what the cache has, whatever happened to it.
TEST_F(DeviceCacheTest, TablesFollowTheCache) {
  const auto compute = make_device_compute(ops_);
  Filled f(compute->memory(), 100);
  const auto expect_known = [&](const char* after) {
    std::vector<KvView> views;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) views.push_back(f.cache.view(layer));
    ASSERT_TRUE(compute->attention().refresh(views).ok());
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const KvView& kv = views[static_cast<std::size_t>(layer)];
      const std::int64_t rows = kv.num_rows, pages = (rows + kPageTokens - 1) / kPageTokens;
      std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
      std::vector<const void*> there(static_cast<std::size_t>(pages));
      EXPECT_GE(kv.table->known_rows(), rows);
      ASSERT_TRUE(compute->memory()->read(kv.table->positions(), rows * 4, positions.data()).ok());
      ASSERT_TRUE(compute->memory()->read(kv.table->pages(), pages * 8, there.data()).ok());
      EXPECT_TRUE(std::ranges::equal(positions, std::span(kv.positions, positions.size())))
          << "after " << after << ", layer " << layer;
      EXPECT_TRUE(std::ranges::equal(there, std::span(kv.pages, there.size())))
          << "after " << after << ", layer " << layer;
    }
  };
  const auto add = [&](std::int32_t position, std::int32_t rows = 1) {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), position);
    for (std::int32_t layer = 0; layer < kLayers; ++layer)
      ASSERT_TRUE(f.cache.add_rows(layer, positions).ok());
  };
  expect_known("a prefill");
  for (std::int32_t i = 0; i < 40; ++i) {
    add(200 + i);
    expect_known("a step");
  }
  f.cache.truncate_all(75);
  add(500, 3);
  expect_known("other rows in place of removed ones");
  add(600, 2000);
  expect_known("growth past the room");
  // Another holder of the last whole page makes a write take a copy.
  const std::vector<void*> held = f.cache.share_page(2);
  const std::int32_t row = 40;
  ASSERT_TRUE(f.cache.writable(0, std::span(&row, 1)).ok());
  expect_known("a copy of a shared page");
  for (void* page : held) f.pool.release(page);
  std::vector<std::int32_t> kept;
  for (std::int32_t r = 0; r < 900; r += 3) kept.push_back(r);
  ASSERT_TRUE(f.cache.keep_rows(1, std::vector{kept, kept}).ok());
  expect_known("rows that were dropped");
  ASSERT_TRUE(f.cache.move_out().ok());
  // Other pages are taken first, so that rows come back to other places.
  Filled other(compute->memory(), 3);
  ASSERT_TRUE(f.cache.move_in().ok());
  expect_known("rows that came back");
  f.cache.forget_tables();
  expect_known("a step that failed");
}

}  // namespace
}  // namespace quire
