// A DRAM tier, and a store, that keep values in memory of their own as long as it has room.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cachestore/dram_tier.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

using record::Part;
using record::ValueName;

/// Memory for a fixed number of values, each on a page of its own.
class Pages final : public ValueMemorySource {
 public:
  static constexpr std::size_t kPage = 4096;
  explicit Pages(std::size_t pages) : memory_((pages + 1) * kPage), used_(pages) {}
  ~Pages() override { EXPECT_EQ(free(), used_.size()); }
  std::byte* take(std::size_t bytes) noexcept override {
    if (at_take) at_take();
    const std::lock_guard lock(mu_);
    const auto page = std::ranges::find(used_, 0);
    if (bytes > kPage || page == used_.end()) return nullptr;
    *page = 1;
    return begin() + (page - used_.begin()) * kPage;
  }
  void give(std::byte* memory) noexcept override {
    const std::lock_guard lock(mu_);
    used_[static_cast<std::size_t>(memory - begin()) / kPage] = 0;
    std::memset(memory, 0xff, kPage);
  }
  std::size_t free() const {
    const std::lock_guard lock(mu_);
    return static_cast<std::size_t>(std::ranges::count(used_, 0));
  }
  bool has(const ValueBuffer& value) const {
    return value.payload().data() >= memory_.data() &&
           value.payload().data() < memory_.data() + memory_.size();
  }
  std::function<void()> at_take;

 private:
  /// The first page; the vector begins a little before it.
  std::byte* begin() {
    const auto first = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (kPage - first % kPage) % kPage;
  }
  mutable std::mutex mu_;
  std::vector<std::byte> memory_;
  std::vector<std::uint8_t> used_;
};

ValueName name(SegmentId s, std::uint32_t b) { return {s, Part::kValue, b, 0}; }
constexpr std::size_t kOne = 1024 - ValueBuffer::kLead - ValueBuffer::kAlign;  // 1 KiB in the tier

std::shared_ptr<ValueBuffer> value(const ValueName& n, std::size_t bytes = kOne) {
  auto out = std::make_shared<ValueBuffer>(bytes);
  std::memset(out->payload().data(), static_cast<int>(n.segment * 16 + n.block), bytes);
  record::write_value_header(n, out->payload(), out->stored().data());
  return out;
}

bool is_value(const ValueBuffer& got, const ValueName& n) {
  return record::check_value(n, got.stored()).ok() &&
         got.payload().front() == static_cast<std::byte>(n.segment * 16 + n.block);
}

class DramMemoryTest : public ::testing::Test {
 protected:
  DramTier make(std::uint64_t bytes = 10 * 1024) {
    return DramTier(
        bytes, StorePolicy::kLru, [](SegmentId) { return false; }, {}, pages_);
  }
  std::shared_ptr<Pages> pages_ = std::make_shared<Pages>(4);
};

TEST_F(DramMemoryTest, ValuesLieThereAndTheRestInOrdinaryMemory) {
  DramTier tier = make();
  for (std::uint32_t i = 0; i < 6; ++i) {
    const auto given = value(name(1, i));
    const auto kept = tier.keep(name(1, i), given);
    ASSERT_NE(kept, nullptr);
    EXPECT_EQ(pages_->has(*kept), i < 4);
    EXPECT_EQ(kept == given, i >= 4);
    EXPECT_TRUE(is_value(*kept, name(1, i)));
    EXPECT_EQ(kept->allocated_bytes(), given->allocated_bytes());
    EXPECT_EQ(tier.find(name(1, i)), kept);
    EXPECT_EQ(tier.keep(name(1, i), given), kept) << "a name that is present keeps its buffer";
  }
  EXPECT_EQ(tier.moved().values, 4u);
  EXPECT_EQ(tier.moved().bytes, 4u * 1024);
  EXPECT_EQ(tier.moved().unmoved, 2u);
  EXPECT_EQ(tier.stats().used_bytes, 6u * 1024) << "both count alike";
  EXPECT_EQ(tier.stats().num_values, 6u);
  tier.erase_segment(1);
  EXPECT_EQ(tier.moved().bytes, 0u);
  EXPECT_EQ(pages_->free(), 4u);
}

TEST_F(DramMemoryTest, SketchesStayInOrdinaryMemory) {
  DramTier tier = make();
  const ValueName sketch{1, Part::kSketch, 0, 0};
  const auto given = value(sketch);
  EXPECT_EQ(tier.keep(sketch, given), given);
  EXPECT_EQ(tier.moved().values + tier.moved().unmoved, 0u);
  EXPECT_EQ(pages_->free(), 4u);
}

TEST_F(DramMemoryTest, EvictedValuesMakeRoomThereForLaterOnes) {
  DramTier tier = make(4 * 1024);
  for (std::uint32_t i = 0; i < 50; ++i) {
    const auto kept = tier.keep(name(1, i % 8), value(name(1, i % 8)));
    ASSERT_NE(kept, nullptr);
    EXPECT_TRUE(pages_->has(*kept)) << i;
    EXPECT_TRUE(is_value(*kept, name(1, i % 8)));
    EXPECT_LE(tier.stats().used_bytes, 4u * 1024);
  }
  EXPECT_EQ(tier.moved().values, 4u);
  EXPECT_EQ(tier.moved().unmoved, 0u);
  EXPECT_GT(tier.stats().evictions, 40u);
}

TEST_F(DramMemoryTest, AReaderKeepsItsValueAndTheMemory) {
  std::shared_ptr<const ValueBuffer> held;
  const std::weak_ptr<Pages> alive = pages_;
  {
    DramTier tier = make();
    tier.insert(name(1, 0), value(name(1, 0)));
    held = tier.find(name(1, 0));
    tier.erase_segment(1);
    EXPECT_EQ(pages_->free(), 3u);
    for (std::uint32_t i = 0; i < 9; ++i) tier.insert(name(2, i), value(name(2, i)));
  }
  pages_.reset();
  EXPECT_TRUE(is_value(*held, name(1, 0)));
  EXPECT_FALSE(alive.expired());
  held.reset();
  EXPECT_TRUE(alive.expired());
}

/// Memory may be slow to give room, as it may have to be pinned; nobody waits for that.
TEST_F(DramMemoryTest, OthersReadAndEraseWhileAValueIsMoved) {
  DramTier tier = make();
  bool present = false;
  pages_->at_take = [&] {
    const auto found = tier.find(name(1, 0));
    present = found != nullptr && is_value(*found, name(1, 0));
    tier.erase_segment(1);
  };
  const auto kept = tier.keep(name(1, 0), value(name(1, 0)));
  EXPECT_TRUE(present) << "it is there before it is moved";
  ASSERT_NE(kept, nullptr);
  EXPECT_TRUE(is_value(*kept, name(1, 0)));
  EXPECT_FALSE(tier.contains(name(1, 0))) << "a move does not bring back what was erased";
  EXPECT_EQ(tier.stats().used_bytes, 0u);
  EXPECT_EQ(tier.moved().values, 0u);
  pages_->at_take = {};
}

TEST_F(DramMemoryTest, ThreadsKeepFindAndErase) {
  DramTier tier = make(3 * 1024);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < 2000; ++i) {
        const ValueName n = name(1 + (i + t) % 2, (i * 7 + t) % 6);
        const auto kept = tier.keep(n, value(n));
        if (kept && !is_value(*kept, n)) ++wrong;
        if (const auto found = tier.find(n); found && !is_value(*found, n)) ++wrong;
        if (i % 50 == 0) tier.erase_segment(n.segment);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  tier.erase_segment(1);
  tier.erase_segment(2);
  EXPECT_EQ(tier.stats().used_bytes, 0u);
  EXPECT_EQ(tier.moved().values, 0u);
  EXPECT_EQ(pages_->free(), 4u);
}

/// The first reader of a value from disk gets it where the next one finds it.
TEST_F(DramMemoryTest, AStoreReadsFromDiskIntoIt) {
  pages_ = std::make_shared<Pages>(100);
  StoreOptions options;
  options.value_memory = pages_;
  const auto disk = std::make_shared<test::MemoryDisk>();
  const auto open = [&] {
    auto opened = open_store_on(options, std::make_unique<test::MemoryTier>(disk));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    return std::move(*opened);
  };
  auto store = open();
  EXPECT_TRUE(store->stats().dram_moves);
  ASSERT_OK(test::put_document(*store, "a", {1}));
  const StoreStats written = store->stats();
  EXPECT_GT(written.dram_moved_values, 0u) << "what is written is there, too";
  EXPECT_EQ(written.dram_unmoved_values, 0u);
  store.reset();
  EXPECT_EQ(pages_->free(), 100u);
  store = open();
  auto segment = store->find_segment(test::key_of(1));
  ASSERT_TRUE(segment);
  for (const Tier expected : {Tier::kDisk, Tier::kDram}) {
    Tier tier = Tier::kNone;
    const auto read = store->read_value(*segment, 0, 0, &tier);
    ASSERT_OK(read);
    EXPECT_EQ(tier, expected);
    EXPECT_EQ(pages_->free(), 99u);
  }
  EXPECT_OK(test::check_segment(*store, *segment, 1));
  EXPECT_EQ(store->stats().dram_moved_values, written.dram_moved_values);
  EXPECT_EQ(store->stats().dram.used_bytes, written.dram.used_bytes);
  segment.reset();
  store.reset();
  EXPECT_EQ(pages_->free(), 100u);
  options.value_memory = nullptr;
  EXPECT_FALSE(open()->stats().dram_moves);
}

}  // namespace
}  // namespace quire
