#include "engine/stages/query_task.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "engine/api/speed_meter.h"

namespace quire {
namespace {

/// Counts its ends, and may throw at them.
class EndSink final : public QuerySink {
 public:
  void on_plan(const Plan&) override {}
  bool on_token(std::int32_t, std::string_view) override { return true; }
  void on_done(const Status& status, const Plan&, const QueryStats&, FinishReason) override {
    ++ends;
    last = status;
    if (throws) throw std::runtime_error("the sink has no room");
  }
  int ends = 0;
  Status last;
  bool throws = false;
};

class QueryTaskTest : public ::testing::Test {
 protected:
  QueryTaskTest() {
    core_.meter = &meter_;
    task_.count_in(running_);
  }
  SpeedMeter meter_;
  QueryResources core_;
  std::atomic<std::int64_t> running_{0};
  const std::shared_ptr<EndSink> sink_ = std::make_shared<EndSink>();
  QueryTask task_{core_, QueryRequest(), sink_, std::make_shared<std::atomic<bool>>(false),
                  Clock::now()};
};

TEST_F(QueryTaskTest, TheSinkIsToldOfTheEndOnceThoughAStepBeforeItThrows) {
  int hooks = 0;
  task_.before_end([&] {
    ++hooks;
    throw std::bad_alloc();
  });
  task_.finish(Status::cancelled("nobody wants it"), FinishReason::kCancelled);
  EXPECT_EQ(sink_->ends, 1);
  EXPECT_EQ(sink_->last.code(), Code::kCancelled);
  EXPECT_EQ(task_.state(), QueryTask::State::kDone);
  EXPECT_EQ(running_.load(), 0);
  task_.finish(Status::internal("a second end"), FinishReason::kError);
  EXPECT_EQ(hooks, 1);
  EXPECT_EQ(sink_->ends, 1);
}

TEST_F(QueryTaskTest, ASinkThatThrowsIsNotToldTwice) {
  sink_->throws = true;
  task_.finish({}, FinishReason::kStop);
  task_.finish(Status::internal("a second end"), FinishReason::kError);
  EXPECT_EQ(sink_->ends, 1);
  EXPECT_TRUE(sink_->last.ok());
  EXPECT_EQ(running_.load(), 0);
}

}  // namespace
}  // namespace quire
