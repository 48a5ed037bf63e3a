/// Whole queries on several emulated devices that multiply together have the bits of one device,
/// and read what one device stored.
#include <gtest/gtest.h>

#include <vector>

#include "engine/device/team/team_compute.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/simt/emulated_team.h"

namespace quire::testing {
namespace {

/// Keeps the logits of every token.
class LogitsSink final : public CollectingSink {
 public:
  bool wants_logits() const override { return true; }
  void on_logits(std::span<const float> logits) override {
    all.insert(all.end(), logits.begin(), logits.end());
  }
  std::vector<float> all;
};

class DeviceTeamQueryTest : public DeviceSideTest {
 protected:
  struct Team {
    simt::EmulatedTeam devices;
    std::unique_ptr<DeviceSide> side;
  };
  Team team(std::int64_t ranks, const std::string& name,
            std::initializer_list<std::size_t> lengths = {75, 70}) {
    Team out{simt::make_emulated_team(ranks), nullptr};
    out.side = side(model_.path(), name, make_team_compute(out.devices.team), lengths);
    return out;
  }
  struct Answer {
    Outcome outcome;
    std::vector<float> logits;
  };
  static Answer answer(DeviceSide& s, const std::string& strategy, std::int32_t tokens = 5) {
    const auto sink = std::make_shared<LogitsSink>();
    EXPECT_TRUE(s.engine->query(request(s, strategy, tokens), sink).ok());
    const Outcome& outcome = sink->wait();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    return {outcome, sink->all};
  }
  static void expect_same(const Answer& got, const Answer& expected) {
    EXPECT_EQ(got.outcome.ids, expected.outcome.ids);
    ASSERT_EQ(got.logits.size(), expected.logits.size());
    ASSERT_FALSE(got.logits.empty());
#ifdef QUIRE_ON_HARDWARE
    // cuBLASLt may sum in another order for another number of outputs.
    for (std::size_t i = 0; i < got.logits.size(); ++i)
      ASSERT_NEAR(got.logits[i], expected.logits[i], 1e-3);
#else
    EXPECT_EQ(got.logits, expected.logits);
#endif
  }
  const RandomModelFolder model_;
};

TEST_F(DeviceTeamQueryTest, AnswersOfEveryStrategyAreThoseOfOneDevice) {
  const Team one = team(1, "one"), two = team(2, "two"), three = team(3, "three");
  for (const char* strategy : {"recompute", "reuse", "epic", "cacheblend", "samkv"}) {
    SCOPED_TRACE(strategy);
    const Answer expected = answer(*one.side, strategy);
    expect_same(answer(*two.side, strategy), expected);
    expect_same(answer(*three.side, strategy), expected);
  }
  EXPECT_GT(one.devices.devices[0]->runs(cuda::OpCode::kStep), 0);
  EXPECT_EQ(two.devices.devices[0]->runs(cuda::OpCode::kStep), 0) << "no graphs over devices";
  EXPECT_GT(three.devices.devices[2]->runs(cuda::OpCode::kMatmul), 0);
  EXPECT_EQ(three.devices.devices[2]->runs(cuda::OpCode::kDecodeAttention), 0);
}

TEST_F(DeviceTeamQueryTest, SampledTokensAreThoseOfOneDevice) {
  const Team one = team(1, "one"), two = team(2, "two");
  const auto sampled = [](DeviceSide& s) {
    return ask(s, "reuse", 9, [](QueryRequest& r) {
      r.sampling.temperature = 0.9;
      r.sampling.seed = 5;
    });
  };
  EXPECT_EQ(sampled(*two.side).ids, sampled(*one.side).ids);
}

/// The number of GPUs may change without ingesting anything again.
TEST_F(DeviceTeamQueryTest, DocumentsThatOneDeviceStoredAreReadByTwoAndTheOtherWayRound) {
  for (const auto& [writers, readers] : {std::pair{1, 2}, std::pair{3, 1}}) {
    const std::string name = "store" + std::to_string(writers);
    Answer expected;
    std::vector<Doc> docs;
    std::string fingerprint;
    {
      const Team first = team(writers, name);
      expected = answer(*first.side, "reuse");
      docs = first.side->docs;
      fingerprint = first.side->engine->info().fingerprint;
    }
    const Team then = team(readers, name, {});
    EXPECT_EQ(then.side->engine->info().fingerprint, fingerprint);
    then.side->docs = docs;
    const Answer got = answer(*then.side, "reuse");
    expect_same(got, expected);
    EXPECT_GT(got.outcome.plan.fates.reused, 100) << "nothing is computed again";
    EXPECT_EQ(got.outcome.plan.fates.reused, expected.outcome.plan.fates.reused);
  }
}

TEST_F(DeviceTeamQueryTest, ALostDeviceFailsTheQueryAndMemoryThatRunsOutFailsOneAlone) {
  const Team three = team(3, "three");
  const Answer expected = answer(*three.side, "reuse");
  // The first allocations of a helper are buffers that have grown; a longer prompt grows them.
  QueryRequest longer = request(*three.side, "recompute", 3);
  std::mt19937 rng(23);
  longer.suffix_ids = random_ids(rng, 200);
  three.devices.devices[2]->fail_allocation(0);
  EXPECT_EQ(run_query(*three.side->engine, longer).status.code(), Code::kResourceExhausted);
  three.devices.devices[2]->fail_allocation(-1);
  EXPECT_TRUE(run_query(*three.side->engine, longer).status.ok());
  expect_same(answer(*three.side, "reuse"), expected);
  three.devices.devices[2]->lose();
  EXPECT_EQ(run_query(*three.side->engine, request(*three.side, "reuse", 3)).status.code(),
            Code::kDeviceLost);
}

}  // namespace
}  // namespace quire::testing
