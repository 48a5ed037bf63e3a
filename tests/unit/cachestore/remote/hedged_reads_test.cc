// Reads from several sources: their order, a second source while one is silent, and one result.
#include "cachestore/remote/hedged_reads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "tests/support/soon.h"
#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using Found = HedgedReads::Found;

Clock::time_point later(int ms = 60'000) { return Clock::now() + std::chrono::milliseconds(ms); }

/// Returns a segment that tells by which source it was found.
Found found_by(std::size_t source) {
  RecalledSegment out;
  out.record.fingerprint = "source " + std::to_string(source);
  return out;
}

/// A gate at which a source waits.
class Gate {
 public:
  void open() { opened_.set_value(); }
  void wait() const { wait_.wait(); }

 private:
  std::promise<void> opened_;
  std::shared_future<void> wait_ = opened_.get_future().share();
};

/// Starts a read and returns its result, which is told once.
std::future<Found> start(HedgedReads& reads, HedgedReads::Ask ask,
                         Clock::time_point deadline = later()) {
  auto result = std::make_shared<std::promise<Found>>();
  auto out = result->get_future();
  const Status s = reads.start(deadline, std::move(ask),
                               [result](Found found) { result->set_value(std::move(found)); });
  if (!s.ok()) result->set_value(s);
  return out;
}

TEST(AnswerTimes, TheSlowestTwentiethCountsThreeTimes) {
  AnswerTimes times;
  for (int i = 0; i < 15; ++i) times.add(1000);
  EXPECT_EQ(times.patience_ms(), AnswerTimes::kUnknownMs) << "too few are known";
  for (int i = 0; i < 128; ++i) times.add(i < 118 ? 10 : 40);
  EXPECT_EQ(times.patience_ms(), 120);
  for (int i = 0; i < 128; ++i) times.add(0.1);
  EXPECT_EQ(times.patience_ms(), AnswerTimes::kLeastMs) << "old answers are forgotten";
  times.add(5000);
  EXPECT_EQ(times.patience_ms(), AnswerTimes::kLeastMs) << "one slow answer is none of the most";
}

TEST(HedgedReads, SourcesAreAskedInTheirOrderUntilOneHasIt) {
  HedgedReads reads({false, false, false});
  std::vector<std::size_t> asked;
  const auto found = start(reads, [&](std::size_t source, const auto&) -> std::optional<Found> {
                       asked.push_back(source);
                       if (source == 0) return Status::not_found("0");
                       return found_by(source);
                     }).get();
  ASSERT_OK(found);
  EXPECT_EQ(found->record.fingerprint, "source 1");
  EXPECT_EQ(asked, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(reads.counts().hedged, 0u);
}

TEST(HedgedReads, TheLastErrorIsTheResultWhereNoneHasIt) {
  HedgedReads reads({false, true, false, true});
  EXPECT_EQ(start(reads,
                  [&](std::size_t source, const auto&) -> std::optional<Found> {
                    return source < 2 ? Status::not_found("none") : Status::unavailable("away");
                  })
                .get()
                .code(),
            Code::kUnavailable);
  const auto skipped = start(
      reads, [&](std::size_t, const auto&) -> std::optional<Found> { return std::nullopt; });
  EXPECT_EQ(const_cast<std::future<Found>&>(skipped).get().code(), Code::kNotFound);
}

TEST(HedgedReads, ASecondWayIsAskedWhereTheFirstGaveNoAnswerOnly) {
  for (const bool answers : {true, false}) {
    HedgedReads reads({false, true, false});
    std::vector<std::size_t> asked;
    (void)start(reads, [&](std::size_t source, const auto&) -> std::optional<Found> {
      asked.push_back(source);
      if (source == 0) return answers ? Status::not_found("none") : Status::unavailable("away");
      return Status::not_found("none");
    }).get();
    EXPECT_EQ(asked,
              answers ? (std::vector<std::size_t>{0, 2}) : (std::vector<std::size_t>{0, 1, 2}));
  }
}

TEST(HedgedReads, WhileOneIsSilentTheNextIsAskedAndTheFirstAnswerCounts) {
  Gate gate;
  std::promise<bool> still_wanted;
  HedgedReads reads({false, true});
  auto found = start(reads, [&](std::size_t source, const auto& alive) -> std::optional<Found> {
    if (source == 0) {
      gate.wait();
      still_wanted.set_value(alive(true));
    }
    return found_by(source);
  });
  const auto first = found.get();
  ASSERT_OK(first);
  EXPECT_EQ(first->record.fingerprint, "source 1");
  EXPECT_EQ(reads.counts().hedged, 1u);
  EXPECT_EQ(reads.counts().won, 1u);
  gate.open();
  EXPECT_FALSE(still_wanted.get_future().get()) << "the read is over";
}

TEST(HedgedReads, ASourceThatShowsLifeIsLeftAlone) {
  // A machine that is busy for longer than the patience makes any source look silent.
  bool left_alone = false;
  for (int tries = 0; tries < 20 && !left_alone; ++tries) {
    HedgedReads reads({false, true});
    auto found = start(reads, [&](std::size_t source, const auto& alive) -> std::optional<Found> {
      // Longer than the patience in all, shorter each.
      for (int i = 0; i < 60; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        alive(i == 0);
      }
      return found_by(source);
    });
    ASSERT_OK(found.get());
    left_alone = reads.counts().hedged == 0;
  }
  EXPECT_TRUE(left_alone);
}

TEST(HedgedReads, WithoutHedgesTheSilentOneIsWaitedFor) {
  HedgedReads reads({false, true}, false);
  const auto found = start(reads, [&](std::size_t source, const auto&) -> std::optional<Found> {
                       std::this_thread::sleep_for(std::chrono::milliseconds(80));
                       return found_by(source);
                     }).get();
  ASSERT_OK(found);
  EXPECT_EQ(found->record.fingerprint, "source 0");
  EXPECT_EQ(reads.counts().hedged, 0u);
}

TEST(HedgedReads, ASilentSecondWayIsNotWaitedForOnceAllOthersHaveNone) {
  Gate second, first;  // the read of the second way goes on behind the answer
  HedgedReads reads({false, true, false});
  auto found = start(reads, [&](std::size_t source, const auto&) -> std::optional<Found> {
    if (source == 1) {
      first.open();
      second.wait();
    }
    if (source == 0) first.wait();
    return Status::not_found("none");
  });
  EXPECT_EQ(found.get().code(), Code::kNotFound);
  second.open();
}

TEST(HedgedReads, TheDeadlineEndsTheSearch) {
  HedgedReads reads({false, false});
  int asked = 0;
  const auto found = start(
                         reads,
                         [&](std::size_t, const auto&) -> std::optional<Found> {
                           ++asked;
                           std::this_thread::sleep_for(std::chrono::milliseconds(20));
                           return Status::unavailable("away");
                         },
                         later(5))
                         .get();
  EXPECT_EQ(found.code(), Code::kDeadlineExceeded);
  EXPECT_LE(asked, 1) << "none if the reader was late";
}

TEST(HedgedReads, FewReadsAskTwiceAtOnceAndTheOthersHaveTheirTurn) {
  Gate gate;
  std::atomic<int> second{0};
  HedgedReads reads({false, true});
  std::vector<std::future<Found>> found;
  for (int i = 0; i < 4; ++i)
    found.push_back(start(reads, [&](std::size_t source, const auto&) -> std::optional<Found> {
      if (source == 1) ++second;
      gate.wait();
      return found_by(source);
    }));
  EXPECT_TRUE(testing::soon([&] { return second == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(second, 2);
  gate.open();
  for (auto& each : found) EXPECT_OK(each.get());
}

TEST(HedgedReads, AfterAStopNoneIsTakenAndThoseThatWereHaveEnded) {
  HedgedReads reads({false, true});
  auto found = start(reads, [](std::size_t source, const auto&) -> std::optional<Found> {
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    return found_by(source);
  });
  reads.stop();
  EXPECT_EQ(found.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_OK(found.get());
  EXPECT_EQ(start(reads,
                  [](std::size_t source, const auto&) -> std::optional<Found> {
                    return found_by(source);
                  })
                .get()
                .code(),
            Code::kUnavailable);
}

TEST(HedgedReads, EveryReadHasOneResultWhateverItsSourcesDo) {
  HedgedReads reads({false, true, false, true});
  std::vector<std::thread> callers;
  std::atomic<int> ok{0}, results{0};
  constexpr int kCallers = 4, kReads = 100;
  for (unsigned caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&, caller] {
      for (unsigned i = 0; i < kReads; ++i) {
        const auto ask = [=](std::size_t source, const auto& alive) -> std::optional<Found> {
          std::mt19937 rng(caller * 1000 + i * 10 + static_cast<unsigned>(source));
          const auto kind = rng() % 6;
          if (rng() % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
          if (!alive(true)) return Status::exhausted("late");
          if (kind == 0) return std::nullopt;
          if (kind == 1) return Status::not_found("none");
          if (kind == 2) return Status::unavailable("away");
          return found_by(source);
        };
        ok += start(reads, ask).get().ok();
        ++results;
      }
    });
  for (auto& t : callers) t.join();
  EXPECT_EQ(results, kCallers * kReads);
  EXPECT_GT(ok, kCallers * kReads / 2);
  EXPECT_GE(reads.counts().hedged, reads.counts().won);
}

}  // namespace
}  // namespace quire
