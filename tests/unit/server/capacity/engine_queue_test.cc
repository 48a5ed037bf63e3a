#include "server/capacity/engine_queue.h"

#include <gtest/gtest.h>

#include <map>

namespace quire::capacity {
namespace {

/// Runs an engine until nothing is left; returns when each prompt was complete.
std::map<std::uint64_t, double> drain(EngineQueue& engine) {
  std::map<std::uint64_t, double> out;
  for (int i = 0; i < 1000 && engine.busy(); ++i) {
    const double at = engine.next_event();
    engine.advance(at);
    engine.collect([&](std::uint64_t id) { out[id] = at; });
  }
  EXPECT_FALSE(engine.busy());
  return out;
}

Rates rates(double decode_ms) {
  Rates r;
  r.decode = {{1, decode_ms}};
  return r;
}

TEST(EngineQueue, PromptsShareTheTimeEvenly) {
  const Rates r = rates(10);
  EngineQueue engine(r, 16);
  engine.add(1, 1, 1);
  engine.add(2, 2, 1);
  const auto done = drain(engine);
  EXPECT_NEAR(done.at(1), 2, 1e-6);
  EXPECT_NEAR(done.at(2), 3, 1e-6);
  EXPECT_NEAR(engine.busy_seconds(), 3, 1e-6);
}

TEST(EngineQueue, OneAtATimeIsFirstComeFirstServed) {
  const Rates r = rates(10);
  EngineQueue engine(r, 1);
  engine.add(1, 2, 1);
  engine.add(2, 1, 1);
  EXPECT_EQ(engine.waiting(), 1u);
  const auto done = drain(engine);
  EXPECT_NEAR(done.at(1), 2, 1e-6);
  EXPECT_NEAR(done.at(2), 3, 1e-6);
}

TEST(EngineQueue, AStepBesideAChunkAddsWhatWasMeasured) {
  Rates r = rates(40);  // chunks of 30 ms, and 10 for the step beside each
  r.step_beside = 0.25;
  EngineQueue engine(r, 16);
  engine.add(1, 0.1, 101);
  engine.advance(engine.next_event());
  engine.collect([](std::uint64_t) {});
  engine.add(2, 0.3, 1);
  EXPECT_NEAR(engine.next_event(), 0.1 + 0.3 / 30 * 40, 1e-6);
  engine.advance(engine.next_event());
  engine.collect([](std::uint64_t id) { EXPECT_EQ(id, 2u); });
  // Ten of 100 steps are made, and the others are alone.
  EXPECT_NEAR(engine.next_event(), 0.1 + 0.4 + 90 * 0.04, 1e-6);
}

TEST(EngineQueue, DecodingAndPromptsTakeTurns) {
  const Rates r = rates(40);  // steps of 40 ms, and chunks of 30 between them
  EngineQueue engine(r, 16);
  engine.add(1, 0.1, 101);
  engine.advance(engine.next_event());
  engine.collect([](std::uint64_t) {});
  const double begun = 0.1;
  engine.add(2, 0.3, 1);
  EXPECT_NEAR(engine.next_event(), begun + 0.3 / 30 * 70, 1e-6);
  engine.advance(engine.next_event());
  engine.collect([](std::uint64_t id) { EXPECT_EQ(id, 2u); });
  // Ten of the hundred further tokens came meanwhile.
  EXPECT_NEAR(engine.next_event(), begun + 0.7 + 90 * 0.040, 1e-3);
}

TEST(EngineQueue, AnswersTakeAPlaceUntilTheyAreComplete) {
  const Rates r = rates(100);
  EngineQueue engine(r, 1);
  engine.add(1, 1, 11);
  engine.add(2, 1, 1);
  const auto done = drain(engine);
  EXPECT_NEAR(done.at(1), 1, 1e-6);
  EXPECT_NEAR(done.at(2), 3, 1e-3);
}

TEST(EngineQueue, SpeedCountsFromWhenItIsSet) {
  const Rates r = rates(10);
  EngineQueue engine(r, 16);
  engine.add(1, 1, 1);
  engine.advance(0.5);
  engine.set_speed(0.25);
  EXPECT_NEAR(engine.next_event(), 2.5, 1e-9);
}

TEST(EngineQueue, AnIdleEngineHasNoEvent) {
  const Rates r = rates(10);
  EXPECT_EQ(EngineQueue(r, 16).next_event(), EngineQueue::kNever);
}

}  // namespace
}  // namespace quire::capacity
