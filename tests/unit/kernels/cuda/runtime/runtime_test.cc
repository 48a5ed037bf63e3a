// Tests the choice of a device, the memory of a loss, handles and graphs.
#include <gtest/gtest.h>

#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/guarded_driver.h"
#include "kernels/cuda/runtime/lanes.h"
#include "kernels/cuda/runtime/properties.h"
#include "tests/unit/kernels/cuda/runtime/fake_driver.h"

namespace quire::cuda {
namespace {

DeviceProperties hopper(std::int32_t index) {
  return {.index = index,
          .name = "NVIDIA H200",
          .major = 9,
          .minor = 0,
          .multiprocessors = 132,
          .threads_per_multiprocessor = 2048,
          .shared_bytes_per_block = 227 * 1024,
          .shared_bytes_per_multiprocessor = 228 * 1024,
          .l2_bytes = 50 << 20,
          .total_bytes = std::int64_t{140} << 30};
}

TEST(ChooseDevice, SaysWhatIsMissingAndWhatToDo) {
  const auto refusal = [](const DeviceReport& report, std::int64_t index) {
    const auto chosen = choose_device(report, index);
    EXPECT_FALSE(chosen.ok());
    return chosen.status();
  };
  const Status no_driver = refusal(
      {0, 13000, "CUDA driver version is insufficient for CUDA runtime version", {}}, 0);
  EXPECT_EQ(no_driver.code(), Code::kUnavailable);
  EXPECT_NE(no_driver.message().find("no NVIDIA driver is installed, or it cannot be reached from "
                                     "here: install one that runs CUDA 13.0"),
            std::string::npos)
      << no_driver.message();
  const Status old_driver = refusal(
      {12020, 13000, "CUDA driver version is insufficient for CUDA runtime version", {}}, 0);
  EXPECT_EQ(old_driver.code(), Code::kUnavailable);
  EXPECT_NE(
      old_driver.message().find("runs CUDA 12.2 at most, this build needs 13.0: update the driver"),
      std::string::npos)
      << old_driver.message();
  const Status no_device = refusal({13000, 13000, "no CUDA-capable device is detected", {}}, 0);
  EXPECT_EQ(no_device.code(), Code::kUnavailable);
  EXPECT_NE(no_device.message().find("no GPU it can use"), std::string::npos)
      << no_device.message();
  const Status wrong_index = refusal({13000, 13000, "", {hopper(0), hopper(1)}}, 2);
  EXPECT_EQ(wrong_index.code(), Code::kInvalidArgument);
  EXPECT_EQ(wrong_index.field(), "model.device");
  EXPECT_NE(
      wrong_index.message().find("no GPU number 2; there are: 0 = NVIDIA H200, 1 = NVIDIA H200"),
      std::string::npos)
      << wrong_index.message();
  DeviceProperties old = hopper(0);
  old.major = 7;
  old.minor = 5;
  const Status too_old = refusal({13000, 13000, "", {old}}, 0);
  EXPECT_EQ(too_old.code(), Code::kUnavailable);
  EXPECT_NE(too_old.message().find("compute capability 7.5, 140.0 GiB) is too old"),
            std::string::npos)
      << too_old.message();
}

TEST(ChooseDevice, TakesTheOneAskedForAlsoWithANewerDriverOfTheSameMajorVersion) {
  EXPECT_EQ(choose_device({13010, 13000, "", {hopper(0), hopper(1)}}, 1)->index, 1);
  EXPECT_EQ(choose_device({13000, 13010, "", {hopper(0)}}, 0)->index, 0)
      << "minor versions are compatible: devices were listed";
}

TEST(LaunchShapes, ResidentBlocksFollowThreadsAndSharedMemory) {
  const DeviceProperties d = hopper(0);
  EXPECT_EQ(resident_blocks(d, 256, 0), 8);
  EXPECT_EQ(resident_blocks(d, 128, 70 * 1024), 3);
  EXPECT_EQ(resident_blocks(d, 128, 227 * 1024), 1);
  EXPECT_EQ(resident_blocks(d, 128, 228 * 1024), 0);
  EXPECT_EQ(resident_blocks(d, 0, 0), 0);
}

TEST(LaunchShapes, WorkIsCutUntilTheDeviceIsBusyTwice) {
  const DeviceProperties d = hopper(0);
  EXPECT_EQ(split_parts(d, 8, 2 * 132 * 8, 4096, 256, 64), 1);
  EXPECT_EQ(split_parts(d, 8, 264, 4096, 256, 64), 8);
  EXPECT_EQ(split_parts(d, 8, 1, 4096, 256, 64), 16) << "a part keeps its least length";
  EXPECT_EQ(split_parts(d, 8, 1, 1 << 20, 256, 64), 64) << "the most there may be";
  EXPECT_EQ(split_parts(d, 0, 0, 0, 0, 64), 1);
}

TEST(GuardedDriver, TheFirstLossIsTheAnswerToEverythingAfterIt) {
  FakeDriver inner(1 << 20);
  GuardedDriver driver(inner);
  auto event = create_event(driver);
  ASSERT_TRUE(event.ok());
  inner.fail("record", 1, Status::internal("a launch was refused"));
  EXPECT_EQ(driver.record(event->get(), {}).code(), Code::kInternal);
  EXPECT_FALSE(driver.lost());
  EXPECT_TRUE(driver.record(event->get(), {}).ok());
  inner.fail("wait_for_stream", 1, Status(Code::kDeviceLost, "an illegal memory access"));
  EXPECT_EQ(driver.wait_for(StreamHandle{}).code(), Code::kDeviceLost);
  EXPECT_TRUE(driver.lost());
  EXPECT_EQ(driver.loss().message(), "an illegal memory access");
  const std::size_t calls = inner.calls().size();
  EXPECT_EQ(driver.memory().status().message(), "an illegal memory access");
  EXPECT_EQ(driver.allocate(MemoryKind::kDevice, 1).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.create_stream(StreamPriority::kLow).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.begin_capture({}).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.end_capture({}).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.launch({}, {}).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.hold({}, {}).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.passed({}).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.wait_for(EventHandle{}).code(), Code::kDeviceLost);
  EXPECT_EQ(driver.copy(nullptr, nullptr, 0, {}).code(), Code::kDeviceLost);
  EXPECT_TRUE(driver.release(MemoryKind::kDevice, nullptr).ok());
  *event = Event();
  EXPECT_EQ(inner.calls().size(), calls) << "the device is left alone";
  inner.forget_everything();
}

TEST(Handles, DestroyOnceAndNotAfterAMove) {
  FakeDriver driver(1 << 20);
  {
    auto a = create_event(driver), b = create_event(driver);
    ASSERT_TRUE(a.ok() && b.ok());
    Event c = std::move(*a);
    EXPECT_FALSE(*a);
    c = std::move(*b);
    EXPECT_EQ(driver.num_handles(), 1);
  }
  EXPECT_EQ(driver.num_handles(), 0);
  driver.fail("create_stream", 1, Status::exhausted("no more"));
  EXPECT_EQ(create_stream(driver).code(), Code::kResourceExhausted);
}

TEST(LaneStreams, DownloadsComeFirstAndBulkCopiesLast) {
  FakeDriver driver(1 << 20);
  const auto lanes = LaneStreams::create(driver);
  ASSERT_TRUE(lanes.ok());
  EXPECT_EQ(driver.priority(lanes->of(Lane::kCompute)), StreamPriority::kNormal);
  EXPECT_EQ(driver.priority(lanes->of(Lane::kCopies)), StreamPriority::kLow);
  EXPECT_EQ(driver.priority(lanes->of(Lane::kDownloads)), StreamPriority::kHigh);
  EXPECT_EQ(driver.num_handles(), 3) << "three streams, none of them twice";
}

TEST(LaneStreams, AllOfThemAreWaitedForAlsoAfterAnError) {
  FakeDriver driver(1 << 20);
  const auto lanes = LaneStreams::create(driver);
  const Event event = *create_event(driver);
  for (const int failing : {0, 1, 2}) {
    for (const Lane lane : {Lane::kCompute, Lane::kCopies, Lane::kDownloads})
      ASSERT_TRUE(driver.record(event.get(), lanes->of(lane)).ok());
    if (failing > 0)
      driver.fail("wait_for_stream", failing, Status::internal("of " + std::to_string(failing)));
    const Status status = lanes->wait(driver);
    EXPECT_EQ(status.code(), failing > 0 ? Code::kInternal : Code::kOk);
    for (const Lane lane : {Lane::kCompute, Lane::kCopies, Lane::kDownloads}) {
      if (static_cast<int>(lane) + 1 != failing) {
        EXPECT_TRUE(driver.finished(lanes->of(lane))) << static_cast<int>(lane);
      }
    }
  }
}

TEST(LaneStreams, OneThatCannotBeMadeLeavesNone) {
  for (const int nth : {1, 2, 3}) {
    FakeDriver driver(1 << 20);
    driver.fail("create_stream", nth, Status::exhausted("no more"));
    EXPECT_EQ(LaneStreams::create(driver).code(), Code::kResourceExhausted);
    EXPECT_EQ(driver.num_handles(), 0);
  }
}

struct GraphCacheTest : testing::Test {
  FakeDriver driver{1 << 20};
  int records = 0;
  GraphCache::Record record = [this](StreamHandle) {
    EXPECT_TRUE(driver.capturing());
    ++records;
    return Status();
  };
};

TEST_F(GraphCacheTest, RecordsOnceForABucketAndAgainWhenWhatIsFixedChanges) {
  GraphCache graphs(driver, 4);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(graphs.run(8, 1, {}, record).ok());
  EXPECT_EQ(records, 1);
  EXPECT_EQ(driver.launched().size(), 3u);
  ASSERT_TRUE(graphs.run(8, 2, {}, record).ok());
  EXPECT_EQ(records, 2);
  EXPECT_NE(driver.launched()[3], driver.launched()[2]);
  EXPECT_EQ(driver.num_handles(), 1) << "the old graph is gone";
  ASSERT_TRUE(graphs.run(4, 2, {}, record).ok());
  EXPECT_EQ(graphs.stats().captures, 3);
  EXPECT_EQ(graphs.stats().launches, 5);
  graphs.clear();
  EXPECT_EQ(driver.num_handles(), 0);
}

TEST_F(GraphCacheTest, KeepsTheMostRecentlyUsed) {
  GraphCache graphs(driver, 2);
  for (const std::int64_t bucket : {1, 2, 1, 4})
    ASSERT_TRUE(graphs.run(bucket, 1, {}, record).ok());
  EXPECT_EQ(graphs.stats().evictions, 1);
  ASSERT_TRUE(graphs.run(1, 1, {}, record).ok());
  EXPECT_EQ(records, 3) << "1 stayed, 2 went";
  ASSERT_TRUE(graphs.run(2, 1, {}, record).ok());
  EXPECT_EQ(records, 4);
}

TEST_F(GraphCacheTest, AFailureLeavesNoGraphAndNoCapture) {
  GraphCache graphs(driver, 2);
  const auto fails = [](StreamHandle) { return Status::invalid("rows", "injected"); };
  EXPECT_EQ(graphs.run(1, 1, {}, fails).field(), "rows");
  EXPECT_FALSE(driver.capturing());
  EXPECT_EQ(driver.num_handles(), 0);
  for (const char* call : {"begin_capture", "end_capture", "launch"}) {
    driver.fail(call, 1, Status::internal("injected"));
    EXPECT_EQ(graphs.run(1, 1, {}, record).code(), Code::kInternal) << call;
    EXPECT_FALSE(driver.capturing()) << call;
    EXPECT_EQ(driver.num_handles(), 0) << call;
  }
  EXPECT_TRUE(graphs.run(1, 1, {}, record).ok());
  EXPECT_EQ(driver.launched().size(), 1u);
}

/// A graph that cannot be launched is not tried again, although the next step is the same.
TEST_F(GraphCacheTest, AGraphThatIsNotLaunchedIsCapturedAnew) {
  GraphCache graphs(driver, 2);
  ASSERT_TRUE(graphs.run(1, 1, {}, record).ok());
  driver.fail("launch", 1, Status::internal("injected"));
  EXPECT_EQ(graphs.run(1, 1, {}, record).code(), Code::kInternal);
  ASSERT_TRUE(graphs.run(1, 1, {}, record).ok());
  EXPECT_EQ(records, 2);
}

}  // namespace
}  // namespace quire::cuda
