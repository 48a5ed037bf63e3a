/// Layers that an emulated device evicts: their rows are in pinned memory of the host. Asynchronous
/// copies bring the rows that a step attends to into slots, and answers do not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "engine/cache/working_cache.h"
#include "engine/compute/compute.h"
#include "engine/residency/memory_speed.h"
#include "engine/retrieve/slot_copies.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/harness/head_files.h"

namespace quire::testing {
namespace {

using cuda::OpCode;
using Options = std::map<std::string, std::string, std::less<>>;

constexpr std::initializer_list<std::size_t> kShort = {45, 40};
/// Retrievers whose layers are evicted from the device, and where their rows go.
struct Leaving {
  const char* name;
  bool slots;  ///< true: the device attends to slots; false: the host attends
};
constexpr Leaving kLeaving[] = {{"freekv", true},
                                {"arkvale", true},
                                {"specontext", true},
                                {"ctkvr", false},
                                {"magicpig", false}};

class DeviceOffloadTest : public DeviceSideTest {
 protected:
  DeviceOffloadTest() { head_path_ = head_.path(); }
  static std::function<void(QueryRequest&)> by(const std::string& name) {
    return [name](QueryRequest& r) {
      r.cache.decode = name;
      r.cache.options = PlugOptions(options_of(name, small_budget("64")));  // evicts every layer
    };
  }
  const HeadFolder head_;
  const RandomModelFolder model_;
};

TEST_F(DeviceOffloadTest, AnswersAreThoseOfTheCpuWheneverCopiesArrive) {
  const auto cpu = side(model_.path(), "cpu", nullptr, kShort);
  for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
    const auto ops = simt::make_emulated_ops({.copies = copies});
    const auto device = side(model_.path(), copies == simt::Copies::kEarly ? "early" : "late",
                             make_device_compute(ops), kShort);
    for (const Leaving& one : kLeaving) {
      SCOPED_TRACE(one.name);
      const std::int64_t gathered = ops->runs(OpCode::kGatherRows);
      const Outcome got = ask(*device, "reuse", 7, by(one.name)),
                    expected = ask(*cpu, "reuse", 7, by(one.name));
      EXPECT_EQ(got.ids, expected.ids);
      const RetrieveStats &there = got.stats.retrieve, &here = expected.stats.retrieve;
      EXPECT_GT(ops->runs(OpCode::kGatherRows), gathered);
      EXPECT_GT(there.bytes_offloaded, 0);
      EXPECT_EQ(here.bytes_offloaded, 0) << "on the CPU the host has every row anyway";
      EXPECT_EQ(there.sparse_steps, here.sparse_steps);
      EXPECT_EQ(there.pages_copied, here.pages_copied);
      EXPECT_EQ(there.rows_copied, here.rows_copied);
      EXPECT_EQ(there.bytes_copied, here.bytes_copied);
      EXPECT_EQ(there.bytes_appended, here.bytes_appended);
      EXPECT_EQ(there.bytes_copied > 0, one.slots);
      // A device keeps room for keys of the head that come, and rows that ctkvr always attends to.
      if (one.name == std::string("ctkvr")) {
        EXPECT_GT(there.device_bytes, here.device_bytes);
      } else if (one.name != std::string("specontext")) {
        EXPECT_EQ(there.device_bytes, here.device_bytes);
      }
    }
  }
}

/// The rows that specontext chose before the layers run are prefetched, and no layer waits for
/// them.
TEST_F(DeviceOffloadTest, NoLayerWaitsForWhatIsBroughtToIt) {
  TwoDepths depths = two_depths(kShort);
  const auto edit = [&](QueryRequest& r, std::int32_t) {
    Options options = small_budget("64");
    options["decode_head"] = "embed";
    r.cache.decode = "specontext";
    r.cache.options = PlugOptions(options_of("specontext", options));
  };
  expect_no_wait_for_a_layer(depths, "reuse", 3, OpCode::kGatherRows, edit);
}

TEST_F(DeviceOffloadTest, ACopyThatFailsEndsItsRequestAlone) {
  const auto ops = simt::make_emulated_ops();
  const auto device = side(model_.path(), "device", make_device_compute(ops), kShort);
  const Outcome before = ask(*device, "reuse", 6, by("specontext"));
  QueryRequest r = request(*device, "reuse", 6);
  by("specontext")(r);
  ops->fail_copy(12);
  const Outcome failed = run_query(*device->engine, std::move(r));
  ops->fail_copy(-1);
  EXPECT_EQ(failed.status.code(), Code::kInternal) << failed.status.to_string();
  EXPECT_EQ(ask(*device, "reuse", 6, by("specontext")).ids, before.ids);
}

TEST_F(DeviceOffloadTest, NothingOfARequestIsLeftBehind) {
  const auto ops = simt::make_emulated_ops();
  const auto device = side(model_.path(), "device", make_device_compute(ops), kShort);
  // The slots of the fetch stream take turns, so each has grown after the second request.
  for (int n = 0; n < 2; ++n) (void)ask(*device, "reuse", 6, by("freekv"));
  const std::int64_t bytes = ops->bytes_in_use();
  for (int n = 0; n < 3; ++n) {
    (void)ask(*device, "reuse", 6, by("freekv"));
    EXPECT_EQ(ops->bytes_in_use(), bytes);
  }
}

TEST_F(DeviceOffloadTest, WhereTheHostHasNoRoomItIsSaidAndNamed) {
  edit_options_ = [](EngineOptions& o) { o.host_cache_bytes = 3 << 10; };
  const auto device = side(model_.path(), "small", make_device_compute(simt::make_emulated_ops()),
                           kShort);
  QueryRequest r = request(*device, "reuse", 4);
  by("freekv")(r);
  const Outcome refused = run_query(*device->engine, std::move(r));
  EXPECT_EQ(refused.status.code(), Code::kResourceExhausted) << refused.status.to_string();
  EXPECT_NE(refused.status.message().find("model.host_cache_bytes"), std::string::npos)
      << refused.status.to_string();
  EXPECT_TRUE(ask(*device, "reuse", 4).status.ok()) << "others go on";
}

TEST_F(DeviceOffloadTest, WithoutATierOfTheHostLayersKeepTheirPages) {
  const auto cpu = side(model_.path(), "cpu", nullptr, kShort);
  edit_options_ = [](EngineOptions& o) { o.host_cache_bytes = 0; };
  const auto device = side(model_.path(), "none", make_device_compute(simt::make_emulated_ops()),
                           kShort);
  for (const Leaving& one : kLeaving) {
    SCOPED_TRACE(one.name);
    const Outcome got = ask(*device, "reuse", 5, by(one.name));
    EXPECT_EQ(got.ids, ask(*cpu, "reuse", 5, by(one.name)).ids);
    EXPECT_EQ(got.stats.retrieve.bytes_offloaded, 0);
  }
}

/// A prompt for which the device has no room is answered; its remaining pages are in host memory.
TEST_F(DeviceOffloadTest, APromptLargerThanTheDevicesPartIsAnswered) {
  const auto cpu = side(model_.path(), "cpu", nullptr);
  edit_options_ = [](EngineOptions& o) { o.working_cache_bytes = 24 << 10; };
  const auto device = side(model_.path(), "device", make_device_compute(simt::make_emulated_ops()));
  for (const char* name : {"dense", "freekv", "specontext"}) {
    SCOPED_TRACE(name);
    const auto edit = name == std::string("dense") ? std::function<void(QueryRequest&)>()
                                                   : by(name);
    EXPECT_EQ(ask(*device, "recompute", 5, edit).ids, ask(*cpu, "recompute", 5, edit).ids);
  }
}

/// A batch may hold sequences whose layers have different layouts, and one whose layers stay.
TEST_F(DeviceOffloadTest, ABatchMayHoldEveryLayout) {
  const auto device = side(model_.path(), "device", make_device_compute(simt::make_emulated_ops()),
                           kShort);
  const std::vector<std::string> names = {"dense", "specontext", "freekv", "ctkvr"};
  std::vector<Outcome> alone(names.size()), together(names.size());
  const auto asked = [&](std::size_t i) {
    QueryRequest r = request(*device, "reuse", 8);
    if (names[i] != "dense") by(names[i])(r);
    return r;
  };
  for (std::size_t i = 0; i < names.size(); ++i) alone[i] = run_query(*device->engine, asked(i));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < names.size(); ++i)
    threads.emplace_back([&, i] { together[i] = run_query(*device->engine, asked(i)); });
  for (std::thread& t : threads) t.join();
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(together[i].status.ok()) << together[i].status.to_string();
    EXPECT_EQ(together[i].ids, alone[i].ids) << names[i];
  }
}

/// Rows in host memory cost a copy, so `auto` leaves rows out. A host would attend to the whole
/// prompt.
TEST_F(DeviceOffloadTest, AutoLeavesRowsOutWhereTheyDoNotFit) {
  const auto decode_auto = [](QueryRequest& r) {
    r.cache.decode = "auto";
    r.cache.options = PlugOptions(Options{{"decode_budget", "80"}});
  };
  edit_options_ = [](EngineOptions& o) { o.device_cache_bytes = 600 << 10; };
  const auto device = side(model_.path(), "small", make_device_compute(simt::make_emulated_ops()),
                           {200, 190});
  const Outcome got = ask(*device, "reuse", 4, decode_auto);
  EXPECT_GT(got.stats.retrieve.sparse_steps, 0);
  EXPECT_GT(got.stats.retrieve.bytes_offloaded, 0);
}

TEST_F(DeviceOffloadTest, TheSpeedOfADevicesMemoryIsMeasuredThere) {
  const auto ops = simt::make_emulated_ops();
  const auto compute = make_device_compute(ops);
  TransferStreams lane;
  const auto speed = measure_memory_speed(*compute, lane);
  ASSERT_TRUE(speed.ok()) << speed.status().to_string();
  EXPECT_GT(speed->read_bytes_per_ms, 0);
  EXPECT_GT(speed->copy_bytes_per_ms, 0);
  EXPECT_GT(ops->runs(OpCode::kGatherRows), 0);
  ops->fail_allocation(0);
  EXPECT_EQ(measure_memory_speed(*compute, lane).code(), Code::kResourceExhausted);
  ops->lose();
  EXPECT_EQ(measure_memory_speed(*compute, lane).code(), Code::kDeviceLost);
}

/// Only the cache: its rows in every layout, and who owns the pages.
class LeavingCacheTest : public ::testing::Test {
 protected:
  static constexpr PageFormat kFormat{2, 16, DType::kF32};
  static constexpr std::int32_t kRows = 37;
  static constexpr PageLayout kLayouts[] = {PageLayout::kHeadPages, PageLayout::kTokenGranules,
                                            PageLayout::kSplit};
  LeavingCacheTest()
      : ops_(simt::make_emulated_ops()),
        compute_(make_device_compute(ops_)),
        pool_(kFormat, 64 * kFormat.page_bytes(), compute_->memory(), 8 * kFormat.page_bytes()) {}
  /// A layer's pages in ordinary memory.
  struct HostPages {
    std::vector<std::byte> bytes;
    std::vector<void*> there, pages;
    MutableKvView view;
  };
  HostPages read(const MutableKvView& kv) {
    HostPages out;
    out.there.assign(kv.pages, kv.pages + (kv.num_rows + kPageTokens - 1) / kPageTokens);
    out.bytes.resize(out.there.size() * static_cast<std::size_t>(kFormat.page_bytes()));
    EXPECT_TRUE(pool_.read_pages(out.there, out.bytes.data()).ok());
    for (std::size_t i = 0; i < out.there.size(); ++i)
      out.pages.push_back(out.bytes.data() + i * static_cast<std::size_t>(kFormat.page_bytes()));
    out.view = kv;
    out.view.pages = out.pages.data();
    return out;
  }
  void write(WorkingCache& cache, std::int32_t layer, std::int64_t first) {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(cache.num_rows(layer) - first));
    std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(first));
    const HostPages kv = read(*cache.writable(layer, rows));
    each(kv.view, first, cache.num_rows(layer), [&](float* at, float value) { *at = value; });
    EXPECT_TRUE(pool_.write_pages(kv.bytes.data(), kv.there).ok());
  }
  template <class Visit>
  static void each(const MutableKvView& kv, std::int64_t first, std::int64_t end, Visit visit) {
    for (std::int64_t row = first; row < end; ++row) {
      for (int part = 0; part < 2; ++part) {
        for (std::int32_t head = 0; head < kv.num_kv_heads; ++head) {
          auto* at = reinterpret_cast<float*>(static_cast<std::byte*>(kv.pages[row / kPageTokens]) +
                                              part * kv.kv_stride + head * kv.head_stride +
                                              row % kPageTokens * kv.token_stride);
          for (std::int32_t c = 0; c < kv.head_dim; ++c)
            visit(at + c, static_cast<float>(
                              ((row * 2 + part) * kv.num_kv_heads + head) * kv.head_dim + c));
        }
      }
    }
  }
  void expect_rows(WorkingCache& cache, std::int32_t layer) {
    std::vector<std::int32_t> none;
    const HostPages kv = read(*cache.writable(layer, none));
    each(kv.view, 0, cache.num_rows(layer),
         [](const float* at, float value) { ASSERT_EQ(*at, value); });
  }
  Status leave(WorkingCache& cache, std::int32_t layer, PageLayout layout) {
    stats_ = {};
    SequenceContext context;
    context.cache = &cache;
    context.compute = compute_.get();
    const Status s = leave_device(context, layer, layout, stats_);
    EXPECT_TRUE(compute_->synchronize().ok());
    return s;
  }
  std::shared_ptr<simt::EmulatedOps> ops_;
  std::shared_ptr<Compute> compute_;
  PagePool pool_;
  RetrieveStats stats_;
};

TEST_F(LeavingCacheTest, RowsStayAndPagesMove) {
  for (const PageLayout layout : kLayouts) {
    SCOPED_TRACE(std::string(page_layout_name(layout)));
    WorkingCache cache(pool_, 2);
    std::vector<std::int32_t> positions(kRows);
    std::iota(positions.begin(), positions.end(), 0);
    for (const int layer : {0, 1}) {
      ASSERT_TRUE(cache.add_rows(layer, positions).ok());
      write(cache, layer, 0);
    }
    EXPECT_EQ(pool_.bytes_in_use(PageTier::kHost), 0);
    ASSERT_TRUE(leave(cache, 1, layout).ok());
    EXPECT_EQ(stats_.bytes_offloaded, std::int64_t{kRows} * 2 * 2 * 16 * 4);
    EXPECT_EQ(pool_.bytes_in_use(PageTier::kHost), 3 * kFormat.page_bytes());
    EXPECT_EQ(pool_.bytes_in_use(PageTier::kDevice), 3 * kFormat.page_bytes());
    EXPECT_TRUE(cache.on_host(1));
    EXPECT_FALSE(cache.on_host(0));
    EXPECT_EQ(cache.shareable(), layout == PageLayout::kHeadPages);
    for (const int layer : {0, 1}) expect_rows(cache, layer);
    // Later rows go to the host too, and a second eviction changes nothing.
    ASSERT_TRUE(leave(cache, 1, layout).ok());
    const std::vector<std::int32_t> more = {37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48};
    ASSERT_TRUE(cache.add_rows(1, more).ok());
    write(cache, 1, kRows);
    expect_rows(cache, 1);
    EXPECT_EQ(pool_.bytes_in_use(PageTier::kHost), 4 * kFormat.page_bytes());
    // Move the cache out to ordinary memory and in again.
    ASSERT_TRUE(cache.move_out().ok());
    EXPECT_EQ(pool_.bytes_in_use(), 0);
    ASSERT_TRUE(cache.move_in().ok());
    for (const int layer : {0, 1}) expect_rows(cache, layer);
    EXPECT_EQ(pool_.bytes_in_use(PageTier::kHost), 4 * kFormat.page_bytes());
  }
}

/// The host cannot read a device's memory.
TEST_F(LeavingCacheTest, PagesThatTheHostHasNoRoomForAreCopiedToBeReadThere) {
  for (const PageLayout layout : kLayouts) {
    SCOPED_TRACE(std::string(page_layout_name(layout)));
    WorkingCache cache(pool_, 1);
    std::vector<std::int32_t> positions(7 * kPageTokens);
    std::iota(positions.begin(), positions.end(), 0);
    ASSERT_TRUE(cache.add_rows(0, positions).ok());
    write(cache, 0, 0);
    ASSERT_TRUE(leave(cache, 0, layout).ok());
    HostRows room;
    const auto on_host = cache.host_view(0, room);
    ASSERT_TRUE(on_host.ok());
    EXPECT_EQ(on_host->pages, cache.view(0).pages) << "nothing is copied";
    for (std::int32_t& position : positions) position += 7 * kPageTokens;
    positions.resize(2 * kPageTokens + 3);
    ASSERT_TRUE(cache.add_rows(0, positions).ok());
    write(cache, 0, 7 * kPageTokens);
    ASSERT_EQ(pool_.bytes_in_use(PageTier::kHost), 8 * kFormat.page_bytes());
    ASSERT_EQ(pool_.bytes_in_use(PageTier::kDevice), 2 * kFormat.page_bytes());
    for (const bool moved : {false, true}) {
      if (moved) {
        ASSERT_TRUE(cache.move_out().ok());
        ASSERT_TRUE(cache.move_in().ok());
      }
      const auto host = cache.host_view(0, room);
      ASSERT_TRUE(host.ok()) << host.status().to_string();
      std::vector<void*> pages;
      for (int page = 0; page < 10; ++page) {
        const void* own = cache.view(0).pages[page];
        EXPECT_EQ(host->pages[page] == own, pool_.tier(own) == PageTier::kHost) << page;
        pages.push_back(const_cast<void*>(host->pages[page]));
      }
      std::vector<std::int32_t> none;
      MutableKvView read = *cache.writable(0, none);
      read.pages = pages.data();
      each(read, 0, cache.num_rows(0), [](const float* at, float value) { ASSERT_EQ(*at, value); });
    }
  }
}

TEST_F(LeavingCacheTest, WithoutRoomNothingChanges) {
  WorkingCache cache(pool_, 1);
  std::vector<std::int32_t> positions(9 * kPageTokens);  // one page more than the host has
  std::iota(positions.begin(), positions.end(), 0);
  ASSERT_TRUE(cache.add_rows(0, positions).ok());
  write(cache, 0, 0);
  EXPECT_EQ(leave(cache, 0, PageLayout::kSplit).code(), Code::kResourceExhausted);
  EXPECT_FALSE(cache.on_host(0));
  EXPECT_EQ(pool_.bytes_in_use(PageTier::kHost), 0);
  expect_rows(cache, 0);
}

}  // namespace
}  // namespace quire::testing
