#include "engine/device/device_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "engine/cache/working_cache.h"
#include "engine/device/fetch_stream.h"
#include "engine/device/stored_rows_feed.h"
#include "tests/support/simt/emulated_ops.h"
#include "tests/support/simt/refusing_ops.h"

namespace quire {
namespace {

/// Returns n values of device memory.
std::vector<std::int32_t> read(const std::shared_ptr<DeviceMemory>& memory, const std::int32_t* p,
                               std::int64_t n) {
  DeviceBuffer pinned(memory, cuda::MemoryKind::kPinned);
  EXPECT_TRUE(pinned.reserve(n * 4).ok());
  EXPECT_TRUE(memory->run(cuda::CopyArgs{pinned.data(), p, n * 4}).ok());
  EXPECT_TRUE(memory->synchronize().ok());
  const auto* values = reinterpret_cast<const std::int32_t*>(pinned.data());
  return {values, values + n};
}

TEST(ArgumentStageTest, WhatWasPutStaysUntilTheDeviceIsSettled) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  ArgumentStage stage(memory);
  std::vector<std::int32_t> values(300000);  // is more than a chunk
  std::vector<const std::int32_t*> at;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(stage.begin().ok());
    std::iota(values.begin(), values.end(), round);
    const auto put = stage.put(std::span<const std::int32_t>(values));
    ASSERT_TRUE(put.ok());
    const auto small = stage.put(std::span<const std::int32_t>(values).first(1));
    ASSERT_TRUE(small.ok());
    EXPECT_NE(*small, *put);
    at.push_back(*put);
    ASSERT_TRUE(stage.send().ok());
  }
  std::ranges::fill(values, -1);
  ASSERT_TRUE(memory->synchronize().ok());
  for (int round = 0; round < 3; ++round) {
    const auto there = read(memory, at[static_cast<std::size_t>(round)], 300000);
    EXPECT_EQ(there.front(), round);
    EXPECT_EQ(there.back(), round + 299999);
  }
}

/// A step with much to tell its kernels stays one graph.
TEST(ArgumentStageTest, AStepIsNotInterruptedHoweverMuchIsPut) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  ArgumentStage stage(memory);
  const std::vector<std::int32_t> values(9 << 20);  // 36 MiB
  for (int step = 0; step < 4; ++step) {
    memory->begin_step(1);
    const std::int64_t before = ops->waits();
    for (int layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(stage.begin().ok());
      ASSERT_TRUE(stage.put(std::span<const std::int32_t>(values)).ok());
      ASSERT_TRUE(stage.send().ok());
    }
    EXPECT_EQ(ops->waits(), before);
    ASSERT_TRUE(memory->end_step().ok());
    ASSERT_TRUE(memory->synchronize().ok());
  }
  EXPECT_GE(memory->step_stats().graphs, 1);
}

/// What another thread gives back has nothing to do with the step that this one records.
TEST(ArgumentStageTest, AnotherThreadsReleaseLeavesARecordedStepsArgumentsAlone) {
  const auto memory = std::make_shared<DeviceMemory>(simt::make_emulated_ops());
  ArgumentStage stage(memory);
  const auto other = memory->allocate(64, MemoryPlace::kDevice);
  ASSERT_TRUE(other.ok());
  const std::vector<std::int32_t> first = {1, 2, 3}, second = {7, 8, 9};
  memory->begin_step(1);
  ASSERT_TRUE(stage.begin().ok());
  const auto at = stage.put(std::span<const std::int32_t>(first));
  ASSERT_TRUE(at.ok() && stage.send().ok());
  std::thread([&] { memory->release(*other, MemoryPlace::kDevice); }).join();
  EXPECT_TRUE(memory->pending());
  ASSERT_TRUE(stage.begin().ok());
  ASSERT_TRUE(stage.put(std::span<const std::int32_t>(second)).ok() && stage.send().ok());
  ASSERT_TRUE(memory->end_step().ok());
  EXPECT_EQ(read(memory, *at, 3), first);
}

/// The step may still use it.
TEST(DeviceMemoryTest, MemoryGivenBackWhileAnotherThreadRecordsLivesUntilTheStepHasRun) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  const auto x = memory->allocate(64, MemoryPlace::kDevice),
             bias = memory->allocate(64, MemoryPlace::kDevice);
  ASSERT_TRUE(x.ok() && bias.ok());
  memory->begin_step(1);
  ASSERT_TRUE(
      memory->run(cuda::AddBiasArgs{static_cast<float*>(*x), static_cast<float*>(*bias), 1, 16, 16})
          .ok());
  std::thread([&] { memory->release(*bias, MemoryPlace::kDevice); }).join();
  EXPECT_EQ(ops->bytes_in_use(), 128);
  ASSERT_TRUE(memory->end_step().ok());
  ASSERT_TRUE(memory->synchronize().ok());
  EXPECT_EQ(ops->bytes_in_use(), 64);
  memory->release(*x, MemoryPlace::kDevice);
  EXPECT_EQ(ops->bytes_in_use(), 0);
}

/// Memory that grows has the step so far run at once. What is refused then is the step's failure,
/// or the answer would come from a step that lacks an operation.
TEST(DeviceMemoryTest, AStepWhoseOperationIsRefusedWhereMemoryGrowsFailsAtItsEnd) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  DeviceBuffer buffer(memory, cuda::MemoryKind::kDevice);
  ASSERT_TRUE(buffer.reserve(64).ok());
  memory->begin_step(1);
  ASSERT_TRUE(memory->run(cuda::RecordEventArgs{-1, cuda::Lane::kCompute}).ok());
  ASSERT_TRUE(buffer.reserve(128).ok());
  EXPECT_EQ(ops->bytes_in_use(), 128) << "a failure keeps no memory";
  EXPECT_EQ(memory->end_step().code(), Code::kInvalidArgument);
  for (int step = 0; step < 2; ++step) {
    memory->begin_step(1);
    ASSERT_TRUE(memory->run(cuda::RecordEventArgs{0, cuda::Lane::kCompute}).ok());
    EXPECT_TRUE(memory->end_step().ok()) << "the next step is another one";
  }
}

/// A pass that stands between two layers has fetched while another request's step fails.
TEST(FetchStreamTest, WhatWasFetchedBeforeAStepThatFailsArrives) {
  const auto memory = std::make_shared<DeviceMemory>(simt::make_emulated_ops());
  FetchStream fetch(memory);
  const std::vector<std::int32_t> values = {3, 1, 4, 1, 5};
  constexpr std::int64_t kBytes = 5 * sizeof(std::int32_t);
  const auto place = fetch.place(kBytes);
  ASSERT_TRUE(place.ok());
  ASSERT_TRUE(memory->write(*place, values.data(), kBytes).ok());
  std::vector<std::int32_t> got;
  ASSERT_TRUE(fetch
                  .fetch(kBytes,
                         [&got](const std::byte* from) {
                           const auto* first = reinterpret_cast<const std::int32_t*>(from);
                           got.assign(first, first + 5);
                         })
                  .ok());
  memory->begin_step(1);
  ASSERT_TRUE(memory->run(cuda::RecordEventArgs{-1, cuda::Lane::kCompute}).ok());
  EXPECT_EQ(fetch.deliver().code(), Code::kInvalidArgument);
  EXPECT_EQ(got, values);
  EXPECT_EQ(memory->end_step().code(), Code::kInvalidArgument);
}

/// Fetches several times what a kernel made of bytes that were uploaded in bulk, and returns
/// whether each fetch got its own; without the events of the fetches that `lane` waits for, if one
/// is given.
bool fetches_are_right(simt::Copies copies, std::optional<cuda::Lane> lane) {
  const auto ops = std::make_shared<simt::RefusingOps>(simt::make_emulated_ops({.copies = copies}));
  const auto memory = std::make_shared<DeviceMemory>(ops);
  FetchStream fetch(memory);
  constexpr std::int64_t kCount = 16, kBytes = kCount * sizeof(float), kFetches = 7;
  DeviceBuffer stored(memory, cuda::MemoryKind::kPinned), bulk(memory, cuda::MemoryKind::kDevice);
  const DeviceEvent uploaded(memory), used(memory);
  ops->leaves_out = [lane, own = uploaded.number()](cuda::OpCode code, const void* args) {
    if (code != cuda::OpCode::kHold) return false;
    const auto& hold = *static_cast<const cuda::HoldArgs*>(args);
    return hold.lane == lane && hold.event != own;
  };
  EXPECT_TRUE(stored.reserve(kFetches * kBytes).ok() && bulk.reserve(kBytes).ok());
  auto* const values = reinterpret_cast<float*>(stored.data());
  std::iota(values, values + kFetches * kCount, 0.0f);
  bool right = true;
  std::int64_t delivered = 0;
  for (std::int64_t n = 0; n < kFetches; ++n) {
    const auto place = fetch.place(kBytes);
    EXPECT_TRUE(place.ok());
    const auto run = [&](const auto& args) { EXPECT_TRUE(memory->run(args).ok()); };
    run(cuda::HoldArgs{used.number(), cuda::Lane::kCopies});
    run(cuda::CopyAsyncArgs{bulk.data(), values + n * kCount, kBytes, cuda::Lane::kCopies});
    run(cuda::RecordEventArgs{uploaded.number(), cuda::Lane::kCopies});
    run(cuda::HoldArgs{uploaded.number(), cuda::Lane::kCompute});
    run(cuda::CopyArgs{*place, bulk.data(), kBytes});
    run(cuda::RecordEventArgs{used.number(), cuda::Lane::kCompute});
    run(cuda::AddBiasArgs{reinterpret_cast<float*>(*place), values, 1, kCount, kCount});
    const auto then = [&, n](const std::byte* from) {
      const auto* const got = reinterpret_cast<const float*>(from);
      for (std::int64_t i = 0; i < kCount; ++i)
        right = right && got[i] == static_cast<float>(n * kCount + 2 * i);
      ++delivered;
    };
    EXPECT_TRUE(fetch.fetch(kBytes, then).ok());
  }
  EXPECT_TRUE(fetch.deliver().ok());
  EXPECT_EQ(delivered, kFetches);
  return right;
}

/// Whichever stream runs ahead, a download comes after what wrote its buffer and before what writes
/// that next. The emulated device would show that one of the events is missing.
TEST(FetchStreamTest, EveryFetchHasItsOwnBytesHoweverStreamsRun) {
  using simt::Copies;
  EXPECT_TRUE(fetches_are_right(Copies::kEarly, {}));
  EXPECT_TRUE(fetches_are_right(Copies::kLate, {}));
#ifndef QUIRE_ON_HARDWARE  // there it would be luck
  EXPECT_FALSE(fetches_are_right(Copies::kEarly, cuda::Lane::kDownloads)) << "before it is written";
  EXPECT_FALSE(fetches_are_right(Copies::kLate, cuda::Lane::kCompute)) << "overwritten before";
#endif
}

/// What is fetched does not wait behind rows that are uploaded.
TEST(FetchStreamTest, DownloadsHaveAStreamOfTheirOwn) {
  const auto ops = std::make_shared<simt::RefusingOps>(simt::make_emulated_ops());
  std::vector<cuda::Lane> lanes;
  ops->leaves_out = [&lanes](cuda::OpCode code, const void* args) {
    if (code == cuda::OpCode::kCopyAsync)
      lanes.push_back(static_cast<const cuda::CopyAsyncArgs*>(args)->lane);
    return false;
  };
  const auto memory = std::make_shared<DeviceMemory>(ops);
  FetchStream fetch(memory);
  StoredRowsFeed feed(memory);
  const std::vector<float> row(16, 1.0f);
  const RawKvView stored{row.data(), 1, DType::kF32, 64, 32, 32};
  ASSERT_TRUE(feed.upload(std::span(&stored, 1), 1, 8).ok() && feed.placed().ok());
  ASSERT_TRUE(fetch.place(64).ok());
  ASSERT_TRUE(fetch.fetch(64, [](const std::byte*) {}).ok());
  ASSERT_TRUE(fetch.deliver().ok());
  EXPECT_EQ(lanes, (std::vector{cuda::Lane::kCopies, cuda::Lane::kDownloads}));
}

#ifndef QUIRE_ON_HARDWARE
/// The two orders put each of two streams once before the other, also where neither computes.
TEST(EmulatedOpsTest, ADownloadOfWhatWasUploadedBesideNeedsAnEvent) {
  for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
    for (const bool waits : {false, true}) {
      const auto memory = std::make_shared<DeviceMemory>(
          simt::make_emulated_ops({.copies = copies}));
      DeviceBuffer pinned(memory, cuda::MemoryKind::kPinned),
          device(memory, cuda::MemoryKind::kDevice);
      const DeviceEvent uploaded(memory), fetched(memory);
      ASSERT_TRUE(pinned.reserve(192).ok() && device.reserve(64).ok());
      std::byte* const bytes = pinned.data();
      std::fill_n(bytes, 192, std::byte{1});
      const auto run = [&](const auto& args) { EXPECT_TRUE(memory->run(args).ok()); };
      run(cuda::CopyAsyncArgs{device.data(), bytes, 64, cuda::Lane::kCopies});
      run(cuda::RecordEventArgs{uploaded.number(), cuda::Lane::kCopies});
      if (waits) run(cuda::HoldArgs{uploaded.number(), cuda::Lane::kDownloads});
      run(cuda::CopyAsyncArgs{bytes + 64, device.data(), 64, cuda::Lane::kDownloads});
      run(cuda::RecordEventArgs{fetched.number(), cuda::Lane::kDownloads});
      bytes[128] = std::byte{2};  // is uploaded to the same place
      if (waits) run(cuda::HoldArgs{fetched.number(), cuda::Lane::kCopies});
      run(cuda::CopyAsyncArgs{device.data(), bytes + 128, 64, cuda::Lane::kCopies});
      ASSERT_TRUE(memory->synchronize().ok());
      EXPECT_EQ(bytes[64] == std::byte{1}, waits);
    }
  }
}

/// A graph is of the computing stream. What it has others do begins after an event of it, and it
/// waits for all of that, whichever way.
TEST(EmulatedOpsTest, ARecordingHoldsWorkOfAllStreamsThatItWaitsFor) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  DeviceBuffer a(memory, cuda::MemoryKind::kDevice), b(memory, cuda::MemoryKind::kDevice);
  ASSERT_TRUE(a.reserve(64).ok() && b.reserve(64).ok());
  using cuda::HoldArgs, cuda::Lane, cuda::OpCode, cuda::RecordEventArgs;
  const cuda::CopyAsyncArgs upload{a.data(), b.data(), 64, Lane::kCopies},
      download{b.data(), a.data(), 64, Lane::kDownloads};
  const RecordEventArgs begun{0, Lane::kCompute}, uploaded{1, Lane::kCopies},
      fetched{2, Lane::kDownloads};
  const HoldArgs after_begin{0, Lane::kCopies}, after_upload{1, Lane::kDownloads},
      after_fetch{2, Lane::kCompute};
  const auto op = [](const auto& args) {
    return cuda::StepOp{cuda::op_code(&args), &args, static_cast<std::int64_t>(sizeof args)};
  };
  const std::vector<cuda::StepOp> whole = {op(begun),    op(after_begin),  op(upload),
                                           op(uploaded), op(after_upload), op(download),
                                           op(fetched),  op(after_fetch)};
  std::uint64_t version = 0;
  const auto recorded = [&](const std::vector<cuda::StepOp>& list) {
    const Status status = ops->run(
        cuda::StepArgs{1, ++version, list.data(), static_cast<std::int64_t>(list.size())});
    EXPECT_TRUE(ops->synchronize().ok());
    return status.ok();
  };
  EXPECT_TRUE(recorded(whole)) << "the download's event covers the upload";
  for (const std::size_t left_out : {0, 1, 3, 4, 6, 7}) {
    std::vector<cuda::StepOp> list = whole;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(left_out));
    EXPECT_FALSE(recorded(list)) << left_out;
  }
}
#endif

/// Only the caller hears of what it throws, so the others must be able to ask.
TEST(FetchStreamTest, ACallbackThatThrowsLosesWhatOthersFetchedAndIsCounted) {
  const auto memory = std::make_shared<DeviceMemory>(simt::make_emulated_ops());
  FetchStream fetch(memory);
  int taken = 0;
  for (int round = 0; round < 2; ++round) {
    const std::uint64_t before = fetch.discarded();
    for (int n = 0; n < 3; ++n) {
      ASSERT_TRUE(fetch.place(64).ok());
      ASSERT_TRUE(fetch
                      .fetch(64,
                             [&taken, round, n](const std::byte*) {
                               if (round == 0 && n == 1) throw std::bad_alloc();
                               ++taken;
                             })
                      .ok());
    }
    if (round == 0) {
      EXPECT_THROW((void)fetch.deliver(), std::bad_alloc);
    } else {
      EXPECT_TRUE(fetch.deliver().ok());
    }
    EXPECT_EQ(fetch.discarded() == before, round == 1);
  }
  EXPECT_EQ(taken, 1 + 3);
}

TEST(DeviceMemoryTest, EventsBelongToOneOwnerAndAreRefusedWhenAllAreTaken) {
  const auto memory = std::make_shared<DeviceMemory>(simt::make_emulated_ops());
  std::set<std::int32_t> numbers;
  {
    std::deque<DeviceEvent> events;
    for (int i = 0; i < cuda::kEvents; ++i) numbers.insert(events.emplace_back(memory).number());
    EXPECT_EQ(numbers.size(), static_cast<std::size_t>(cuda::kEvents));
    const DeviceEvent none(memory);
    for (const Status& refused :
         {memory->run(cuda::RecordEventArgs{none.number(), cuda::Lane::kCompute}),
          memory->run(cuda::WaitEventArgs{none.number()})}) {
      EXPECT_EQ(refused.code(), Code::kInvalidArgument);
      EXPECT_NE(refused.to_string().find("event"), std::string::npos) << refused.to_string();
    }
  }
  const DeviceEvent again(memory);
  EXPECT_TRUE(numbers.contains(again.number()));
}

TEST(DeviceMemoryTest, ADeviceThatOthersFilledHasNoBudgetAndSaysSo) {
  DeviceMemory memory(simt::make_emulated_ops({.memory_bytes = 4096}));
  for (const std::int64_t wanted : {std::int64_t{0}, std::int64_t{1} << 20}) {
    const auto budget = memory.budget(wanted, "model.working_cache_bytes");
    EXPECT_EQ(budget.code(), Code::kResourceExhausted);
    EXPECT_EQ(budget.status().field(), "model.working_cache_bytes");
    EXPECT_NE(budget.status().message().find("free"), std::string::npos)
        << budget.status().message();
  }
}

TEST(DeviceMemoryTest, SettlingAnIdleDeviceCostsNothing) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  ASSERT_TRUE(memory->synchronize().ok());
  EXPECT_EQ(ops->waits(), 0);
}

TEST(DeviceMemoryTest, BudgetIsWhatIsFreeAndNamesItsSetting) {
  const auto memory = std::make_shared<DeviceMemory>(
      simt::make_emulated_ops({.memory_bytes = std::int64_t{1} << 30}));
  const auto all = memory->budget(0, "model.working_cache_bytes");
  ASSERT_TRUE(all.ok());
  EXPECT_GT(*all, 0);
  EXPECT_LT(*all, std::int64_t{1} << 30);
  const auto more = memory->budget(std::int64_t{1} << 30, "model.working_cache_bytes");
  EXPECT_EQ(more.code(), Code::kResourceExhausted);
  EXPECT_EQ(more.status().field(), "model.working_cache_bytes");
}

TEST(DeviceMemoryTest, PagesComeOutOfItAndGoBack) {
  const auto ops = simt::make_emulated_ops();
  {
    PagePool pool({2, 8, DType::kF16}, 0, std::make_shared<DeviceMemory>(ops));
    WorkingCache cache(pool, 2);
    const std::vector<std::int32_t> positions = {0, 1, 2};
    ASSERT_TRUE(cache.add_rows(0, positions).ok());
    EXPECT_GT(ops->bytes_in_use(), 0);
    ops->fail_allocation(0);
    std::vector<std::int32_t> many(200000);
    std::iota(many.begin(), many.end(), 3);
    EXPECT_EQ(cache.add_rows(1, many).code(), Code::kResourceExhausted);
    EXPECT_EQ(cache.num_rows(1), 0);
    ASSERT_TRUE(cache.add_rows(1, positions).ok());
  }
  EXPECT_EQ(ops->bytes_in_use(), 0);
}

}  // namespace
}  // namespace quire
