// A hook can capture, keep stored rows, drop rows and write rows elsewhere.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>

#include "kernels/attention/attention.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;

class LambdaHook final : public ForwardHook {
 public:
  std::function<Status(LayerPass&)> projected, attended;
  Status after_projection(LayerPass& pass) override {
    return projected ? projected(pass) : Status();
  }
  Status after_attention(LayerPass& pass) override { return attended ? attended(pass) : Status(); }
};

class ForwardHookTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 3;
  static std::unique_ptr<Model> model(DType kv = DType::kF16) {
    const auto config = parse_model_config(
        tiny_config_json("\"num_hidden_layers\": 3", {"num_hidden_layers"}));
    return std::move(
        *make_random_model(*config, {.weights = WeightFormat::kF32, .kv_dtype = kv}, 21));
  }
  static std::vector<std::int32_t> ids(std::size_t n, std::uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<std::int32_t> out(n);
    for (auto& id : out) id = static_cast<std::int32_t>(rng() % 40);
    return out;
  }
  /// Returns K and V of one cache row as they are stored.
  static std::vector<float> row(const WorkingCache& cache, int layer, std::int64_t r) {
    const KvView v = cache.view(layer);
    std::vector<float> out;
    for (int kv = 0; kv < 2; ++kv) {
      for (int head = 0; head < v.num_kv_heads; ++head) {
        const auto* base = static_cast<const char*>(v.pages[r / kPageTokens]) + kv * v.kv_stride +
                           head * v.head_stride + (r % kPageTokens) * v.token_stride;
        for (int c = 0; c < v.head_dim; ++c) out.push_back(load_f32(base, v.dtype, c));
      }
    }
    return out;
  }
  /// Runs a pass over existing rows 0..n-1 with other tokens.
  Status overwrite(Runner& run, std::span<const std::int32_t> tokens, ForwardHook& hook,
                   std::span<const std::int32_t> wanted = {}) {
    std::vector<std::int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<std::int64_t> rows(positions.begin(), positions.end());
    logits_.assign(wanted.size() * static_cast<std::size_t>(run.vocab()), NAN);
    ForwardRequest request;
    request.token_ids = tokens;
    request.positions = positions;
    request.cache_rows = rows;
    request.cache = &run.cache();
    request.hook = &hook;
    request.logit_rows = wanted;
    request.logits = logits_.data();
    return forward(run.model(), request, run.workspace());
  }
  std::vector<float> logits_;
};

TEST_F(ForwardHookTest, AHookThatOnlyLooksChangesNothing) {
  Runner plain(model()), hooked(model());
  const auto text = ids(23, 1);
  LambdaHook hook;
  int projected = 0, attended = 0;
  hook.projected = [&](LayerPass& p) {
    EXPECT_EQ(p.layer, projected++);
    EXPECT_EQ(p.rows.size(), 23u);
    EXPECT_EQ(p.positions[22], 22);
    EXPECT_EQ(p.qkv.rows, 23);
    EXPECT_EQ(p.lse, nullptr);
    EXPECT_EQ((*p.cache_rows)[5], 5);
    return Status();
  };
  hook.attended = [&](LayerPass& p) {
    ++attended;
    for (int i = 0; i < 23 * 4; ++i) EXPECT_TRUE(std::isfinite(p.lse[i]));
    return Status();
  };
  EXPECT_EQ(plain.append(text, 3), hooked.append(text, 3, &hook));
  EXPECT_EQ(projected, kLayers);
  EXPECT_EQ(attended, kLayers);
}

TEST_F(ForwardHookTest, CapturedRawKvPlacedAgainHasTheSameBits) {
  for (DType kv : {DType::kF32, DType::kF16, DType::kBF16}) {
    Runner run(model(kv)), reuse(model(kv));
    const auto text = ids(19, 2);
    LambdaHook hook;
    std::map<int, std::vector<std::byte>> stored;
    hook.projected = [&](LayerPass& p) {
      auto& out = stored[p.layer];
      out.resize(static_cast<std::size_t>(2 * 2 * p.qkv.rows * 8) * dtype_bytes(kv));
      return kv_pack({.k = p.qkv.k,
                      .v = p.qkv.v,
                      .rows = p.qkv.rows,
                      .ldk = p.qkv.ld,
                      .ldv = p.qkv.ld,
                      .num_kv_heads = 2,
                      .head_dim = 8,
                      .dtype = kv,
                      .out = out.data()});
    };
    run.append(text, 1, &hook);
    const auto size = static_cast<std::int64_t>(dtype_bytes(kv));
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto positions = run.cache().positions(layer);
      ASSERT_TRUE(reuse.cache().add_rows(layer, positions).ok());
      const RawKvView raw{.data = stored[layer].data(),
                          .num_rows = 19,
                          .dtype = kv,
                          .head_stride = 2 * 19 * 8 * size,
                          .kv_stride = 19 * 8 * size,
                          .row_stride = 8 * size};
      ASSERT_TRUE(reuse.cache().place(layer, reuse.model().rope(), raw, 0).ok());
      for (int r = 0; r < 19; ++r)
        EXPECT_EQ(row(run.cache(), layer, r), row(reuse.cache(), layer, r));
    }
    const auto question = ids(7, 3);
    EXPECT_EQ(run.append(question, 7), reuse.append(question, 7));
  }
}

TEST_F(ForwardHookTest, RowsNotWrittenKeepWhatIsStored) {
  Runner run(model());
  run.append(ids(18, 4), 0);
  std::vector<std::vector<float>> before;
  for (int r = 0; r < 18; ++r) before.push_back(row(run.cache(), 1, r));
  LambdaHook hook;
  hook.projected = [](LayerPass& p) {
    if (p.layer == 1)
      for (std::size_t i = 0; i < p.rows.size(); ++i) (*p.write)[i] = p.rows[i] % 3 == 0;
    return Status();
  };
  ASSERT_TRUE(overwrite(run, ids(18, 5), hook).ok());
  for (int r = 0; r < 18; ++r) {
    if (r % 3 == 0)
      EXPECT_NE(row(run.cache(), 1, r), before[static_cast<std::size_t>(r)]) << r;
    else
      EXPECT_EQ(row(run.cache(), 1, r), before[static_cast<std::size_t>(r)]) << r;
  }
}

TEST_F(ForwardHookTest, DroppedRowsLeaveTheLayersAbove) {
  Runner run(model());
  run.append(ids(18, 4), 0);
  std::vector<float> kept = row(run.cache(), 2, 5), written = row(run.cache(), 1, 5);
  LambdaHook hook;
  hook.projected = [&](LayerPass& p) {
    for (std::size_t i = 0; i < p.rows.size(); ++i) {
      EXPECT_TRUE(p.layer < 2 || p.rows[i] % 2 == 0) << "odd rows were dropped in layer 1";
      EXPECT_EQ(p.positions[i], p.rows[i]);
      if (p.layer == 1) (*p.carry_on)[i] = p.rows[i] % 2 == 0;
    }
    EXPECT_EQ(p.rows.size(), p.layer < 2 ? 18u : 9u);
    return Status();
  };
  hook.attended = [&](LayerPass& p) {
    if (p.layer == 1) {
      for (std::size_t i = 0; i < p.rows.size(); ++i)
        EXPECT_EQ(std::isnan(p.lse[i * 4]), p.rows[i] % 2 == 1) << i;
    }
    return Status();
  };
  ASSERT_TRUE(overwrite(run, ids(18, 5), hook).ok());
  EXPECT_EQ(row(run.cache(), 2, 5), kept) << "never computed in layer 2";
  EXPECT_NE(row(run.cache(), 1, 5), written) << "written in layer 1 before it was dropped";
}

TEST_F(ForwardHookTest, DroppingRowsDoesNotChangeTheOthers) {
  Runner whole(model(DType::kF32)), some(model(DType::kF32));
  const auto text = ids(18, 6);
  const std::vector<std::int32_t> wanted = {2, 8, 16};
  // Layer 2 reads rows of all tokens, so it must keep what a plain prefill stored there.
  const std::vector<float> all = whole.append(text, 18);
  some.append(text, 0);
  for (bool late : {false, true}) {
    LambdaHook hook;
    const auto drop_odd = [](LayerPass& p) {
      for (std::size_t i = 0; i < p.rows.size(); ++i)
        if (p.rows[i] % 2) (*p.carry_on)[i] = 0;
      return Status();
    };
    (late ? hook.attended : hook.projected) = drop_odd;
    ASSERT_TRUE(overwrite(some, text, hook, wanted).ok());
    const auto vocab = static_cast<std::size_t>(some.vocab());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE(
          max_relative(std::span(logits_).subspan(i * vocab, vocab),
                       std::span(all).subspan(static_cast<std::size_t>(wanted[i]) * vocab, vocab)),
          1e-5);
    }
  }
}

TEST_F(ForwardHookTest, LseIsTheLogOfTheSum) {
  Runner run(model(DType::kF32));
  const auto text = ids(11, 7);
  LambdaHook hook;
  std::vector<float> q;
  hook.projected = [&](LayerPass& p) {
    if (p.layer == 0) {
      for (std::int64_t r = 0; r < p.qkv.rows; ++r)
        q.insert(q.end(), p.qkv.q + r * p.qkv.ld, p.qkv.q + r * p.qkv.ld + 32);
      return rope_rotate(run.model().rope(), {.x = q.data(),
                                              .out = q.data(),
                                              .positions = p.positions.data(),
                                              .rows = 11,
                                              .num_heads = 4,
                                              .ldx = 32,
                                              .ldo = 32});
    }
    return Status();
  };
  hook.attended = [&](LayerPass& p) {
    if (p.layer != 0) return Status();
    std::vector<float> out(11 * 32), lse(11 * 4);
    const Status s = attention_reference({.q = q.data(),
                                          .query_positions = p.positions.data(),
                                          .rows = 11,
                                          .ldq = 32,
                                          .num_heads = 4,
                                          .scale = 1.0f / std::sqrt(8.0f),
                                          .kv = p.cache->view(0),
                                          .out = out.data(),
                                          .ldo = 32,
                                          .lse = lse.data()});
    for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(p.lse[i], lse[i], 1e-4);
    return s;
  };
  run.append(text, 1, &hook);
}

TEST_F(ForwardHookTest, RowsCanBeSentElsewhereOrNowhere) {
  Runner run(model());
  const auto text = ids(6, 8);
  run.append(text, 0);
  for (int layer = 0; layer < kLayers; ++layer)
    ASSERT_TRUE(run.cache().add_rows(layer, std::vector<std::int32_t>{3}).ok());
  const std::vector<float> old = row(run.cache(), 1, 3);
  LambdaHook hook;
  hook.projected = [](LayerPass& p) {
    for (std::size_t i = 0; i < p.rows.size(); ++i) {
      if (p.rows[i] == 3) (*p.cache_rows)[i] = 6;  // second row of the same position
      if (p.rows[i] == 4) (*p.cache_rows)[i] = -1;
    }
    return Status();
  };
  ASSERT_TRUE(overwrite(run, text, hook).ok());
  EXPECT_EQ(row(run.cache(), 1, 3), old);
  hook.projected = [](LayerPass& p) {
    (*p.cache_rows)[0] = 2;
    return Status();
  };
  EXPECT_EQ(overwrite(run, text, hook).field(), "cache_rows") << "row 2 holds another position";
}

TEST_F(ForwardHookTest, MistakesOfAHookAreReported) {
  Runner run(model());
  const auto text = ids(6, 9);
  run.append(text, 0);
  const std::vector<std::int32_t> wanted = {5};
  LambdaHook hook;
  hook.projected = [](LayerPass& p) {
    p.write->pop_back();
    return Status();
  };
  EXPECT_EQ(overwrite(run, text, hook).field(), "hook");
  hook.projected = [](LayerPass& p) {
    p.carry_on->back() = 0;
    return Status();
  };
  EXPECT_EQ(overwrite(run, text, hook, wanted).field(), "logit_rows");
  EXPECT_TRUE(overwrite(run, text, hook).ok());
  hook.attended = [](LayerPass& p) {
    p.carry_on->back() = 1;
    return Status();
  };
  EXPECT_EQ(overwrite(run, text, hook).field(), "hook");
  hook.projected = [](LayerPass&) { return Status::cancelled("stop"); };
  EXPECT_EQ(overwrite(run, text, hook).code(), Code::kCancelled);
}

TEST_F(ForwardHookTest, LayersMayHoldDifferentRows) {
  // As in SamKV, a layer that holds fewer rows attends to those.
  Runner run(model());
  const auto text = ids(12, 10);
  run.append(text, 0);
  run.cache().truncate(1, 4);
  const auto question = ids(3, 11);
  std::vector<std::int32_t> positions = {12, 13, 14}, wanted = {2};
  std::vector<float> logits(static_cast<std::size_t>(run.vocab()), NAN);
  ForwardRequest request;
  request.token_ids = question;
  request.positions = positions;
  request.cache = &run.cache();
  request.logit_rows = wanted;
  request.logits = logits.data();
  ASSERT_TRUE(forward(run.model(), request, run.workspace()).ok());
  EXPECT_EQ(run.cache().num_rows(0), 15);
  EXPECT_EQ(run.cache().num_rows(1), 7);
  EXPECT_TRUE(run.cache().view(1).sorted);
  for (float x : logits) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace quire
