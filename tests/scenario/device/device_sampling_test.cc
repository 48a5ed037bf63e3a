/// Tokens sampled on the device are those that the host would sample.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "engine/device/device_compute.h"
#include "engine/engine_parts.h"
#include "engine/sample/sampler.h"
#include "tests/support/engine_harness.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire::testing {
namespace {

using cuda::OpCode;

/// Returns logits with ties, and some that are never sampled.
std::vector<float> mixed_logits(std::size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t kind = rng() % 40;
    out[i] = i > 0 && kind == 0   ? std::numeric_limits<float>::quiet_NaN()
             : i > 0 && kind == 1 ? -std::numeric_limits<float>::infinity()
             : kind < 9           ? 2.0f
                                  : normal(rng);
  }
  return out;
}

/// Expects the host's token. Sums of weights have no order, so tokens are equal where exponentials
/// have the same bits, as under emulation. On hardware exponentials may differ in the last bits, so
/// a sample within a millionth of a token's border may fall on its other side.
void expect_drawn(std::int32_t token, const std::vector<float>& logits, const SampleRule& rule,
                  bool same_exponentials) {
  SampleScratch scratch;
  const std::int32_t host = sample_token(logits, rule, scratch);
  if (same_exponentials || token == host) {
    EXPECT_EQ(token, host) << "temperature " << rule.temperature << " top_k " << rule.top_k
                           << " top_p " << rule.top_p << " min_p " << rule.min_p << " uniform "
                           << rule.uniform;
    return;
  }
  bool at_border = false;
  for (const double u : {-1e-6, 1e-6}) {
    for (const float p : {-1e-6f, 0.0f, 1e-6f}) {
      SampleRule near = rule;
      near.uniform = std::clamp(rule.uniform + u, 0.0, 1 - 1e-12);
      if (rule.top_p < 1) near.top_p = std::clamp(rule.top_p + p, 1e-6f, 1.0f);
      at_border = at_border || sample_token(logits, near, scratch) == token;
    }
  }
  EXPECT_TRUE(at_border) << token << " for " << host;
}

TEST(DeviceSamplingTest, TokensAreThoseThatTheHostDraws) {
  const auto ops = simt::make_emulated_ops();
  const bool emulated = ops->description() == "an emulated device";
  const auto compute = make_device_compute(ops);
  std::mt19937 rng(3);
  for (const std::size_t vocab :
       {std::size_t{1}, std::size_t{7}, std::size_t{290}, std::size_t{1031}}) {
    std::vector<SampleRule> rules;
    for (const float temperature : {0.0f, 0.3f, 1.0f, 5.0f}) {
      for (const std::int32_t top_k : {0, 1, 20}) {
        for (const float top_p : {1.0f, 0.8f, 0.05f}) {
          for (const float min_p : {0.0f, 0.1f})
            rules.push_back({temperature, top_k, top_p, min_p,
                             std::uniform_real_distribution<double>(0, 1)(rng)});
        }
      }
    }
    rules.push_back({1, 0, 1, 0, 1 - 0x1.0p-53});  // after all tokens but the last
    rules.push_back({1, 0, 1, 0, 0});
    ComputeBuffer<float> logits(MemoryPlace::kPinned);
    ComputeBuffer<std::int32_t> tokens;
    ASSERT_TRUE(
        logits.reserve(compute->memory(), static_cast<std::int64_t>(rules.size() * vocab)).ok());
    ASSERT_TRUE(tokens.reserve(compute->memory(), static_cast<std::int64_t>(rules.size())).ok());
    std::vector<std::vector<float>> rows;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      rows.push_back(mixed_logits(vocab, rng));
      std::copy(rows[i].begin(), rows[i].end(), logits.data() + i * vocab);
    }
    ASSERT_TRUE(
        compute->sample(logits.data(), static_cast<std::int64_t>(vocab), rules, tokens.data())
            .ok());
    std::vector<std::int32_t> drawn(rules.size());
    ASSERT_TRUE(compute
                    ->read_bytes(tokens.data(),
                                 static_cast<std::int64_t>(drawn.size() * sizeof(std::int32_t)),
                                 drawn.data())
                    .ok());
    for (std::size_t i = 0; i < rules.size(); ++i)
      expect_drawn(drawn[i], rows[i], rules[i], emulated);
  }
}

TEST(DeviceSamplingTest, FewRowsAndManyDrawTheSameTokensAlsoWithinRecordedSteps) {
  // Few rows are shared by several blocks each, in scratch memory that grows; many are not. A GPU
  // shares none of so few logits as most cases have.
  const auto ops = simt::make_emulated_ops();
  const bool emulated = ops->description() == "an emulated device";
  const auto compute = make_device_compute(ops);
  constexpr std::size_t kMost = 129, kVocab = 130, kLargeVocab = 16500;
  std::mt19937 rng(8);
  std::vector<std::vector<float>> rows;
  std::vector<SampleRule> rules;
  ComputeBuffer<float> logits(MemoryPlace::kPinned);
  ComputeBuffer<std::int32_t> tokens;
  ASSERT_TRUE(logits.reserve(compute->memory(), 3 * kLargeVocab).ok());
  ASSERT_TRUE(tokens.reserve(compute->memory(), kMost).ok());
  for (std::size_t i = 0; i < kMost; ++i) {
    rules.push_back({i % 5 == 0 ? 0.0f : 0.9f, i % 3 == 0 ? 20 : 0, i % 2 == 0 ? 0.9f : 1.0f,
                     i % 7 == 0 ? 0.05f : 0.0f, std::uniform_real_distribution<double>(0, 1)(rng)});
  }
  for (const auto& [count, vocab] : {std::pair{std::size_t{2}, kVocab}, std::pair{kMost, kVocab},
                                     std::pair{std::size_t{3}, kLargeVocab}}) {
    const std::span<const SampleRule> some = std::span<const SampleRule>(rules).first(count);
    rows.clear();
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back(mixed_logits(vocab, rng));
      std::copy(rows[i].begin(), rows[i].end(), logits.data() + i * vocab);
    }
    for (int step = 0; step < 3; ++step) {  // the later ones as a graph
      SCOPED_TRACE(std::to_string(count) + " rows, step " + std::to_string(step));
      compute->begin_step(static_cast<std::int64_t>(count));
      ASSERT_TRUE(
          compute->sample(logits.data(), static_cast<std::int64_t>(vocab), some, tokens.data())
              .ok());
      ASSERT_TRUE(compute->end_step().ok());
      std::vector<std::int32_t> drawn(count);
      ASSERT_TRUE(
          compute->read_bytes(tokens.data(), static_cast<std::int64_t>(count * 4), drawn.data())
              .ok());
      for (std::size_t i = 0; i < count; ++i) expect_drawn(drawn[i], rows[i], rules[i], emulated);
    }
  }
  EXPECT_GE(ops->recordings(), 3);
  EXPECT_GE(ops->runs(OpCode::kStep), 3);
}

TEST(DeviceSamplingTest, NothingToDrawAndInfiniteLogitsAreAsOnTheHost) {
  const auto compute = make_device_compute(simt::make_emulated_ops());
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {kNan, kNan, kNan}, {-kInf, -kInf, -kInf}, {1, kInf, kInf}, {kNan, -kInf, -7}, {kNan, 3, 3}};
  std::vector<SampleRule> rules;
  ComputeBuffer<float> logits(MemoryPlace::kPinned);
  ComputeBuffer<std::int32_t> tokens;
  ASSERT_TRUE(logits.reserve(compute->memory(), 30).ok());
  ASSERT_TRUE(tokens.reserve(compute->memory(), 10).ok());
  for (std::size_t i = 0; i < 10; ++i) {
    std::copy(rows[i % 5].begin(), rows[i % 5].end(), logits.data() + i * 3);
    rules.push_back({i < 5 ? 0.0f : 0.7f, 0, 1, 0, 0.4});
  }
  for (const bool greedy : {true, false}) {
    const std::span<const SampleRule> some = std::span<const SampleRule>(rules).first(greedy ? 5
                                                                                             : 10);
    ASSERT_TRUE(compute->sample(logits.data(), 3, some, tokens.data()).ok());
    std::vector<std::int32_t> drawn(some.size());
    ASSERT_TRUE(
        compute
            ->read_bytes(tokens.data(), static_cast<std::int64_t>(drawn.size() * 4), drawn.data())
            .ok());
    SampleScratch scratch;
    for (std::size_t i = 0; i < drawn.size(); ++i)
      EXPECT_EQ(drawn[i], sample_token(rows[i % 5], rules[i], scratch)) << i;
  }
}

TEST(SamplerRuleTest, IsTheOneThatSampleTakesAndStaysUntilATokenIsTaken) {
  SamplingOptions o;
  o.temperature = 0.9f;
  o.seed = 5;
  Sampler asked(o), plain(o);
  std::mt19937 rng(1);
  SampleScratch scratch;
  for (int i = 0; i < 50; ++i) {
    const auto logits = mixed_logits(60, rng);
    const std::int32_t expected = plain.sample(logits);
    plain.record(expected);
    const auto rule = asked.next_rule();
    ASSERT_TRUE(rule.has_value());
    EXPECT_EQ(asked.next_rule()->uniform, rule->uniform);
    if (i % 3 == 0) {
      EXPECT_EQ(asked.sample(logits), expected);
    }
    EXPECT_EQ(sample_token(logits, *rule, scratch), expected);
    asked.record(expected);
  }
  o.logit_bias = {{3, 1.0f}};
  EXPECT_FALSE(Sampler(o).next_rule().has_value());
  o.logit_bias.clear();
  o.presence_penalty = 0.5f;
  EXPECT_FALSE(Sampler(o).next_rule().has_value());
}

/// Engines on both backends, over the same random model, in f32.
class DeviceSampledAnswerTest : public ::testing::Test {
 protected:
  struct Side {
    std::unique_ptr<Store> store;
    std::unique_ptr<Engine> engine;
  };
  ~DeviceSampledAnswerTest() override {
    for (Side* s : {&cpu_, &device_}) s->engine->stop(std::chrono::milliseconds(0));
  }
  Side side(const std::string& name, std::shared_ptr<Compute> compute) {
    Side s;
    s.store = open_test_store(folder_.path() / name);
    const std::shared_ptr<const Tokenizer> tokenizer = std::move(*load_tokenizer(model_.path()));
    EngineParts parts{.model = std::move(*load_model(
                          model_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32},
                          std::move(compute))),
                      .tokenizer = tokenizer,
                      .format = std::move(*PromptFormat::load(model_.path(), tokenizer))};
    EngineOptions options;
    options.model_path = model_.path();
    options.working_cache_bytes = 32 << 20;
    options.num_threads = 1;
    options.unseen_decode_ms = 1e9;  // steps take long here
    s.engine = std::move(*create_engine_from_parts(std::move(parts), options, *s.store));
    return s;
  }
  Outcome ask(Side& s, const std::function<void(SamplingOptions&)>& edit) {
    QueryRequest r = make_request(*s.engine, {}, {300, 400, 500, 301}, "recompute");
    r.sampling.max_tokens = 12;
    r.sampling.ignore_eos = true;
    edit(r.sampling);
    Outcome o = run_query(*s.engine, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids.size(), 12u);
    return o;
  }

  TempFolder folder_;
  RandomModelFolder model_;
  std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
  Side cpu_ = side("cpu", nullptr), device_ = side("device", make_device_compute(ops_));
};

TEST_F(DeviceSampledAnswerTest, AnswersAreTheCpusAndTheirTokensAreDrawnOnTheDevice) {
  struct Case {
    const char* name;
    std::function<void(SamplingOptions&)> edit;
    /// Number of launches. The first token comes from the prompt's last row, which the host reads.
    std::int64_t argmax, sample;
  };
  const Case cases[] = {
      {"greedy", [](SamplingOptions&) {}, 11, 0},
      {"sampled",
       [](SamplingOptions& o) {
         o.temperature = 0.9f;
         o.seed = 7;
       },
       0, 11},
      {"all",
       [](SamplingOptions& o) {
         o.temperature = 1.3f;
         o.seed = 8;
         o.top_k = 50;
         o.top_p = 0.9f;
         o.min_p = 0.01f;
       },
       0, 11},
      {"forced",
       [](SamplingOptions& o) {
         o.temperature = 0.9f;
         o.seed = 7;
         o.forced_tokens = {310, 311, 312};
       },
       0, 9},
      {"penalised",
       [](SamplingOptions& o) {
         o.temperature = 0.9f;
         o.seed = 7;
         o.frequency_penalty = 1;
       },
       0, 0},
      {"biased",
       [](SamplingOptions& o) {
         o.logit_bias = {{320, 5.0f}};
       },
       0, 0},
      {"told", [](SamplingOptions& o) { o.top_logprobs = 2; }, 0, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::int64_t argmax = ops_->runs(OpCode::kArgmax), sample = ops_->runs(OpCode::kSample);
    EXPECT_EQ(ask(device_, c.edit).ids, ask(cpu_, c.edit).ids);
    EXPECT_EQ(ops_->runs(OpCode::kArgmax) - argmax, c.argmax);
    EXPECT_EQ(ops_->runs(OpCode::kSample) - sample, c.sample);
  }
}

TEST_F(DeviceSampledAnswerTest, ABatchOfRowsThatAreDrawnAndRowsThatAreNotAnswersAsAlone) {
  const std::function<void(SamplingOptions&)> edits[] = {
      [](SamplingOptions&) {}, [](SamplingOptions& o) { o.top_logprobs = 1; },
      [](SamplingOptions& o) {
        o.temperature = 1;
        o.seed = 3;
      },
      [](SamplingOptions& o) { o.presence_penalty = 1; },
      [](SamplingOptions& o) {
        o.temperature = 1;
        o.seed = 4;
        o.top_p = 0.5f;
      }};
  std::vector<std::vector<std::int32_t>> alone;
  for (const auto& edit : edits) alone.push_back(ask(device_, edit).ids);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::size_t i = 0; i < std::size(edits); ++i) {
    QueryRequest r = make_request(*device_.engine, {}, {300, 400, 500, 301}, "recompute");
    r.id = "qry_" + std::to_string(i);
    r.sampling.max_tokens = 12;
    r.sampling.ignore_eos = true;
    edits[i](r.sampling);
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(device_.engine->query(std::move(r), sinks.back()).ok());
  }
  for (std::size_t i = 0; i < std::size(edits); ++i) EXPECT_EQ(sinks[i]->wait().ids, alone[i]) << i;
}

TEST_F(DeviceSampledAnswerTest, TheDevicesMemoryIsSharedOutFromWhatIsFree) {
  const auto& plan = device_.engine->info().device_memory;
  ASSERT_TRUE(plan.has_value());
  EXPECT_FALSE(cpu_.engine->info().device_memory.has_value());
  EXPECT_EQ(plan->cache_bytes, 32 << 20);
  EXPECT_EQ(plan->chunk_tokens, 4096);
  for (const std::int64_t mib : {450, 700, 2048}) {
    const auto ops = simt::make_emulated_ops({.memory_bytes = mib << 20});
    const std::shared_ptr<const Tokenizer> tokenizer = std::move(*load_tokenizer(model_.path()));
    EngineParts parts{.model = std::move(*load_model(
                          model_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32},
                          make_device_compute(ops))),
                      .tokenizer = tokenizer,
                      .format = std::move(*PromptFormat::load(model_.path(), tokenizer))};
    EngineOptions options;
    options.model_path = model_.path();
    options.num_threads = 1;
    auto engine = create_engine_from_parts(std::move(parts), options, *device_.store);
    if (mib == 450) {
      EXPECT_EQ(engine.code(), Code::kResourceExhausted)
          << "256 MiB stay in reserve, computing needs most of the rest";
      continue;
    }
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    const MemoryPlan& own = *(*engine)->info().device_memory;
    EXPECT_EQ(own.cache_bytes + own.compute_bytes + own.means_bytes + own.retrieved_bytes,
              own.left_bytes);
    EXPECT_LE(own.left_bytes, (mib - 256) << 20);
    EXPECT_GE(own.chunk_tokens, 64);
    (*engine)->stop(std::chrono::milliseconds(0));
  }
}

}  // namespace
}  // namespace quire::testing
