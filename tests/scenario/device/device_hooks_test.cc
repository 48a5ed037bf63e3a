/// Hooks of a pass on a device: ingest, compressors and attribution give the CPU's results, and no
/// layer waits for the host.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/compress/compressor.h"
#include "engine/compute/compute.h"
#include "engine/prefill/context_kv.h"
#include "engine/record/tail_record.h"
#include "kernels/rows/block_summary.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/harness/ingest_harness.h"
#include "tests/support/harness/model_harness.h"

namespace quire::testing {
namespace {

using cuda::OpCode;
using simt::Copies;

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

void expect_near(std::span<const float> got, std::span<const float> expected, double bound,
                 const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], bound * (1 + std::abs(expected[i]))) << what << " " << i;
}

std::vector<float> widened(const ContextKv& kv) {
  std::vector<float> out;
  for (const auto& value : kv.values) {
    const auto n = static_cast<std::int64_t>(value->payload().size() /
                                             dtype_bytes(kv.layout.shape().dtype));
    for (std::int64_t i = 0; i < n; ++i)
      out.push_back(load_f32(value->payload().data(), kv.layout.shape().dtype, i));
  }
  return out;
}

TEST(DeviceHooksTest, IngestKeepsWhatItKeepsOnTheCpu) {
  for (const DType dtype : kTypes) {
    const double bound = dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 4e-3 : 3e-2;
    for (const Copies copies : {Copies::kEarly, Copies::kLate}) {
      for (const std::int32_t n : {1, 16, 75}) {
        SCOPED_TRACE(std::to_string(n) + " tokens, dtype " +
                     std::to_string(static_cast<int>(dtype)));
        const auto ops = simt::make_emulated_ops({.copies = copies});
        Ingest there(ops, 3, dtype), here(nullptr, 3, dtype);
        const auto got = there.run(n), expected = here.run(n);
        ASSERT_TRUE(got != nullptr && expected != nullptr);
        expect_near(widened(*got), widened(*expected), bound, "values");
        expect_near(got->local_query, expected->local_query, bound, "local query");
        ASSERT_EQ(got->stats.size(), expected->stats.size());
        for (std::size_t i = 0; i < got->stats.size(); ++i) {
          EXPECT_NEAR(got->stats[i].sustained, expected->stats[i].sustained, bound);
          EXPECT_EQ(std::isnan(got->stats[i].alpha), std::isnan(expected->stats[i].alpha));
          // Rounding may move the largest of nearly equal columns.
          if (dtype != DType::kF32) continue;
          EXPECT_EQ(got->stats[i].representative, expected->stats[i].representative);
          EXPECT_TRUE(std::isnan(expected->stats[i].alpha) ||
                      std::abs(got->stats[i].alpha - expected->stats[i].alpha) < 1e-3);
        }
        ASSERT_EQ(got->records.count(kTailRecordIndex), expected->records.count(kTailRecordIndex));
        if (n == 75) {
          EXPECT_GT(ops->runs(OpCode::kAttentionStats), 0);
          EXPECT_EQ(ops->runs(OpCode::kBlockSummaries), 3 * 3) << "once a layer and chunk";
        }
      }
    }
  }
}

TEST(DeviceHooksTest, TailQueriesArriveInTheirRows) {
  const auto ops = simt::make_emulated_ops();
  Ingest there(ops, 3, DType::kF32), here(nullptr, 3, DType::kF32);
  const auto got = there.run(103), expected = here.run(103);
  ASSERT_EQ(expected->records.count(kTailRecordIndex), 1u);
  const auto a = TailRecordView::parse(got->records.at(kTailRecordIndex)),
             b = TailRecordView::parse(expected->records.at(kTailRecordIndex));
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(a->shape(), b->shape());
  std::vector<float> x(static_cast<std::size_t>(b->shape().num_heads * b->shape().head_dim)), y(x);
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    for (std::int64_t row = 0; row < b->shape().num_rows; ++row) {
      a->query(layer, row, x);
      b->query(layer, row, y);
      expect_near(x, y, 2e-2, "a query, in steps of its scale");
    }
  }
}

/// The device's means equal those that a sketch is built from.
TEST(DeviceHooksTest, MeansAreThoseOfTheKeptKeys) {
  for (const DType dtype : kTypes) {
    Ingest there(simt::make_emulated_ops(), 2, dtype);
    const auto kv = there.run(75);
    const KvShape& s = kv->layout.shape();
    const auto width = static_cast<std::size_t>(s.num_kv_heads * s.head_dim);
    std::vector<float> expected;
    for (std::int32_t layer = 0; layer < s.num_layers; ++layer) {
      for (std::int32_t b = 0; b < kv->layout.num_blocks(); ++b) {
        std::vector<float> mean(width);
        ASSERT_TRUE(block_summary(
                        there.model->rope(),
                        {.raw = kv->layout.view(kv->value(b, kv->layout.group_of(layer)), b, layer),
                         .num_kv_heads = s.num_kv_heads,
                         .head_dim = s.head_dim,
                         .first_position = static_cast<std::int32_t>(kv->layout.first_token(b)),
                         .mean = mean.data(),
                         .min = nullptr,
                         .max = nullptr})
                        .ok());
        expected.insert(expected.end(), mean.begin(), mean.end());
      }
    }
    expect_near(kv->means, expected, 1e-5, "means");
  }
}

TEST(DeviceHooksTest, AChunkOfIngestWaitsOnce) {
  std::vector<std::int64_t> waits[2];
  for (const int i : {0, 1}) {
    const auto ops = simt::make_emulated_ops();
    Ingest there(ops, i == 0 ? 3 : 7, DType::kF16);
    (void)there.run(75);  // grows the buffers kept between contexts
    std::int64_t before = ops->waits();
    (void)there.run(75, [&] {
      waits[i].push_back(ops->waits() - before);
      before = ops->waits();
    });
    ASSERT_EQ(waits[i].size(), 3u);
    EXPECT_EQ(waits[i][1], 1);
    EXPECT_EQ(waits[i][2], 1);
  }
  EXPECT_EQ(waits[0], waits[1]);
}

TEST(DeviceHooksTest, AFailureDuringIngestFailsThatContextAlone) {
  const auto ops = simt::make_emulated_ops();
  Ingest there(ops, 2, DType::kF32);
  const auto expected = there.run(40);
  const std::vector<std::int32_t> ids = Ingest::tokens(40);
  int failed = 0;
  for (const std::int64_t n : {0, 1, 2, 3, 5, 8}) {
    for (const bool copy : {false, true}) {
      copy ? ops->fail_copy(n) : ops->fail_allocation(n);
      {
        ContextPrefill prefill(there.core, {ids, {}});
        Status status;
        while (status.ok() && !prefill.done()) status = prefill.step();
        failed += status.ok() ? 0 : 1;
        EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted ||
                    status.code() == Code::kInternal)
            << status.to_string();
      }
      ops->fail_copy(-1);
      ops->fail_allocation(-1);
    }
  }
  EXPECT_GT(failed, 3);
  const auto again = there.run(40);
  ASSERT_TRUE(again != nullptr);
  EXPECT_EQ(widened(*again), widened(*expected));
  EXPECT_EQ(again->means, expected->means);
}

/// A hook that stores values in a place and fetches them, several times in a layer.
class FetchingHook final : public ForwardHook {
 public:
  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }
  Status after_projection(LayerPass& pass) override {
    FetchOps& fetch = pass.compute->fetch();
    const std::int64_t width = 8;
    for (int i = 0; i < 3; ++i) {
      QUIRE_ASSIGN_OR_RETURN(std::byte* const to, fetch.place(width * 4));
      QUIRE_RETURN_IF_ERROR(pass.compute->linear().copy_rows(
          pass.qkv.q + i * width, 1, width, pass.qkv.ld, reinterpret_cast<float*>(to)));
      QUIRE_RETURN_IF_ERROR(
          fetch.fetch(width * 4, [this, layer = pass.layer, i](const std::byte* from) {
            order.push_back(layer * 3 + i);
            const auto* values = reinterpret_cast<const float*>(from);
            fetched.insert(fetched.end(), values, values + 8);
          }));
      EXPECT_TRUE(order.empty()) << "nothing comes before the pass ends";
    }
    return {};
  }
  std::vector<int> order;
  std::vector<float> fetched;
};

TEST(DeviceHooksTest, WhatIsFetchedComesInOrderAtThePassesEnd) {
  std::vector<float> first;
  for (const Copies copies : {Copies::kEarly, Copies::kLate}) {
    const auto ops = simt::make_emulated_ops({.copies = copies});
    Runner runner(std::move(*make_random_model(
        *parse_model_config(tiny_config_json()),
        {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32}, 5, make_device_compute(ops))));
    FetchingHook hook;
    const std::int64_t waits = ops->waits();
    runner.append(Ingest::tokens(5), 1, &hook);
    EXPECT_LE(ops->waits() - waits, 2);
    EXPECT_EQ(hook.order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
    for (const float x : hook.fetched) EXPECT_TRUE(std::isfinite(x));
    if (first.empty()) first = hook.fetched;
    EXPECT_EQ(hook.fetched, first);
  }
}

class DeviceHooksQueryTest : public DeviceSideTest {};

/// Under samkv rows leave the pass in every layer, and watched queries follow their rows without
/// the host.
TEST_F(DeviceHooksQueryTest, CompressorsWatchWithoutWaiting) {
  TwoDepths depths = two_depths();
  for (const auto& [strategy, name] : std::vector<std::pair<std::string, std::string>>{
           {"reuse", "snapkv"}, {"reuse", "h2o"}, {"samkv", "h2o"}}) {
    SCOPED_TRACE(name + " under " + strategy);
    expect_no_wait_for_a_layer(
        depths, strategy, 1, OpCode::kAttentionScores,
        [&, name = name](QueryRequest& r, std::int32_t) {
          r.cache.compress = name;
          r.cache.options = PlugOptions(
              {{"capacity", "40"}, {"window", "5"}, {"drop_mode", "demote"}});
        });
  }
}

TEST_F(DeviceHooksQueryTest, CompressorsBesideRecomputationAnswerAsOnTheCpu) {
  const RandomModelFolder model;
  const auto cpu = side(model.path(), "cpu", nullptr),
             device = side(model.path(), "device", make_device_compute(simt::make_emulated_ops()));
  for (const std::string& name : compressors().names()) {
    SCOPED_TRACE(name);
    const auto edit = [&](QueryRequest& r) {
      r.cache.compress = name;
      if (name != "none")
        r.cache.options = PlugOptions(
            {{"capacity", "40"}, {"window", "5"}, {"drop_mode", "demote"}});
    };
    EXPECT_EQ(ask(*device, "samkv", 3, edit).ids, ask(*cpu, "samkv", 3, edit).ids);
  }
}

std::vector<float> shares_of(DeviceSide& s, QueryRequest request, std::vector<std::int32_t>& ids) {
  struct Sink final : CollectingSink {
    void on_attribution(const Attribution& a) override { shares = a.share; }
    std::vector<float> shares;
  };
  const auto sink = std::make_shared<Sink>();
  const auto handle = s.engine->query(std::move(request), sink);
  EXPECT_TRUE(handle.ok()) << handle.status().to_string();
  if (!handle.ok()) return {};
  const Outcome& o = sink->wait();
  EXPECT_TRUE(o.status.ok()) << o.status.to_string();
  ids = o.ids;
  return sink->shares;
}

TEST_F(DeviceHooksQueryTest, AnswersAreAttributedWithoutWaiting) {
  TwoDepths depths = two_depths();
  expect_no_wait_for_a_layer(depths, "reuse", 3, OpCode::kAttentionMass,
                             [&](QueryRequest& r, std::int32_t) { r.attribute = true; });
  const RandomModelFolder model;
  const auto cpu = side(model.path(), "cpu", nullptr),
             device = side(model.path(), "device", make_device_compute(simt::make_emulated_ops()));
  std::vector<float> shares[2];
  std::vector<std::int32_t> ids[2];
  for (const int i : {0, 1}) {
    QueryRequest r = request(i == 0 ? *cpu : *device, "reuse", 4);
    r.attribute = true;
    shares[i] = shares_of(i == 0 ? *cpu : *device, std::move(r), ids[i]);
  }
  EXPECT_EQ(ids[1], ids[0]);
  ASSERT_NE(shares[0].size(), 0u);
  expect_near(shares[1], shares[0], 1e-4, "shares");
}

TEST_F(DeviceHooksQueryTest, QueriesOfThePromptAreFetchedWithoutWaiting) {
  TwoDepths depths = two_depths();
  expect_no_wait_for_a_layer(
      depths, "reuse", 1, OpCode::kCopyAsync, [](QueryRequest& r, std::int32_t) {
        r.cache.decode = "ctkvr";
        r.cache.options = PlugOptions(options_of("ctkvr", small_budget("64")));
      });
}

}  // namespace
}  // namespace quire::testing
