#include "kernels/cuda/runtime/layer_feed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <set>

#include "tests/unit/kernels/cuda/runtime/fake_driver.h"

namespace quire::cuda {
namespace {

/// Streams whose work waits for run(), which takes it from the streams in any order that events
/// allow.
class QueuedDriver final : public FakeDriver {
 public:
  using FakeDriver::FakeDriver;
  Status copy(void* to, const void* from, std::int64_t bytes, StreamHandle stream) override {
    if (const Status s = enter("copy"); !s.ok()) return s;
    queues_[stream.stream].push_back({to, from, bytes, 0, 0});
    return {};
  }
  Status record(EventHandle event, StreamHandle stream) override {
    if (const Status s = FakeDriver::record(event, stream); !s.ok()) return s;
    last_record_[event.event] = ++tickets_;
    queues_[stream.stream].push_back({nullptr, nullptr, 0, tickets_, 0});
    return {};
  }
  Status hold(StreamHandle stream, EventHandle event) override {
    if (const Status s = FakeDriver::hold(stream, event); !s.ok()) return s;
    if (heeds_holds)
      queues_[stream.stream].push_back({nullptr, nullptr, 0, 0, last_record_[event.event]});
    return {};
  }

  /// Runs everything; `seed` decides which stream goes on. Returns false when streams wait for each
  /// other.
  bool run(std::uint32_t seed) {
    std::mt19937 rng(seed);
    for (;;) {
      std::vector<std::deque<Work>*> ready;
      bool any = false;
      for (auto& [stream, queue] : queues_) {
        any = any || !queue.empty();
        if (!queue.empty() &&
            (queue.front().waits_for == 0 || passed_.contains(queue.front().waits_for)))
          ready.push_back(&queue);
      }
      if (ready.empty()) return !any;
      auto& queue = *ready[rng() % ready.size()];
      const Work work = queue.front();
      queue.pop_front();
      if (work.bytes > 0) std::memcpy(work.to, work.from, static_cast<std::size_t>(work.bytes));
      if (work.ticket != 0) passed_.insert(work.ticket);
    }
  }
  bool heeds_holds = true;

 private:
  struct Work {
    void* to;
    const void* from;
    std::int64_t bytes;
    std::int64_t ticket, waits_for;
  };
  std::map<void*, std::deque<Work>> queues_;
  std::map<void*, std::int64_t> last_record_;
  std::set<std::int64_t> passed_;
  std::int64_t tickets_ = 0;
};

constexpr std::int64_t kBytes = 64;
constexpr int kLayers = 7;

/// Runs kLayers layers of a "model" that copies its layer's bytes to the host. Returns true when
/// every layer saw its own bytes.
bool layers_see_their_bytes(std::uint32_t seed, bool heeds_holds) {
  QueuedDriver driver(1 << 20);
  driver.heeds_holds = heeds_holds;
  const Stream compute = *create_stream(driver);
  MemoryPool pool(driver, MemoryKind::kDevice, 1 << 16);
  auto feed = LayerFeed::create(driver, pool, compute.get(), kBytes);
  EXPECT_TRUE(feed.ok());
  std::vector<std::vector<std::byte>> stored, seen(kLayers, std::vector<std::byte>(kBytes));
  for (int l = 0; l < kLayers; ++l) stored.emplace_back(kBytes, static_cast<std::byte>(l + 1));
  const auto bring = [&](int l) {
    const LayerFeed::Piece pieces[] = {{stored[static_cast<std::size_t>(l)].data() + 40, 40, 24},
                                       {nullptr, 64, 0},
                                       {stored[static_cast<std::size_t>(l)].data(), 0, 40}};
    EXPECT_TRUE(feed->bring(pieces).ok());
  };
  bring(0);
  for (int l = 0; l < kLayers; ++l) {
    if (l + 1 < kLayers) bring(l + 1);
    const auto at = feed->take();
    EXPECT_TRUE(at.ok());
    EXPECT_TRUE(
        driver.copy(seen[static_cast<std::size_t>(l)].data(), *at, kBytes, compute.get()).ok());
    EXPECT_TRUE(feed->release().ok());
  }
  EXPECT_TRUE(driver.run(seed)) << "streams wait for each other";
  return seen == stored;
}

TEST(LayerFeed, EveryLayerSeesItsBytesHoweverStreamsRun) {
  int wrong_without_holds = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    EXPECT_TRUE(layers_see_their_bytes(seed, true)) << seed;
    wrong_without_holds += !layers_see_their_bytes(seed, false);
  }
  EXPECT_GT(wrong_without_holds, 150)
      << "without holding streams the order would not matter to this test";
}

TEST(LayerFeed, WhatIsStillUnderWayDoesNotReachTheNextUserOfItsMemory) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    QueuedDriver driver(1 << 20);
    const Stream compute = *create_stream(driver);
    MemoryPool pool(driver, MemoryKind::kDevice, 1 << 16);
    const std::vector<std::byte> first(kBytes, std::byte{1}), next(kBytes, std::byte{2});
    std::vector<std::byte> seen(kBytes);
    {
      auto feed = LayerFeed::create(driver, pool, compute.get(), kBytes);
      ASSERT_TRUE(feed.ok());
      const LayerFeed::Piece piece{first.data(), 0, kBytes};
      ASSERT_TRUE(feed->bring({&piece, 1}).ok());
      ASSERT_TRUE(feed->bring({&piece, 1}).ok());
    }
    const auto a = pool.allocate(kBytes, compute.get());
    ASSERT_TRUE(a.ok());
    EXPECT_EQ(pool.stats().reuses, 1);
    ASSERT_TRUE(driver.copy(a->data(), next.data(), kBytes, compute.get()).ok());
    ASSERT_TRUE(driver.copy(seen.data(), a->data(), kBytes, compute.get()).ok());
    ASSERT_TRUE(driver.run(seed));
    EXPECT_EQ(seen, next) << seed;
  }
}

TEST(LayerFeed, TakesLayersInTurnAndRefusesTheRest) {
  FakeDriver driver(1 << 20);
  const Stream compute = *create_stream(driver);
  MemoryPool pool(driver, MemoryKind::kDevice, 1 << 16);
  auto feed = LayerFeed::create(driver, pool, compute.get(), kBytes);
  ASSERT_TRUE(feed.ok());
  const std::vector<std::byte> bytes(kBytes);
  EXPECT_EQ(feed->take().code(), Code::kFailedPrecondition);
  EXPECT_EQ(feed->release().code(), Code::kFailedPrecondition);
  for (const LayerFeed::Piece& piece :
       {LayerFeed::Piece{bytes.data(), 1, kBytes}, {bytes.data(), -1, 1}, {bytes.data(), 0, -1}})
    EXPECT_EQ(feed->bring({&piece, 1}).field(), "pieces");
  ASSERT_TRUE(feed->bring({}).ok());
  ASSERT_TRUE(feed->bring({}).ok());
  EXPECT_EQ(feed->bring({}).code(), Code::kFailedPrecondition);
  const auto first = feed->take();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(feed->take().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(feed->release().ok());
  const auto second = feed->take();
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
  ASSERT_TRUE(feed->bring({}).ok());
  ASSERT_TRUE(feed->release().ok());
  EXPECT_EQ(*feed->take(), *first);
  EXPECT_EQ(LayerFeed::create(driver, pool, compute.get(), 0).status().field(), "layer_bytes");
}

TEST(LayerFeed, AFailedCallIsReportedAndLeavesNothingBehind) {
  for (const char* call : {"create_stream", "create_event", "allocate", "record", "hold", "copy"}) {
    for (int nth = 1; nth <= 2; ++nth) {
      FakeDriver driver(1 << 20);
      {
        const Stream compute = *create_stream(driver);
        MemoryPool pool(driver, MemoryKind::kDevice, 1 << 16);
        driver.fail(call, nth, Status::internal("injected"));
        const std::vector<std::byte> bytes(kBytes);
        const LayerFeed::Piece piece{bytes.data(), 0, kBytes};
        const auto use = [&]() -> Status {
          QUIRE_ASSIGN_OR_RETURN(auto feed, LayerFeed::create(driver, pool, compute.get(), kBytes));
          QUIRE_RETURN_IF_ERROR(feed.bring({&piece, 1}));
          QUIRE_RETURN_IF_ERROR(feed.bring({&piece, 1}));
          QUIRE_RETURN_IF_ERROR(feed.take().status());
          return feed.release();
        };
        // A feed creates only one stream.
        const bool once = std::string(call) == "create_stream" && nth == 2;
        EXPECT_EQ(use().code(), once ? Code::kOk : Code::kInternal) << call << nth;
        EXPECT_EQ(pool.stats().in_use_bytes, 0) << call << nth;
      }
      EXPECT_EQ(driver.num_handles(), 0) << call << nth;
      EXPECT_EQ(driver.given_bytes(MemoryKind::kDevice), 0) << call << nth;
    }
  }
}

}  // namespace
}  // namespace quire::cuda
