/// SamKV on a device chooses the CPU's blocks, and no layer waits for the host.
#include <gtest/gtest.h>

#include "engine/select/resident_means.h"
#include "engine/select/samkv_scores.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/harness/sketch_maker.h"

namespace quire::testing {
namespace {

using cuda::OpCode;

ContextKey key_of(int i) {
  ContextKey key;
  key.bytes[0] = static_cast<std::byte>(i + 1);
  return key;
}

/// Documents of random contents, scored on the host and on an emulated device.
class ResidentMeansTest : public ::testing::Test {
 protected:
  /// Bytes of a block's means in all layers.
  static constexpr std::int64_t kBlockBytes = 3 * 2 * 16 * 4;
  ResidentMeansTest() {
    for (int i = 0; i < 3; ++i) {
      documents_.add_random(16 * (7 + i), static_cast<std::uint32_t>(i));
      keys_.push_back(key_of(i));
    }
    known_ = std::move(*compute_->register_rope(documents_.rope()));
    std::mt19937 rng(9);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 3 * 6 * 16; ++i) query_.push_back(normal(rng));
  }
  SamkvScores scores(BlockScorer* scorer, const SamkvScoreOptions& options = {}) {
    SelectionInput in = documents_.input();
    const QueryPassResult pass = documents_.question(query_);
    in.query_pass = &pass;
    in.scorer = scorer;
    auto got = samkv_scores(in, options);
    EXPECT_TRUE(got.ok()) << got.status().to_string();
    return got.ok() ? std::move(*got) : SamkvScores{};
  }
  void expect_same(const SamkvScores& got, const SamkvScores& expected) {
    ASSERT_EQ(got.documents.size(), expected.documents.size());
    for (std::size_t d = 0; d < got.documents.size(); ++d) {
      EXPECT_NEAR(got.documents[d].keep_share, expected.documents[d].keep_share, 1e-4);
      EXPECT_EQ(got.documents[d].bias_weight, expected.documents[d].bias_weight);
      for (std::size_t layer = 0; layer < 3; ++layer) {
        ASSERT_EQ(got.documents[d].score[layer].size(), expected.documents[d].score[layer].size());
        for (std::size_t b = 0; b < got.documents[d].score[layer].size(); ++b) {
          EXPECT_NEAR(got.documents[d].score[layer][b], expected.documents[d].score[layer][b],
                      1e-4);
          EXPECT_NEAR(got.documents[d].comparable[layer][b],
                      expected.documents[d].comparable[layer][b], 1e-4);
        }
      }
    }
  }

  Documents documents_{SketchShape{
      .num_layers = 3, .num_heads = 6, .num_kv_heads = 2, .head_dim = 16, .rotary_dim = 16}};
  std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
  std::shared_ptr<Compute> compute_ = make_device_compute(ops_);
  std::shared_ptr<const void> known_;
  std::vector<std::optional<ContextKey>> keys_;
  std::vector<float> query_;
};

TEST_F(ResidentMeansTest, ScoresAreTheHostsAndMeansGoUpOnce) {
  ResidentMeans means(*compute_, documents_.rope(), 1 << 20);
  ResidentScorer scorer(means, keys_);
  for (const bool bias : {true, false, true}) {
    SamkvScoreOptions options;
    options.bias = bias;
    const std::int64_t launches = ops_->runs(OpCode::kSamkvScores);
    expect_same(scores(&scorer, options), scores(nullptr, options));
    EXPECT_EQ(ops_->runs(OpCode::kSamkvScores) - launches, 1) << "all layers and documents at once";
  }
  EXPECT_EQ(means.stats().uploads, 3);
  EXPECT_EQ(means.stats().hits, 6);
  EXPECT_EQ(means.stats().bytes, (7 + 8 + 9) * kBlockBytes);
}

TEST_F(ResidentMeansTest, TheLeastRecentlyUsedGoFirst) {
  ResidentMeans means(*compute_, documents_.rope(), (7 + 8) * kBlockBytes);
  ResidentScorer scorer(means, keys_);
  const SamkvScores expected = scores(nullptr);
  for (int i = 0; i < 3; ++i) expect_same(scores(&scorer), expected);
  EXPECT_EQ(means.stats().uploads, 9) << "each makes way for the next but one";
  EXPECT_LE(means.stats().bytes, (7 + 8) * kBlockBytes);
}

TEST_F(ResidentMeansTest, DocumentsWithoutAKeyAreNotKept) {
  ResidentMeans means(*compute_, documents_.rope(), 1 << 20);
  keys_[1].reset();
  ResidentScorer scorer(means, keys_);
  expect_same(scores(&scorer), scores(nullptr));
  expect_same(scores(&scorer), scores(nullptr));
  EXPECT_EQ(means.stats().uploads, 4);
  EXPECT_EQ(means.stats().bytes, (7 + 9) * kBlockBytes);
}

TEST_F(ResidentMeansTest, WithoutRoomTheHostScores) {
  ResidentMeans small(*compute_, documents_.rope(), 8 * kBlockBytes);
  ResidentScorer scorer(small, keys_);
  expect_same(scores(&scorer), scores(nullptr));
  EXPECT_EQ(ops_->runs(OpCode::kSamkvScores), 0);
  ResidentMeans means(*compute_, documents_.rope(), 1 << 20);
  ResidentScorer full(means, keys_);
  ops_->fail_allocation(0);
  expect_same(scores(&full), scores(nullptr));
  ops_->fail_allocation(-1);
  expect_same(scores(&full), scores(nullptr));
  EXPECT_EQ(ops_->runs(OpCode::kSamkvScores), 1);
}

TEST_F(ResidentMeansTest, ALostDeviceIsAnError) {
  ResidentMeans means(*compute_, documents_.rope(), 1 << 20);
  ResidentScorer scorer(means, keys_);
  SelectionInput in = documents_.input();
  const QueryPassResult pass = documents_.question(query_);
  in.query_pass = &pass;
  in.scorer = &scorer;
  ops_->lose();
  EXPECT_EQ(samkv_scores(in, {}).code(), Code::kDeviceLost);
}

/// Uses documents from which something can be chosen.
class DeviceSamkvTest : public DeviceSideTest {};

TEST_F(DeviceSamkvTest, BlocksAndTextAreTheCpus) {
  const RandomModelFolder model;
  const auto ops = simt::make_emulated_ops();
  const auto cpu = side(model.path(), "cpu", nullptr, {130, 101, 90}),
             device = side(model.path(), "device", make_device_compute(ops), {130, 101, 90});
  for (const char* recompute : {"fusion", "overwrite"}) {
    for (const char* bias : {"on", "off"}) {
      // Recomputation does not depend on the bias.
      if (recompute == std::string("overwrite") && bias == std::string("off")) continue;
      SCOPED_TRACE(std::string(recompute) + ", bias " + bias);
      const auto edit = [&](QueryRequest& r) {
        r.cache.options = options_of({{"score", "keys"}, {"bias", bias}, {"recompute", recompute}});
      };
      const std::int64_t launches = ops->runs(OpCode::kSamkvScores);
      const Outcome got = ask(*device, "samkv", 5, edit), expected = ask(*cpu, "samkv", 5, edit);
      EXPECT_EQ(ops->runs(OpCode::kSamkvScores) - launches, 1);
      EXPECT_EQ(got.ids, expected.ids);
      EXPECT_GT(expected.plan.fates.dropped, 0) << "something was chosen";
      ASSERT_EQ(got.plan.contexts.size(), expected.plan.contexts.size());
      for (std::size_t c = 0; c < got.plan.contexts.size(); ++c) {
        ASSERT_EQ(got.plan.contexts[c].blocks.size(), expected.plan.contexts[c].blocks.size());
        for (std::size_t b = 0; b < got.plan.contexts[c].blocks.size(); ++b) {
          EXPECT_EQ(got.plan.contexts[c].blocks[b].kept_layers,
                    expected.plan.contexts[c].blocks[b].kept_layers)
              << c << ", " << b;
          EXPECT_EQ(got.plan.contexts[c].blocks[b].recomputed_tokens,
                    expected.plan.contexts[c].blocks[b].recomputed_tokens)
              << c << ", " << b;
        }
      }
    }
  }
  EXPECT_GT(ops->runs(OpCode::kBlendRows), 0) << "fusion blends on the device";
  EXPECT_GT(ops->runs(OpCode::kColumnSums), 0);
}

/// What a document names may be the key of an older text.
TEST_F(DeviceSamkvTest, BlocksAreChosenByTheTextThatIsAskedAbout) {
  const RandomModelFolder model;
  const auto cpu = side(model.path(), "cpu", nullptr, {130, 101, 90}),
             device = side(model.path(), "device", make_device_compute(simt::make_emulated_ops()),
                           {130, 101, 90});
  (void)ask(*device, "samkv", 1);  // the means of the older texts are on the device now
  std::vector<std::vector<std::int32_t>> texts;
  std::mt19937 rng(41);
  for (const Doc& d : cpu->docs) texts.push_back(random_ids(rng, d.ids.size()));
  for (const auto& s : {cpu.get(), device.get()}) {
    for (std::size_t i = 0; i < texts.size(); ++i)
      (void)ingest(*s->engine, *s->store, "other" + std::to_string(i), texts[i]);
  }
  const auto of_other_texts = [&texts](QueryRequest& r) {
    for (std::size_t i = 0; i < texts.size(); ++i) r.contexts[i].token_ids = texts[i];
  };
  const Outcome got = ask(*device, "samkv", 5, of_other_texts),
                expected = ask(*cpu, "samkv", 5, of_other_texts);
  EXPECT_EQ(got.ids, expected.ids);
  EXPECT_GT(expected.plan.fates.dropped, 0) << "something was chosen";
  ASSERT_EQ(got.plan.contexts.size(), expected.plan.contexts.size());
  for (std::size_t c = 0; c < got.plan.contexts.size(); ++c) {
    ASSERT_EQ(got.plan.contexts[c].blocks.size(), expected.plan.contexts[c].blocks.size());
    for (std::size_t b = 0; b < got.plan.contexts[c].blocks.size(); ++b) {
      EXPECT_EQ(got.plan.contexts[c].blocks[b].kept_layers,
                expected.plan.contexts[c].blocks[b].kept_layers)
          << c << ", " << b;
    }
  }
}

/// With twice the layers there are as many waits. The question's pass, the choice, recomputation
/// and the question itself each wait as a whole.
TEST_F(DeviceSamkvTest, NoLayerWaitsForTheHost) {
  std::int64_t waits[2] = {};
  for (const int i : {0, 1}) {
    const RandomModelFolder model(7, 512, i == 0 ? 3 : 6);
    const auto ops = simt::make_emulated_ops();
    const auto device = side(model.path(), "device" + std::to_string(i), make_device_compute(ops));
    (void)ask(*device, "samkv", 1);  // buffers grow, and means are copied to the device
    for (const char* recompute : {"fusion", "overwrite"}) {
      const std::int64_t before = ops->waits();
      (void)ask(*device, "samkv", 1, [&](QueryRequest& r) {
        r.cache.options = options_of({{"score", "keys"}, {"recompute", recompute}});
      });
      waits[i] += ops->waits() - before;
    }
  }
  EXPECT_EQ(waits[0], waits[1]);
  EXPECT_LE(waits[0], 40);
}

TEST_F(DeviceSamkvTest, AnAllocationThatFailsAnywhereFailsThatQueryAlone) {
  const RandomModelFolder model;
  const auto ops = simt::make_emulated_ops();
  const auto device = side(model.path(), "device", make_device_compute(ops));
  const std::vector<std::int32_t> expected = ask(*device, "samkv").ids;
  for (const std::int64_t n : {0, 1, 2, 4, 7}) {
    ops->fail_allocation(n);
    const Outcome o = run_query(*device->engine, request(*device, "samkv", 5));
    ops->fail_allocation(-1);
    if (o.status.ok()) {
      EXPECT_EQ(o.ids, expected) << n;
    } else {
      EXPECT_EQ(o.status.code(), Code::kResourceExhausted) << o.status.to_string();
    }
    EXPECT_EQ(ask(*device, "samkv").ids, expected) << n;
  }
}

}  // namespace
}  // namespace quire::testing
