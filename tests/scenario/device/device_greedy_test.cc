/// Greedy text of the embedded model, on the CPU and on an emulated device, under every strategy.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/device/device_compute.h"
#include "engine/engine_parts.h"
#include "engine/plan/strategy.h"
#include "tests/support/engine_harness.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire::testing {
namespace {

/// Returns the number of tokens; QUIRE_GREEDY_TOKENS overrides it, for example with 256.
std::int32_t greedy_tokens(std::int32_t otherwise) {
  const char* asked = std::getenv("QUIRE_GREEDY_TOKENS");
  return asked != nullptr && std::atoi(asked) > 0 ? std::atoi(asked) : otherwise;
}

/// The largest differences in bf16 between two backends: of log-probabilities, and of scores of
/// blocks relative to the largest. Inputs of products are rounded to eight bits, and sums made in
/// another order sometimes round differently. Each backend's logits therefore differ from those of
/// f32 by about 0.4 %, independently.
constexpr float kTolerance = 0.25f, kScoreTolerance = 0.02f;
/// The emulation gives the CPU's text. On hardware attention's queries and weights are rounded to
/// f16, so that tokens as likely within kTie (log) may change places.
#ifdef QUIRE_ON_HARDWARE
constexpr bool kSameText = false;
#else
constexpr bool kSameText = true;
#endif
constexpr float kTie = 0.01f;

class DeviceGreedyTest : public ::testing::Test {
 protected:
  struct Side {
    std::unique_ptr<Store> store;
    std::unique_ptr<Engine> engine;
    std::vector<Doc> docs;
  };
  ~DeviceGreedyTest() override {
    for (Side* s : {&cpu_, &device_}) {
      if (s->engine) s->engine->stop(std::chrono::milliseconds(0));
    }
  }
  void open(WeightFormat weights, DType kv_dtype) {
    const ModelOptions options{.weights = weights, .kv_dtype = kv_dtype};
    cpu_ = side("cpu", options, nullptr);
    device_ = side("device", options, make_device_compute(simt::make_emulated_ops()));
    question_ = (*load_tokenizer(demo_model()))
                    ->encode(" Question: Who is the mayor of Gearkbre? Answer:");
  }
  Side side(const std::string& name, const ModelOptions& options,
            std::shared_ptr<Compute> compute) {
    Side s;
    s.store = open_test_store(folder_.path() / name);
    const std::shared_ptr<const Tokenizer> tokenizer = std::move(*load_tokenizer(demo_model()));
    EngineParts parts{.model = std::move(*load_model(demo_model(), options, std::move(compute))),
                      .tokenizer = tokenizer,
                      .format = std::move(*PromptFormat::load(demo_model(), tokenizer))};
    EngineOptions engine_options;
    engine_options.model_path = demo_model();
    engine_options.working_cache_bytes = 64 << 20;
    engine_options.num_threads = 1;
    engine_options.prefix_cache_bytes = 0;
    engine_options.unseen_decode_ms = 1e9;  // steps take long here
    s.engine = std::move(*create_engine_from_parts(std::move(parts), engine_options, *s.store));
    for (const char* text :
         {"The country around Gearkbre is Paionia. Traders visit Gearkbre for tea. Its mayor is "
          "Pataus Jiley. An old map shows the place clearly. Winters are cold and summers are "
          "short. It stands on the river Glasteaa. The bridge was built again after a flood.",
          "Sergliville has 89000 inhabitants. Many families have lived here for centuries. "
          "Krurbreaine Reawick serves as mayor of the city. Its great market opens in April."}) {
      Doc d{"d" + std::to_string(s.docs.size()), tokenizer->encode(text), std::nullopt};
      d.key = ingest(*s.engine, *s.store, d.id, d.ids);
      s.docs.push_back(std::move(d));
    }
    return s;
  }
  /// Returns the answer; its first tokens are `forced`.
  Outcome ask(Side& s, const std::string& strategy, std::int32_t tokens,
              std::vector<std::int32_t> forced = {}) {
    QueryRequest r = make_request(*s.engine, s.docs, question_, strategy);
    r.cache.write = false;
    r.sampling.max_tokens = tokens;
    r.sampling.top_logprobs = 1;
    r.sampling.forced_tokens = std::move(forced);
    Outcome o = run_query(*s.engine, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids.size(), static_cast<std::size_t>(tokens));
    EXPECT_EQ(o.logprobs.size(), o.ids.size());
    return o;
  }

  TempFolder folder_;
  Side cpu_, device_;
  std::vector<std::int32_t> question_;
};

TEST_F(DeviceGreedyTest, TextIsTheCpusUnderEveryStrategy) {
  open(WeightFormat::kF32, DType::kF16);
  const std::int32_t tokens = greedy_tokens(16);
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    const Outcome device = ask(device_, std::string(strategy.name), tokens),
                  cpu = ask(cpu_, std::string(strategy.name), tokens);
    const auto [d, c] = std::ranges::mismatch(device.ids, cpu.ids);
    if (c == cpu.ids.end()) continue;
    EXPECT_FALSE(kSameText) << "another text from token " << c - cpu.ids.begin() << " on";
    // With these tokens before, how much likelier did each side find its own?
    const auto i = static_cast<std::size_t>(c - cpu.ids.begin());
    std::vector<std::int32_t> forced(cpu.ids.begin(), c);
    forced.push_back(*d);
    const float gap = cpu.logprobs[i].chosen.logprob - ask(cpu_, std::string(strategy.name),
                                                           static_cast<std::int32_t>(i) + 1, forced)
                                                           .logprobs[i]
                                                           .chosen.logprob;
    EXPECT_LE(gap, kTie) << "token " << i << " is " << *d << " on the device and " << *c
                         << " on the CPU, which finds its own likelier by that";
  }
}

/// Returns whether both plans kept and recomputed as much of every block. If not, a score at a
/// threshold decided differently; the scores themselves must agree.
bool same_plan(const Plan& a, const Plan& b) {
  bool same = true;
  float largest = 0, apart = 0;
  for (std::size_t c = 0; c < a.contexts.size(); ++c) {
    for (std::size_t i = 0; i < a.contexts[c].blocks.size(); ++i) {
      const PlannedBlock &x = a.contexts[c].blocks[i], &y = b.contexts[c].blocks[i];
      same = same && x.kept_layers == y.kept_layers && x.recomputed_tokens == y.recomputed_tokens;
      largest = std::max(largest, std::abs(x.score));
      apart = std::max(apart, std::abs(x.score - y.score));
    }
  }
  EXPECT_LE(apart, kScoreTolerance * largest);
  return same;
}

/// The device follows the CPU's text. It prefers another token only where both are equally likely
/// within the tolerance.
TEST_F(DeviceGreedyTest, InBf16AnotherTokenIsBestOnlyWhereBothAreAsLikely) {
  open(WeightFormat::kBF16, DType::kBF16);
  const std::int32_t tokens = greedy_tokens(24);
  std::size_t compared = 0, all = 0, others = 0;
  float apart = 0, likelier = 0;
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    const Outcome cpu = ask(cpu_, std::string(strategy.name), tokens),
                  device = ask(device_, std::string(strategy.name), tokens, cpu.ids);
    ASSERT_EQ(device.ids, cpu.ids);
    ASSERT_EQ(device.logprobs.size(), cpu.logprobs.size());
    if (!same_plan(cpu.plan, device.plan)) {
      std::printf("%s chose other blocks in bf16: its text is not compared\n",
                  std::string(strategy.name).c_str());
      EXPECT_FALSE(strategy.same_as_recompute);
      continue;
    }
    ++compared;
    for (std::size_t i = 0; i < cpu.logprobs.size(); ++i) {
      const TokenLogprobs &c = cpu.logprobs[i], &d = device.logprobs[i];
      const float gap = std::abs(d.chosen.logprob - c.chosen.logprob),
                  lead = d.top.front().logprob - d.chosen.logprob;
      EXPECT_LE(gap, kTolerance) << "token " << i;
      EXPECT_LE(lead, kTolerance) << "token " << i;
      apart = std::max(apart, gap);
      likelier = std::max(likelier, lead);
      others += d.top.front().token_id != c.chosen.token_id;
      ++all;
    }
  }
  EXPECT_GE(compared, strategies().size() / 2);
  std::printf(
      "%zu of %zu tokens would be others, at most %.4f likelier (log); the same token's "
      "log-probabilities are at most %.4f apart\n",
      others, all, likelier, apart);
}

}  // namespace
}  // namespace quire::testing
