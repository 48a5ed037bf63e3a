/// A device reads stored KV from a DRAM tier in pinned memory. Where a value lies, and how long it
/// stays there, changes no answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cachestore/store_admin.h"
#include "engine/device/pinned_values.h"
#include "engine/plan/strategy.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/simt/refusing_ops.h"

namespace quire::testing {
namespace {

/// A device whose store keeps values in its pinned memory.
struct PinnedSide {
  std::shared_ptr<simt::EmulatedOps> inner;
  std::shared_ptr<simt::RefusingOps> ops;
  std::shared_ptr<PinnedValues> values;
  std::unique_ptr<DeviceSide> side;

  void evict_from_dram() const {
    EvictRequest all;
    all.tier = Tier::kDram;
    all.force = true;
    const auto report = dynamic_cast<AdminStore&>(*side->store).evict(all);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
  }
  /// Overwrites all pinned memory that no value is in.
  void overwrite_free() const {
    std::vector<std::byte*> taken;
    while (std::byte* const page = values->take(PinnedValues::kPage)) {
      std::memset(page, 0xff, PinnedValues::kPage);
      taken.push_back(page);
    }
    for (std::byte* const page : taken) values->give(page);
  }
};

class DevicePinnedTest : public DeviceSideTest {
 protected:
  /// Enough for all values, and as much as nothing else allocates.
  static constexpr std::int64_t kEnough = (1 << 20) +
                                          static_cast<std::int64_t>(PinnedValues::kPage);
  PinnedSide pinned(const std::string& name, simt::Copies copies, std::int64_t most_bytes) {
    PinnedSide out;
    out.inner = simt::make_emulated_ops({.copies = copies});
    out.ops = std::make_shared<simt::RefusingOps>(out.inner);
    out.values = std::make_shared<PinnedValues>(out.ops, most_bytes, kEnough);
    value_memory_ = out.values;
    out.side = side(model_.path(), name, make_device_compute(out.ops, "cuda", out.values));
    value_memory_ = nullptr;
    return out;
  }
  std::unique_ptr<DeviceSide> cpu() { return side(model_.path(), "cpu", nullptr); }

  const RandomModelFolder model_{7, 512, 3};
};

constexpr const char* kPlacing[] = {"reuse", "samkv", "epic", "cacheblend", "prophetkv"};

TEST_F(DevicePinnedTest, AnswersAreThoseOfTheCpuWhereverValuesLie) {
  const auto expected = cpu();
  // Room for all values, for three of ten, and for none.
  for (const std::int64_t most : {kEnough, std::int64_t{13 << 12}, std::int64_t{0}}) {
    for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
      if (copies == simt::Copies::kEarly && most != kEnough) continue;
      SCOPED_TRACE(most);
      const PinnedSide device = pinned(
          std::to_string(most) + (copies == simt::Copies::kLate ? "late" : "early"), copies, most);
      const StoreStats stored = device.side->store->stats();
      EXPECT_EQ(stored.dram_moved_values + stored.dram_unmoved_values, 10u);
      EXPECT_EQ(stored.dram_moved_values, most == kEnough ? 10u : most == 0 ? 0u : 3u);
      for (const char* strategy : kPlacing) {
        SCOPED_TRACE(strategy);
        const std::int64_t gathered = device.inner->runs(cuda::OpCode::kGatherRows);
        EXPECT_EQ(ask(*device.side, strategy).ids, ask(*expected, strategy).ids);
        EXPECT_EQ(device.inner->runs(cuda::OpCode::kGatherRows) > gathered, most > 0);
      }
      EXPECT_EQ(device.side->store->stats().dram.used_bytes, stored.dram.used_bytes);
    }
  }
}

/// Each value is evicted as soon as the query has let go of it, while copies that read it are still
/// to run, and what is free is given to others.
TEST_F(DevicePinnedTest, ValuesMayBeEvictedWhileTheirCopiesAreUnderWay) {
  const auto expected = cpu();
  for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
    const PinnedSide device = pinned(copies == simt::Copies::kLate ? "late" : "early", copies,
                                     kEnough);
    for (const char* strategy : {"reuse", "samkv", "cacheblend"}) {
      SCOPED_TRACE(strategy);
      const auto read_all = [&] {
        for (const Doc& doc : device.side->docs) {
          const auto segment = device.side->store->find_segment(*doc.key);
          ASSERT_TRUE(segment);
          for (std::uint32_t b = 0; b < segment->info().layout.num_blocks; ++b)
            EXPECT_TRUE(device.side->store->read_value(*segment, b, 0).ok());
        }
      };
      for (const bool from_disk : {false, true}) {
        if (!from_disk) read_all();
        std::int64_t held = 0;
        bool placing = false;
        device.ops->at_operation = [&](cuda::OpCode code) {
          placing = placing || code == cuda::OpCode::kPlaceRows;
          if (!placing) return;
          device.evict_from_dram();
          device.overwrite_free();
          held = std::max(held, device.values->use().held_bytes);
        };
        const Outcome got = ask(*device.side, strategy);
        device.ops->at_operation = {};
        EXPECT_EQ(got.ids, ask(*expected, strategy).ids);
        EXPECT_EQ(got.stats.tier_bytes[at(Tier::kDisk)] > 0, from_disk);
        EXPECT_GT(held, 0);
      }
    }
  }
}

TEST_F(DevicePinnedTest, TheDeviceClosesWithItsStoreAndItsEngine) {
  PinnedSide device = pinned("device", simt::Copies::kLate, kEnough);
  EXPECT_FALSE(ask(*device.side, "reuse").ids.empty());
  const std::weak_ptr<PinnedValues> values = std::exchange(device.values, nullptr);
  const std::weak_ptr<cuda::DeviceOps> open = std::exchange(device.ops, nullptr);
  device.side->engine->stop(std::chrono::milliseconds(0));
  device.side->engine.reset();
  EXPECT_FALSE(values.expired()) << "the store still has values in its memory";
  device.side.reset();
  EXPECT_TRUE(values.expired());
  EXPECT_TRUE(open.expired());
}

/// A device that gives no more pinned memory costs speed alone.
TEST_F(DevicePinnedTest, WithoutPinnedMemoryTheTierGoesOnInOrdinaryMemory) {
  const auto expected = cpu();
  PinnedSide none;
  none.inner = simt::make_emulated_ops();
  none.ops = std::make_shared<simt::RefusingOps>(none.inner);
  none.values = std::make_shared<PinnedValues>(none.ops, kEnough, kEnough);
  none.ops->at_allocation = [](cuda::MemoryKind, std::int64_t bytes) {
    return bytes == kEnough ? Status::exhausted("no more may be locked") : Status();
  };
  value_memory_ = none.values;
  none.side = side(model_.path(), "none", make_device_compute(none.ops, "cuda", none.values));
  for (const char* strategy : kPlacing)
    EXPECT_EQ(ask(*none.side, strategy).ids, ask(*expected, strategy).ids);
  EXPECT_TRUE(none.values->use().failed);
  EXPECT_EQ(none.side->store->stats().dram_unmoved_values, 10u);
  EXPECT_EQ(none.side->store->stats().dram.num_values, expected->store->stats().dram.num_values);
}

}  // namespace
}  // namespace quire::testing
