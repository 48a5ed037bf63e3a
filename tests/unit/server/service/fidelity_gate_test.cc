// Tests each transition of the gate that `auto` obeys, and the checker that feeds it.
#include "server/service/fidelity_gate.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <mutex>
#include <thread>

#include "fidelity/strategy_spec.h"
#include "server/service/shadow.h"
#include "tests/support/stub_services.h"

namespace quire {
namespace {

const std::string kModel(64, 'a');

Certificate certificate(const std::string& strategy, bool passed, double ttft_ms = 10) {
  Certificate c;
  c.fingerprint_hex = kModel;
  c.strategy = c.spec = strategy;
  c.default_settings = true;
  c.passed = passed;
  c.max_drop = 0.02;
  c.ttft_ms = ttft_ms;
  c.recompute_ttft_ms = 100;
  return c;
}

/// The settings that `auto` may use now; empty: none.
std::string taken(const FidelityGate& gate) {
  const auto verdict = gate.verdict();
  return verdict.certified ? verdict.certified->spec : "";
}

TEST(FidelityGate, OnlyAPassingCertificateOfThisModelCounts) {
  FidelityGate gate(0.9);
  EXPECT_FALSE(gate.verdict().certified);
  EXPECT_TRUE(gate.verdict().note.empty());
  gate.set_certificates({certificate("reuse", false)}, kModel, 0.02);
  EXPECT_FALSE(gate.verdict().certified);
  gate.set_certificates({certificate("epic", true)}, std::string(64, 'b'), 0.02);
  EXPECT_FALSE(gate.verdict().certified);
  // The limit is stricter than the one the certificate was judged by.
  gate.set_certificates({certificate("epic", true)}, kModel, 0.01);
  EXPECT_FALSE(gate.verdict().certified);
  gate.set_certificates({certificate("of_another_build", true)}, kModel, 0.02);
  EXPECT_FALSE(gate.verdict().certified);
  gate.set_certificates({certificate("epic", true, 10), certificate("reuse", true, 5),
                         certificate("anchors", false, 1)},
                        kModel, 0.02);
  EXPECT_EQ(taken(gate), "reuse");  // the fastest that passed
}

TEST(FidelityGate, ACertificateHoldsForItsOwnSettings) {
  FidelityGate gate(0.9);
  Certificate settings = certificate("epic", true);
  settings.spec = "epic:recompute_ratio=0.3";
  settings.default_settings = false;
  gate.set_certificates({settings}, kModel, 0.02);
  const auto verdict = gate.verdict();
  ASSERT_TRUE(verdict.certified);
  EXPECT_EQ(verdict.certified->cache.strategy, "epic");
  EXPECT_EQ(verdict.certified->cache.recompute_ratio, 0.3);
  EXPECT_EQ(gate.info(0).at("auto_settings").as_string(), "epic:recompute_ratio=0.3");
}

TEST(FidelityGate, WhatAutoLeavesToTheRequestIsNotCertified) {
  FidelityGate gate(0.9);
  for (const char* setting : {"compress=streamingllm", "decode=quest", "decode=auto", "dedupe=off",
                              "prompt_compression=specpc"}) {
    Certificate c = certificate("reuse", true);
    c.spec = std::string("reuse:") + setting;
    ASSERT_TRUE(parse_strategy_spec(c.spec).ok()) << parse_strategy_spec(c.spec).status().message();
    gate.set_certificates({c}, kModel, 0.02);
    EXPECT_EQ(gate.verdict().certified.has_value(), false) << setting;
    EXPECT_FALSE(gate.is_quicker_behind(ReadBehind())) << setting;
  }
  for (const char* setting :
       {"compress=none", "compress=auto", "decode=dense", "dedupe=on", "positions=naive"}) {
    Certificate c = certificate("reuse", true);
    c.spec = std::string("reuse:") + setting;
    gate.set_certificates({c}, kModel, 0.02);
    EXPECT_TRUE(gate.verdict().certified) << setting;
  }
}

EvidenceVerdict evidence(const std::string& spec, bool passed, double ttft_ms = 10) {
  EvidenceVerdict v;
  v.spec = spec;
  v.enough = true;
  v.passed = passed;
  v.probes = 64;
  v.reason = passed ? "was checked on 64 passages" : "does not agree";
  v.ttft_ms = ttft_ms;
  v.recompute_ttft_ms = 100;
  return v;
}

TEST(FidelityGate, EvidenceMovesAutoAndMovesItBack) {
  FidelityGate gate(0.9);
  EXPECT_TRUE(gate.set_evidence({evidence("reuse", false), evidence("prophetkv", false)}).empty());
  EXPECT_EQ(taken(gate), "");
  EXPECT_EQ(gate.set_evidence({evidence("reuse", false), evidence("prophetkv", true)}).size(), 1u);
  EXPECT_EQ(taken(gate), "prophetkv");
  EXPECT_EQ(gate.info(0).at("evidence").as_array().size(), 2u);
  EXPECT_NE(std::string(gate.info(0).at("reason").as_string()).find("64 passages"),
            std::string::npos);
  // What is quickest of all that passed.
  EXPECT_EQ(gate.set_evidence({evidence("reuse", true, 5), evidence("prophetkv", true, 20)}).size(),
            1u);
  EXPECT_EQ(taken(gate), "reuse");
  EXPECT_TRUE(
      gate.set_evidence({evidence("reuse", true, 6), evidence("prophetkv", true, 20)}).empty());
  // Live answers that drift leave the next best.
  for (std::size_t i = 0; i < FidelityGate::kMinChecks; ++i) (void)gate.record("reuse", 0.0);
  EXPECT_EQ(taken(gate), "prophetkv");
  EXPECT_EQ(gate.set_evidence({evidence("reuse", false), evidence("prophetkv", false)}).size(), 1u);
  EXPECT_EQ(taken(gate), "");
}

TEST(FidelityGate, AFailedCertificateOutweighsEvidence) {
  FidelityGate gate(0.9);
  gate.set_certificates({certificate("reuse", false)}, kModel, 0.02);
  gate.set_evidence({evidence("reuse", true), evidence("prophetkv", true, 50)});
  EXPECT_EQ(taken(gate), "prophetkv");
  // One of another model says nothing.
  gate.set_certificates({certificate("reuse", false)}, std::string(64, 'b'), 0.02);
  EXPECT_EQ(taken(gate), "reuse");
}

const ReadBehind kAlone, kLeadIn{ReadBehind::Kind::kLeadIn, sha256("lead-in")},
    kOtherLeadIn{ReadBehind::Kind::kLeadIn, sha256("another")},
    kRelated{ReadBehind::Kind::kRelated, {}};

Certificate behind(const ReadBehind& text, Certificate c) {
  c.read_behind = text;
  return c;
}

std::string taken(const FidelityGate& gate, const std::vector<ReadBehind>& readings) {
  const auto verdict = gate.verdict(readings);
  return verdict.certified ? verdict.certified->spec : "";
}

TEST(FidelityGate, ACertificateHoldsForDocumentsThatWereReadAlike) {
  FidelityGate gate(0.9);
  gate.set_certificates({behind(kLeadIn, certificate("reuse", true)), certificate("reuse", false),
                         certificate("epic", true, 60)},
                        kModel, 0.02);
  EXPECT_EQ(taken(gate, {kAlone}), "epic");
  EXPECT_EQ(taken(gate, {}), "epic") << "as for documents that were read alone";
  EXPECT_EQ(taken(gate, {kLeadIn}), "reuse");
  EXPECT_EQ(taken(gate, {kOtherLeadIn}), "") << "the text of a lead-in may change";
  EXPECT_EQ(taken(gate, {kRelated}), "");
  EXPECT_NE(gate.verdict(std::vector{kLeadIn}).certified->evidence.find("behind the lead-in"),
            std::string::npos);
  const auto because = [&](std::vector<ReadBehind> readings) {
    return gate.verdict(readings).because;
  };
  EXPECT_EQ(because({kLeadIn}), "");
  EXPECT_NE(because({kOtherLeadIn}).find("another lead-in"), std::string::npos);
  EXPECT_NE(because({kRelated}).find("chunks of other documents"), std::string::npos);
}

TEST(FidelityGate, AMixtureNeedsWhatPassedForEachKind) {
  FidelityGate gate(0.9);
  gate.set_certificates(
      {behind(kLeadIn, certificate("reuse", true, 5)), certificate("prophetkv", true, 20)}, kModel,
      0.02);
  EXPECT_EQ(taken(gate, {kAlone, kLeadIn}), "");
  EXPECT_NE(gate.verdict(std::vector{kAlone, kLeadIn})
                .because.find("read alone, read behind the lead-in"),
            std::string::npos);
  gate.set_certificates(
      {behind(kLeadIn, certificate("reuse", true, 5)), certificate("prophetkv", true, 20),
       certificate("epic", true, 50), behind(kLeadIn, certificate("epic", true, 10)),
       behind(kLeadIn, certificate("prophetkv", true, 70))},
      kModel, 0.02);
  EXPECT_EQ(taken(gate, {kAlone}), "prophetkv");
  EXPECT_EQ(taken(gate, {kLeadIn}), "reuse");
  EXPECT_EQ(taken(gate, {kAlone, kLeadIn}), "epic") << "its slower kind is quicker";
  EXPECT_EQ(taken(gate, {kAlone, kLeadIn, kRelated}), "");
}

TEST(FidelityGate, EvidenceCountsForDocumentsLikeThoseOfItsProbes) {
  FidelityGate gate(0.9);
  EvidenceVerdict related = evidence("prophetkv", true), alone = evidence("reuse", true);
  related.read_behind = kRelated;
  EXPECT_EQ(gate.set_evidence({related, alone}), (std::vector{kAlone, kRelated}));
  EXPECT_EQ(taken(gate, {kAlone}), "reuse");
  EXPECT_EQ(taken(gate, {kRelated}), "prophetkv");
  EXPECT_EQ(taken(gate, {kLeadIn}), "");
  EXPECT_EQ(taken(gate, {kAlone, kRelated}), "");
  EXPECT_EQ(gate.set_evidence({alone}), std::vector{kRelated});
  // A certificate and evidence together speak of a mixture.
  gate.set_certificates({behind(kLeadIn, certificate("reuse", true))}, kModel, 0.02);
  EXPECT_EQ(taken(gate, {kAlone, kLeadIn}), "reuse");
}

TEST(FidelityGate, AFailedCertificateOutweighsEvidenceOfItsKindOnly) {
  FidelityGate gate(0.9);
  EvidenceVerdict lead_in = evidence("reuse", true);
  lead_in.read_behind = kLeadIn;
  gate.set_evidence({lead_in, evidence("reuse", true)});
  gate.set_certificates({certificate("reuse", false)}, kModel, 0.02);
  EXPECT_EQ(taken(gate, {kAlone}), "");
  EXPECT_EQ(taken(gate, {kLeadIn}), "reuse");
}

TEST(FidelityGate, ACertificateOfAChoiceOfBlocksHoldsForItsSettings) {
  FidelityGate gate(0.9);
  Certificate large = certificate("samkv", true, 5);
  large.choice = "block_tokens=64";
  const std::vector<Certificate> both = {large, certificate("reuse", true, 10)};
  gate.set_certificates(both, kModel, 0.02);
  EXPECT_EQ(taken(gate), "reuse");
  gate.set_certificates(both, kModel, 0.02, "block_tokens=64");
  EXPECT_EQ(taken(gate), "samkv");
  gate.set_certificates(both, kModel, 0.02, "block_tokens=16");
  EXPECT_EQ(taken(gate), "reuse") << "which keeps all blocks, whatever their size";
  EXPECT_EQ(gate.info(0).at("certificates").as_array()[0].at("choice").as_string(),
            "block_tokens=64");
  // One that failed under other settings says nothing against evidence.
  large.passed = false;
  gate.set_evidence({evidence("samkv", true)});
  gate.set_certificates({large}, kModel, 0.02);
  EXPECT_EQ(taken(gate), "samkv");
  gate.set_certificates({large}, kModel, 0.02, "block_tokens=64");
  EXPECT_EQ(taken(gate), "");
}

TEST(FidelityGate, NothingIsSaidOfReadingsWhereNothingPassedAtAll) {
  FidelityGate gate(0.9);
  gate.set_certificates({certificate("reuse", false)}, kModel, 0.02);
  EXPECT_EQ(gate.verdict(std::vector{kLeadIn}).because, "");
}

TEST(FidelityGate, TellsWhetherTheLeadInIsQuicker) {
  FidelityGate gate(0.9);
  EXPECT_FALSE(gate.is_quicker_behind(kLeadIn));
  EXPECT_FALSE(gate.any_lead_in_passed());
  gate.set_certificates({behind(kLeadIn, certificate("reuse", true, 10))}, kModel, 0.02);
  EXPECT_TRUE(gate.is_quicker_behind(kLeadIn)) << "else everything is exact";
  EXPECT_TRUE(gate.any_lead_in_passed());
  EXPECT_FALSE(gate.is_quicker_behind(kOtherLeadIn));
  gate.set_certificates({behind(kLeadIn, certificate("reuse", true, 10)),
                         certificate("prophetkv", true, 60), certificate("reuse", false, 5)},
                        kModel, 0.02);
  EXPECT_TRUE(gate.is_quicker_behind(kLeadIn));
  gate.set_certificates(
      {behind(kLeadIn, certificate("reuse", true, 10)),
       behind(kLeadIn, certificate("epic", false, 1)), certificate("prophetkv", true, 9)},
      kModel, 0.02);
  EXPECT_FALSE(gate.is_quicker_behind(kLeadIn));
  gate.set_certificates({behind(kLeadIn, certificate("reuse", true, 10))}, std::string(64, 'b'),
                        0.02);
  EXPECT_FALSE(gate.is_quicker_behind(kLeadIn)) << "of another model";
  EXPECT_FALSE(gate.any_lead_in_passed());
}

TEST(FidelityGate, InfoNamesTheChoiceForEachReading) {
  FidelityGate gate(0.9);
  gate.set_certificates({behind(kLeadIn, certificate("reuse", true))}, kModel, 0.02);
  const auto info = gate.info(0);
  EXPECT_TRUE(info.at("auto_strategy").is_null()) << "of documents that were read alone";
  const auto& choices = info.at("auto_choices").as_array();
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].at("read_behind").as_string(), "nothing");
  EXPECT_TRUE(choices[0].at("strategy").is_null());
  EXPECT_EQ(choices[1].at("read_behind").as_string(), "lead_in");
  EXPECT_EQ(choices[1].at("lead_in_sha256").as_string(), kLeadIn.lead_in.hex());
  EXPECT_EQ(choices[1].at("strategy").as_string(), "reuse");
  const auto& certificate = info.at("certificates").as_array()[0];
  EXPECT_EQ(certificate.at("read_behind").as_string(), "lead_in");
}

TEST(FidelityGate, FallsBackBelowTheLimitAndComesBackAboveIt) {
  FidelityGate gate(0.9);
  gate.set_certificates({certificate("reuse", true)}, kModel, 0.02);
  for (std::size_t i = 0; i + 1 < FidelityGate::kMinChecks; ++i)
    EXPECT_FALSE(gate.record("reuse", 0.0));
  EXPECT_EQ(taken(gate), "reuse");  // too few checks to judge
  EXPECT_TRUE(gate.record("reuse", 0.0));
  EXPECT_FALSE(gate.verdict().certified);
  EXPECT_NE(gate.verdict().note.find("shadow_min_agreement"), std::string::npos);
  EXPECT_TRUE(gate.in_fallback());
  EXPECT_EQ(gate.info(0.5).at("shadow").at("state").as_string(), "fallback");
  // Checks of another strategy do not count for this one.
  for (std::size_t i = 0; i < 2 * FidelityGate::kMinChecks; ++i)
    EXPECT_FALSE(gate.record("epic", 1.0));
  EXPECT_FALSE(gate.verdict().certified);
  // Only checks since the fallback count.
  for (std::size_t i = 0; i + 1 < FidelityGate::kMinChecks; ++i)
    EXPECT_FALSE(gate.record("reuse", 1.0));
  EXPECT_FALSE(gate.verdict().certified);
  EXPECT_TRUE(gate.record("reuse", 1.0));
  EXPECT_EQ(taken(gate), "reuse");
  EXPECT_FALSE(gate.in_fallback());
}

TEST(FidelityGate, TheAverageMovesWithTheWindow) {
  FidelityGate gate(0.9);
  gate.set_certificates({certificate("reuse", true)}, kModel, 0.02);
  for (std::size_t i = 0; i < 5 * FidelityGate::kWindow; ++i)
    EXPECT_FALSE(gate.record("reuse", 1.0));
  // Each 0.5 instead of 1 lowers the mean of 32 by 1/64, so the seventh brings it below 0.9.
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(gate.record("reuse", 0.5)) << i;
  EXPECT_TRUE(gate.record("reuse", 0.5));
  EXPECT_FALSE(gate.verdict().certified);
}

TEST(FidelityGate, InfoShowsCertificatesAndState) {
  FidelityGate gate(0.9);
  EXPECT_EQ(gate.info(0).at("shadow").at("state").as_string(), "off");
  EXPECT_NE(std::string(gate.info(0).at("reason").as_string()).find("--certify"),
            std::string::npos);
  gate.set_certificates({certificate("reuse", true)}, kModel, 0.02);
  gate.count_dropped(FidelityGate::Dropped::kBusy);
  (void)gate.record("reuse", 0.75);
  const auto info = gate.info(0.1);
  EXPECT_EQ(info.at("auto_strategy").as_string(), "reuse");
  EXPECT_EQ(info.at("certificates").as_array().size(), 1u);
  EXPECT_EQ(info.at("shadow").at("state").as_string(), "watching");
  EXPECT_EQ(info.at("shadow").at("dropped").as_int64(), 1);
  EXPECT_EQ(info.at("shadow").at("checks").as_int64(), 1);
}

/// Returns the full recomputation that the test sets, held or at once.
class LogitEngine final : public test::StubEngine {
 public:
  std::vector<std::vector<float>> logits;
  std::atomic<std::int64_t> running{0};
  std::atomic<bool> hold_next{false};
  std::mutex mu;
  QueryRequest last;

  Result<QueryHandle> query(QueryRequest request, std::shared_ptr<QuerySink> sink) override {
    {
      std::lock_guard lock(mu);
      last = request;
    }
    auto cancelled = std::make_shared<std::atomic<bool>>(false);
    if (hold_next.exchange(false)) {
      holder_ = std::jthread([cancelled, sink] {
        while (!cancelled->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        sink->on_done(Status::cancelled("cancelled"), {}, {}, FinishReason::kCancelled);
      });
      return QueryHandle(cancelled);
    }
    for (const auto& l : logits) sink->on_logits(l);
    sink->on_done({}, small_plan(), {}, FinishReason::kStop);
    return QueryHandle(cancelled);
  }
  EngineLoad load() const override { return {.queries_running = running}; }

 private:
  std::jthread holder_;
};

class ShadowTest : public ::testing::Test {
 protected:
  void start(std::chrono::milliseconds patience = std::chrono::seconds(20)) {
    ShadowChecker::Options o;
    o.max_queued = 2;
    o.patience = patience;
    o.look = std::chrono::milliseconds(1);
    o.seed = 1;
    checker_ = std::make_unique<ShadowChecker>(
        engine_, o, [this](ShadowChecker::Outcome outcome, const ShadowResult& r) {
          std::lock_guard lock(mu_);
          outcomes_.emplace_back(outcome, r);
          changed_.notify_all();
        });
  }
  ~ShadowTest() override {
    if (checker_) checker_->stop();
  }
  std::pair<ShadowChecker::Outcome, ShadowResult> outcome(std::size_t i) {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return outcomes_.size() > i; }));
    return i < outcomes_.size() ? outcomes_[i] : std::pair<ShadowChecker::Outcome, ShadowResult>();
  }
  /// Returns a sample of an answer that chose tokens 0 and 1.
  static std::shared_ptr<ShadowSample> sample() {
    auto s = std::make_shared<ShadowSample>();
    s->strategy = "reuse";
    s->request.id = "qry_1";
    s->request.cache.strategy = "auto";
    s->add(std::vector<float>{1, 0});
    s->add(std::vector<float>{0, 1});
    return s;
  }
  LogitEngine engine_;
  std::unique_ptr<ShadowChecker> checker_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::pair<ShadowChecker::Outcome, ShadowResult>> outcomes_;
};

TEST_F(ShadowTest, ComparesTokensAndDistributions) {
  engine_.logits = {{1, 0}, {1, 0}};
  start();
  checker_->submit(sample());
  const auto [what, result] = outcome(0);
  EXPECT_EQ(what, ShadowChecker::Outcome::kChecked);
  EXPECT_EQ(result.strategy, "reuse");
  EXPECT_DOUBLE_EQ(result.agreement, 0.5);
  // At the second position p = softmax(1, 0) and q = softmax(0, 1), so KL = (p0 - p1) * 1 =
  // tanh(1/2). The result is the mean over two positions.
  EXPECT_NEAR(result.kl, std::tanh(0.5) / 2, 1e-6);
  std::lock_guard lock(engine_.mu);
  EXPECT_EQ(engine_.last.cache.strategy, "recompute");
  EXPECT_FALSE(engine_.last.cache.write);
  EXPECT_EQ(engine_.last.sampling.forced_tokens, (std::vector<std::int32_t>{0, 1}));
}

TEST_F(ShadowTest, WaitsForAnIdleEngineAndGivesUpInTime) {
  engine_.logits = {{1, 0}, {0, 1}};
  engine_.running = 1;
  start();
  checker_->submit(sample());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  {
    std::lock_guard lock(mu_);
    EXPECT_TRUE(outcomes_.empty());
  }
  engine_.running = 0;
  EXPECT_EQ(outcome(0).first, ShadowChecker::Outcome::kChecked);
  EXPECT_DOUBLE_EQ(outcome(0).second.agreement, 1);
}

TEST_F(ShadowTest, ABusyEngineDropsSamples) {
  engine_.running = 1;
  start(std::chrono::milliseconds(30));
  checker_->submit(sample());
  EXPECT_EQ(outcome(0).first, ShadowChecker::Outcome::kDropped);
}

TEST_F(ShadowTest, AFullQueueDropsAtOnce) {
  engine_.running = 1;
  start();
  for (int i = 0; i < 3; ++i) checker_->submit(sample());
  EXPECT_EQ(outcome(0).first, ShadowChecker::Outcome::kDropped);
}

TEST_F(ShadowTest, MakesRoomForAClientsQuery) {
  engine_.hold_next = true;
  start();
  checker_->submit(sample());
  for (int i = 0; i < 20000 && engine_.hold_next; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 20000; ++i) {
    checker_->yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::lock_guard lock(mu_);
    if (!outcomes_.empty()) break;
  }
  EXPECT_EQ(outcome(0).first, ShadowChecker::Outcome::kDropped);
}

TEST_F(ShadowTest, DrawsItsShare) {
  start();
  int drawn = 0;
  for (int i = 0; i < 4000; ++i) drawn += checker_->draw(0.25) ? 1 : 0;
  EXPECT_NEAR(drawn, 1000, 120);
  EXPECT_FALSE(checker_->draw(0));
  EXPECT_TRUE(checker_->draw(1));
}

}  // namespace
}  // namespace quire
