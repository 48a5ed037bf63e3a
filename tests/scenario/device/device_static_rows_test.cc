/// Rows that every step of ctkvr attends to stay on the device while their layers leave it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "engine/retrieve/rows/static_rows.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/harness/device_steps.h"

namespace quire::testing {
namespace {

/// What attention gives over a view, or over lists of rows of it.
struct Attended {
  std::vector<float> out, lse;
};

class StaticRowsTest : public DeviceStepsTest {
 protected:
  Attended attend(const KvView& kv, std::span<const std::int32_t> rows = {}) {
    const auto memory = model_->compute().memory();
    const std::int64_t heads = config_.num_heads, width = heads * config_.head_dim;
    ComputeBuffer<float> query, result;
    EXPECT_TRUE(query.reserve(memory, width).ok());
    EXPECT_TRUE(result.reserve(memory, width + heads).ok());
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(width));
    for (float& value : values) value = normal(rng);
    EXPECT_TRUE(memory->write(query.data(), values.data(), width * 4).ok());
    std::vector<RowList> lists(static_cast<std::size_t>(config_.num_kv_heads),
                               RowList{rows.data(), static_cast<std::int64_t>(rows.size())});
    const SequenceAttention sequence{
        .kv = kv, .lists = rows.empty() ? nullptr : lists.data(), .position = 500};
    AttentionArgs args{};
    args.q = query.data();
    args.rows = 1;
    args.ldq = args.ldo = width;
    args.num_heads = config_.num_heads;
    args.scale = 0.3f;
    args.kv = kv;
    args.out = result.data();
    args.lse = result.data() + width;
    const Status status = model_->compute().attention().attend_each(args, std::span(&sequence, 1),
                                                                    DType::kF32);
    EXPECT_TRUE(status.ok()) << status.to_string();
    Attended out{std::vector<float>(static_cast<std::size_t>(width)),
                 std::vector<float>(static_cast<std::size_t>(heads))};
    EXPECT_TRUE(model_->compute().read(result.data(), width, out.out.data()).ok());
    EXPECT_TRUE(model_->compute().read(args.lse, heads, out.lse.data()).ok());
    return out;
  }
  /// Expects that the rows are the sink and the last ones of the layer, at least `local` of them.
  void expect_rows(StaticRows& rows, const WorkingCache& cache, std::int64_t sink,
                   std::int64_t local, std::int64_t first) {
    const KvView kv = cache.view(kLayer);
    const Status followed = rows.follow(model_->compute().kv(), kv, first);
    ASSERT_TRUE(followed.ok()) << followed.to_string();
    const std::int64_t begin = rows.first_local(first);
    EXPECT_EQ(begin % kPageTokens, 0);
    EXPECT_GE(begin, first);
    EXPECT_LE(begin, std::max(first, kv.num_rows - local));
    std::vector<std::int32_t> expected(static_cast<std::size_t>(sink + kv.num_rows - begin));
    std::iota(expected.begin(), expected.begin() + sink, 0);
    std::iota(expected.begin() + sink, expected.end(), static_cast<std::int32_t>(begin));
    const Attended got = attend(rows.view(first)), want = attend(kv, expected);
    for (std::size_t i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out[i], want.out[i], 1e-5);
    for (std::size_t i = 0; i < want.lse.size(); ++i) ASSERT_NEAR(got.lse[i], want.lse[i], 1e-5);
  }
  static constexpr std::int32_t kLayer = 1;
};

TEST_F(StaticRowsTest, AreTheFirstRowsAndTheLastOnesAsTheyCome) {
  DevicePool pool(0, model_->compute().memory());
  struct Case {
    std::int64_t sink, local;
  };
  for (const auto& [sink, local] : {Case{0, 16}, Case{5, 40}, Case{16, 16}, Case{33, 20}}) {
    SCOPED_TRACE(std::to_string(sink) + " and " + std::to_string(local));
    const auto cache = filled(108);
    const KvView kv = cache->view(kLayer);
    StaticRows rows = std::move(*StaticRows::create(pool, kv, sink, local));
    EXPECT_EQ(rows.bytes(), StaticRows::bytes_for(kv, sink, local));
    EXPECT_EQ(pool.bytes_in_use(), rows.bytes());
    for (std::int32_t i = 0; i < 24; ++i) {
      SCOPED_TRACE(i);
      if (i > 0) (void)step({cache.get()}, 3 + i);
      // Older rows come to the host meanwhile.
      expect_rows(rows, *cache, sink, local, i < 12 ? 64 : 112);
    }
  }
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

TEST_F(StaticRowsTest, ARowThatIsWrittenAgainIsCopiedAgain) {
  DevicePool pool(0, model_->compute().memory());
  const auto cache = filled(70);
  StaticRows rows = std::move(*StaticRows::create(pool, cache->view(kLayer), 16, 32));
  expect_rows(rows, *cache, 16, 32, 32);
  (void)step({cache.get()}, 3);
  expect_rows(rows, *cache, 16, 32, 32);
  cache->truncate_all(70);
  (void)step({cache.get()}, 30);
  expect_rows(rows, *cache, 16, 32, 32);
  // Steps that it has not seen, too.
  for (std::int32_t i = 0; i < 36; ++i) (void)step({cache.get()}, 3 + i);
  expect_rows(rows, *cache, 16, 32, 64);
}

TEST_F(StaticRowsTest, WithoutRoomThereAreNone) {
  const auto cache = filled(40);
  const KvView kv = cache->view(kLayer);
  DevicePool pool(StaticRows::bytes_for(kv, 16, 16) - 1, model_->compute().memory());
  EXPECT_EQ(StaticRows::create(pool, kv, 16, 16).code(), Code::kResourceExhausted);
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

/// The answer is longer than what the device has room for, so that the host attends to rows of it.
TEST_F(DeviceSideTest, RowsThatFindNoRoomOnTheDeviceAreTheHosts) {
  const RandomModelFolder model;
  const auto edit = [](QueryRequest& r) {
    r.cache.decode = "ctkvr";
    auto options = small_budget("64");
    options["decode_generated"] = "300";
    r.cache.options = PlugOptions(options_of("ctkvr", options));
  };
  const auto cpu = side(model.path(), "cpu", nullptr);
  const Outcome expected = ask(*cpu, "reuse", 40, edit);
  EXPECT_GT(expected.stats.retrieve.sparse_steps, 0);
  std::set<std::int64_t> kept;
  for (const std::int64_t kib : {4096, 160, 100}) {
    SCOPED_TRACE(kib);
    edit_options_ = [kib](EngineOptions& o) {
      o.device_cache_bytes = kib << 10;
      o.device_requests = 1;
    };
    const auto device = side(model.path(), "device" + std::to_string(kib),
                             make_device_compute(simt::make_emulated_ops()));
    const Outcome got = ask(*device, "reuse", 40, edit);
    EXPECT_EQ(got.ids, expected.ids);
    EXPECT_EQ(got.stats.retrieve.sparse_steps, expected.stats.retrieve.sparse_steps);
    kept.insert(got.stats.retrieve.device_bytes);
  }
  EXPECT_EQ(kept.size(), 3u) << "all rows, some and none";
}

}  // namespace
}  // namespace quire::testing
