/// Passes on a device place the layers that they run through. Stored KV that is late, lost or wrong
/// changes no answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "engine/plan/strategy.h"
#include "engine/record/kv_layout.h"
#include "tests/support/faulty_store.h"
#include "tests/support/harness/device_side.h"

namespace quire::testing {
namespace {

/// A device and a CPU with the same documents, whose values hold one layer each.
class DevicePlacingTest : public DeviceSideTest {
 protected:
  DevicePlacingTest() {
    wrap_store_ = [](std::unique_ptr<Store>& behind) {
      return std::make_unique<test::FaultyStore>(behind);
    };
    edit_options_ = [](EngineOptions& o) { o.layers_per_value = 1; };
    device_ = side(model_.path(), "device", make_device_compute(simt::make_emulated_ops()));
    cpu_ = side(model_.path(), "cpu", nullptr);
  }
  ~DevicePlacingTest() override { store().release(); }

  test::FaultyStore& store() { return dynamic_cast<test::FaultyStore&>(*device_->store); }
  /// Starts a query whose layers from the second on are held, and lets it run as far as it can.
  std::shared_ptr<CollectingSink> ask_held_back(const std::string& strategy) {
    store().hold_from(1);
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(device_->engine->query(request(*device_, strategy, 5), sink).ok());
    store().wait_for_others();
    QueryRequest other = make_request(*device_->engine, {}, device_->docs[0].ids, "recompute");
    other.sampling.max_tokens = 1;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_query(*device_->engine, other).status.ok());
    EXPECT_FALSE(sink->done());
    return sink;
  }
  /// Stores values under the key of `ids` that are not theirs.
  SegmentHandle store_wrong_kv(const ContextKey& key) {
    const KvLayout layout({kLayers, 2, 16, DType::kF32}, 40, 16, 1);
    auto writer = store().begin_segment(key, layout.segment(), 1 << 20, "t", "x");
    EXPECT_TRUE(writer.ok()) << writer.status().to_string();
    for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
      for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
        const std::vector<std::byte> same(static_cast<std::size_t>(layout.value_bytes(b, g)),
                                          std::byte{0x41});
        const auto block = static_cast<std::uint32_t>(b), group = static_cast<std::uint32_t>(g);
        EXPECT_TRUE((*writer)->put_value(block, group, same).ok());
      }
    }
    EXPECT_TRUE((*writer)->put_sketch(0, std::vector<std::byte>(100)).ok());
    auto segment = (*writer)->finish();
    EXPECT_TRUE(segment.ok()) << segment.status().to_string();
    return std::move(segment).value();
  }

  static constexpr std::int32_t kLayers = 3;
  const RandomModelFolder model_{7, 512, kLayers};
  std::unique_ptr<DeviceSide> device_, cpu_;
};

constexpr const char* kPlacing[] = {"reuse", "samkv", "epic", "cacheblend", "prophetkv"};

TEST_F(DevicePlacingTest, LayersThatAreLateGiveTheAnswerOfTheCpu) {
  for (const char* strategy : kPlacing) {
    SCOPED_TRACE(strategy);
    const auto sink = ask_held_back(strategy);
    store().release();
    const Outcome& got = sink->wait();
    ASSERT_TRUE(got.status.ok()) << got.status.to_string();
    EXPECT_EQ(got.ids, ask(*cpu_, strategy).ids);
    expect_fates_sum(got.plan);
  }
}

TEST_F(DevicePlacingTest, ALayerThatCannotBeReadIsAMissAndTheAnswerStays) {
  for (const char* strategy : kPlacing) {
    SCOPED_TRACE(strategy);
    std::atomic<bool> lost{false};
    std::atomic<int> failures{0};
    store().read_fault = [&](std::size_t) {
      return lost && failures++ == 1 ? Status::corruption("flipped bits") : Status();
    };
    const auto sink = ask_held_back(strategy);
    lost = true;
    store().release();
    const Outcome& got = sink->wait();
    ASSERT_TRUE(got.status.ok()) << got.status.to_string();
    EXPECT_TRUE(std::ranges::any_of(
        got.plan.contexts, [](const PlannedContext& c) { return c.miss == MissReason::kCorrupt; }));
    EXPECT_EQ(got.ids, ask(*cpu_, strategy).ids);
    store().read_fault = {};
  }
}

TEST_F(DevicePlacingTest, AQueryThatIsCancelledBetweenTwoLayersLeavesNothingBehind) {
  for (const char* strategy : {"reuse", "samkv", "epic"}) {
    SCOPED_TRACE(strategy);
    const auto sink = ask_held_back(strategy);
    EXPECT_TRUE(device_->engine->cancel("qry_test"));
    EXPECT_EQ(sink->wait().status.code(), Code::kCancelled);
    store().release();
    EXPECT_EQ(ask(*device_, strategy).ids, ask(*cpu_, strategy).ids);
  }
}

TEST_F(DevicePlacingTest, KvOfOtherTokensIsAMissThatThePassFindsAtItsEnd) {
  std::mt19937 rng(23);
  const auto ids = random_ids(rng, 40);
  const ContextKey key = device_->engine->names().context_key(ids, "t", {});
  for (const Strategy& known : strategies()) {
    if (known.selector != "all" || !known.takes_recompute_ratio) continue;
    const std::string strategy(known.name);
    SCOPED_TRACE(strategy);
    const SegmentHandle stored = store_wrong_kv(key);
    const auto with_odd = [&](QueryRequest& r) {
      r.contexts.insert(r.contexts.begin() + 1,
                        {.document_id = "odd", .title = "", .token_ids = ids, .key = key});
    };
    const Outcome odd = ask(*device_, strategy, 5, with_odd);
    ASSERT_EQ(odd.plan.contexts.size(), 3u);
    EXPECT_EQ(odd.plan.contexts[1].miss, MissReason::kCorrupt);
    EXPECT_EQ(odd.plan.contexts[0].miss, MissReason::kNone);
    EXPECT_EQ(odd.plan.contexts[2].miss, MissReason::kNone);
    const Outcome want = ask(*device_, strategy, 5, [&](QueryRequest& r) {
      with_odd(r);
      r.tenant = "other";
      for (auto& c : r.contexts) c.key.reset();
    });
    EXPECT_EQ(odd.ids, want.ids);
  }
}

}  // namespace
}  // namespace quire::testing
