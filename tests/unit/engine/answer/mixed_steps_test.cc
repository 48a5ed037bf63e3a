/// Decode steps whose rows run beside those of a pass have the bits that they have alone, and so
/// has the pass, whatever becomes of either.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/answer/decode_batch.h"
#include "engine/model/forward.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

std::vector<std::int32_t> positions_from(std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

/// Fails at one point of one layer; before that it drops some rows where it is told to.
class Hook final : public ForwardHook {
 public:
  enum class Where { kNowhere, kProjection, kAttend, kAttention };
  Where fails = Where::kNowhere, drops = Where::kNowhere;
  std::int32_t layer = 1;

  Status after_projection(LayerPass& pass) override {
    EXPECT_EQ(pass.qkv.rows, static_cast<std::int64_t>(pass.rows.size()));
    return act(pass, Where::kProjection);
  }
  Result<bool> attend(LayerPass& pass, const AttentionArgs&) override {
    QUIRE_RETURN_IF_ERROR(act(pass, Where::kAttend));
    return false;
  }
  Status after_attention(LayerPass& pass) override { return act(pass, Where::kAttention); }

 private:
  Status act(LayerPass& pass, Where where) const {
    if (pass.layer != layer) return {};
    if (fails == where) return Status::io("the hook fails");
    if (drops != where) return {};
    // The last row stays, whose logits are wanted.
    for (std::size_t i = 0; i + 1 < pass.carry_on->size(); i += 2) (*pass.carry_on)[i] = 0;
    return {};
  }
};

/// Attends densely in a call of its own, unless it fails in a layer.
class OwnRetriever final : public Retriever {
 public:
  /// `layers` receives those in which it attended.
  explicit OwnRetriever(std::vector<std::int32_t>& layers, std::int32_t fails_in = -1)
      : Retriever({}), layers_(layers), fails_in_(fails_in) {}
  Status prepare(const SequenceContext&, const AssembledPrompt&) override { return {}; }
  Status attend(const RetrieveStep& step) override {
    layers_.push_back(step.layer);
    if (step.layer == fails_in_) return Status::io("gone");
    AttentionArgs args{};
    args.q = step.query;
    args.query_positions = &step.position;
    args.rows = 1;
    args.ldq = args.ldo = std::int64_t{step.num_heads} * step.head_dim;
    args.num_heads = step.num_heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim));
    args.kv = step.cache->view(step.layer);
    args.out = step.out;
    return attention(args);
  }

 private:
  std::vector<std::int32_t>& layers_;
  const std::int32_t fails_in_;
};

class MixedStepsTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  /// What a step and a pass gave, and what their caches hold then.
  struct Both {
    std::vector<Status> statuses;
    std::vector<std::vector<float>> decoded;
    Status pass;
    std::vector<float> logits;
    std::vector<std::vector<std::byte>> rows;
    bool mixed = false;
  };
  struct Case {
    Hook* hook = nullptr;
    std::int32_t pauses_behind = -1;  ///< the pass goes on after the step's end
    bool wants_logits = true;
    std::function<std::unique_ptr<Retriever>(std::size_t)> retriever;
    std::size_t pass_rows = 70;
    std::int64_t most = 16;
  };

  std::unique_ptr<WorkingCache> cache(std::span<const std::int32_t> ids) {
    auto out = std::make_unique<WorkingCache>(pool_, config_.num_layers);
    const auto positions = positions_from(0, ids.size());
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = out.get();
    EXPECT_TRUE(forward(*model_, request, workspace_).ok());
    return out;
  }
  std::vector<std::byte> contents(WorkingCache& cache) {
    std::vector<std::byte> out;
    for (std::int32_t layer = 0; layer < config_.num_layers; ++layer) {
      HostRows rows;
      const KvView view = *cache.host_view(layer, rows);
      const auto row_bytes = static_cast<std::int64_t>(config_.head_dim) *
                             static_cast<std::int64_t>(dtype_bytes(view.dtype));
      for (std::int64_t row = 0; row < view.num_rows; ++row) {
        const auto* const slot = static_cast<const std::byte*>(view.pages[row / kPageTokens]) +
                                 row % kPageTokens * view.token_stride;
        for (std::int32_t part = 0; part < 2 * config_.num_kv_heads; ++part) {
          const std::byte* const from = slot + part % 2 * view.kv_stride +
                                        part / 2 * view.head_stride;
          out.insert(out.end(), from, from + row_bytes);
        }
      }
    }
    return out;
  }

  /// Runs a decode step of sequences of these lengths and a pass behind 20 rows of another one.
  Both run(const Case& c, bool mix) {
    std::mt19937 rng(11);
    std::vector<std::unique_ptr<WorkingCache>> caches;
    std::vector<std::unique_ptr<Retriever>> made;
    std::vector<DecodeRow> rows(kLengths.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      caches.push_back(cache(random_ids(rng, static_cast<std::size_t>(kLengths[i]))));
      made.push_back(c.retriever ? c.retriever(i) : std::move(*retrievers().make("dense")));
      rows[i].token_id = 500 + static_cast<std::int32_t>(i);
      rows[i].position = kLengths[i];
      rows[i].cache = caches[i].get();
      rows[i].retriever = made[i].get();
    }
    const auto prompt = cache(random_ids(rng, 20));
    const std::vector<std::int32_t> ids = random_ids(rng, c.pass_rows);
    const auto positions = positions_from(20, ids.size());
    const auto last = static_cast<std::int32_t>(ids.size()) - 1;
    Both out;
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = prompt.get();
    request.hook = c.hook;
    if (c.wants_logits) {
      out.logits.resize(static_cast<std::size_t>(config_.vocab_size));
      request.logit_rows = std::span(&last, 1);
      request.logits = out.logits.data();
    }
    DecodeBatch batch(*model_, static_cast<std::int32_t>(c.most));
    ForwardWorkspace workspace;
    if (mix) workspace.beside = &batch;
    Status stepped;
    {
      ForwardPass pass(*model_, request, workspace);
      if (mix) batch.begin(rows, true);
      while (!pass.done() && out.pass.ok() &&
             (!mix || c.pauses_behind < 0 || pass.layer() <= c.pauses_behind))
        out.pass = pass.step();
      out.mixed = batch.mixed();
      stepped = mix ? batch.end() : batch.step(rows);
      while (!pass.done() && out.pass.ok()) out.pass = pass.step();
    }
    EXPECT_TRUE(stepped.ok()) << stepped.to_string();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out.statuses.push_back(rows[i].status);
      out.decoded.emplace_back(rows[i].logits.begin(), rows[i].logits.end());
      out.rows.push_back(contents(*caches[i]));
    }
    if (out.pass.ok()) out.rows.push_back(contents(*prompt));
    return out;
  }
  void expect_as_apart(const Case& c, bool mixes = true) {
    const Both apart = run(c, false), together = run(c, true);
    EXPECT_EQ(together.mixed, mixes);
    EXPECT_FALSE(apart.mixed);
    for (std::size_t i = 0; i < apart.statuses.size(); ++i) {
      EXPECT_EQ(together.statuses[i].to_string(), apart.statuses[i].to_string()) << i;
      EXPECT_EQ(together.decoded[i], apart.decoded[i]) << i;
    }
    EXPECT_EQ(together.pass.to_string(), apart.pass.to_string());
    EXPECT_EQ(together.logits, apart.logits);
    EXPECT_EQ(together.rows, apart.rows);
  }

  static constexpr std::array<std::int32_t, 4> kLengths = {1, 16, 33, 90};
  const RandomModelFolder folder_;
  std::unique_ptr<Model> model_ = std::move(*load_model(folder_.path(), {.weights = GetParam()}));
  const ModelConfig& config_ = model_->config();
  PagePool pool_{{config_.num_kv_heads, config_.head_dim, ModelOptions().kv_dtype}, 0};
  ForwardWorkspace workspace_;
};

TEST_P(MixedStepsTest, BothHaveTheBitsThatTheyHaveApart) {
  expect_as_apart({});
  expect_as_apart({.wants_logits = false});
  expect_as_apart({.pass_rows = 1});
  expect_as_apart({.pass_rows = 300});  // more than one piece of a product
}

TEST_P(MixedStepsTest, HooksDropRowsOfTheirPassAlone) {
  for (const auto where : {Hook::Where::kProjection, Hook::Where::kAttention}) {
    for (const std::int32_t layer : {0, 1, 2}) {
      SCOPED_TRACE(layer);
      Hook hook;
      hook.drops = where;
      hook.layer = layer;
      expect_as_apart({.hook = &hook});
    }
  }
}

TEST_P(MixedStepsTest, AStepOutlivesThePassThatFails) {
  for (const auto where :
       {Hook::Where::kProjection, Hook::Where::kAttend, Hook::Where::kAttention}) {
    for (const std::int32_t layer : {0, 1, 2}) {
      SCOPED_TRACE(layer);
      Hook hook;
      hook.fails = where;
      hook.layer = layer;
      expect_as_apart({.hook = &hook}, layer > 0);
    }
  }
}

TEST_P(MixedStepsTest, EitherGoesOnWhereThePassPauses) {
  for (const std::int32_t layer : {0, 1}) expect_as_apart({.pauses_behind = layer});
}

TEST_P(MixedStepsTest, RetrieversAttendOnceInEachLayer) {
  for (const std::int32_t pauses : {-1, 0, 1}) {
    SCOPED_TRACE(pauses);
    std::vector<std::int32_t> layers;
    Case c;
    c.pauses_behind = pauses;
    c.retriever = [&](std::size_t i) -> std::unique_ptr<Retriever> {
      if (i != 1) return std::move(*retrievers().make("dense"));
      return std::make_unique<OwnRetriever>(layers);
    };
    expect_as_apart(c);
    EXPECT_EQ(layers, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2})) << "apart, then mixed";
  }
}

TEST_P(MixedStepsTest, ARowThatFailsConcernsNeitherThePassNorTheOthers) {
  for (const std::int32_t layer : {0, 2}) {
    std::vector<std::int32_t> layers;
    Case c;
    c.retriever = [&](std::size_t i) -> std::unique_ptr<Retriever> {
      if (i != 1) return std::move(*retrievers().make("dense"));
      return std::make_unique<OwnRetriever>(layers, layer);
    };
    expect_as_apart(c);
    EXPECT_EQ(run(c, true).statuses[1].code(), Code::kIo);
  }
}

TEST_P(MixedStepsTest, MoreRowsThanThereIsRoomForRunAlone) { expect_as_apart({.most = 3}, false); }

TEST_P(MixedStepsTest, APassOfAnotherModelTakesNobodyAlong) {
  std::mt19937 rng(3);
  const auto decoding = cache(random_ids(rng, 9)), other = cache(random_ids(rng, 5));
  const auto twin = model_->twin();
  const auto dense = std::move(*retrievers().make("dense"));
  DecodeBatch batch(*model_);
  ForwardWorkspace workspace;
  workspace.beside = &batch;
  std::vector<DecodeRow> rows(1);
  rows[0] = {.token_id = 3, .position = 9, .cache = decoding.get(), .retriever = dense.get()};
  const std::vector<std::int32_t> ids = {4, 5}, positions = {5, 6};
  ForwardRequest request{};
  request.token_ids = ids;
  request.positions = positions;
  request.cache = other.get();
  batch.begin(rows, true);
  ASSERT_TRUE(forward(*twin, request, workspace).ok());
  EXPECT_FALSE(batch.mixed());
  ASSERT_TRUE(batch.end().ok());
  EXPECT_EQ(decoding->num_rows(0), 10);
  // Between steps nobody waits.
  ASSERT_TRUE(forward(*model_, request, workspace).ok());
  EXPECT_FALSE(batch.mixed());
}

INSTANTIATE_TEST_SUITE_P(, MixedStepsTest,
                         ::testing::Values(WeightFormat::kF32, WeightFormat::kBF16,
                                           WeightFormat::kW8A8),
                         [](const auto& tested) {
                           return std::string(weight_format_name(tested.param));
                         });

}  // namespace
}  // namespace quire::testing
