// Evidence passes by its rule alone, and survives storage.
#include "fidelity/evidence/evidence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::TempFolder;

constexpr double kLimit = 0.9;

ProbeResult probe(std::size_t i) {
  ProbeResult p;
  p.kind = i % 2 == 0 ? ProbeKind::kQuote : ProbeKind::kContinuation;
  p.at_ms = static_cast<std::int64_t>(i);
  p.ns = "default";
  p.document = "d" + std::to_string(i);
  p.content_hash = "h";
  p.subject = "s" + std::to_string(i);
  p.contexts = 2 + static_cast<std::int64_t>(i % 4);
  p.corpus = 100;
  const double noise = 0.01 * static_cast<double>(i % 5);
  p.nll = 2 + noise;
  p.nll_without = 4 - noise;
  p.ttft_ms = 100;
  p.scores = {{"reuse", p.nll + 0.05 - noise, 0.95 + noise / 2, 0.02, 10},
              {"prophetkv", p.nll + 0.01, 0.97, 0.01, 25}};
  return p;
}

std::vector<ProbeResult> probes(std::size_t n,
                                const std::function<void(std::size_t, ProbeResult&)>& edit = {}) {
  std::vector<ProbeResult> out;
  for (std::size_t i = 0; i < n; ++i) {
    out.push_back(probe(i));
    if (edit) edit(i, out.back());
  }
  return out;
}

EvidenceVerdict verdict_of(const std::vector<ProbeResult>& from, double limit = kLimit) {
  const std::vector<std::string> candidates = {"reuse"};
  return judge_evidence(from, candidates, limit).at(0);
}

TEST(EvidenceRule, EnoughGoodProbesPass) {
  const EvidenceVerdict v = verdict_of(probes(kLeastProbes));
  EXPECT_TRUE(v.passed) << v.reason;
  EXPECT_EQ(v.probes, static_cast<std::int64_t>(kLeastProbes));
  EXPECT_NEAR(v.worth_nll.value, 1.96, 0.01);
  EXPECT_DOUBLE_EQ(v.ttft_ms, 10);
  EXPECT_DOUBLE_EQ(v.recompute_ttft_ms, 100);
  EXPECT_NE(v.reason.find(std::to_string(kLeastProbes)), std::string::npos) << v.reason;
}

TEST(EvidenceRule, TooFewProbesAreNoEvidence) {
  const EvidenceVerdict v = verdict_of(probes(kLeastProbes - 1));
  EXPECT_FALSE(v.passed);
  EXPECT_FALSE(v.enough);
  EXPECT_NE(v.reason.find(std::to_string(kLeastProbes)), std::string::npos) << v.reason;
  EXPECT_FALSE(verdict_of({}).passed);
  // Only probes with the candidate's own score count.
  const EvidenceVerdict other = verdict_of(probes(
      2 * kLeastProbes, [](std::size_t, ProbeResult& p) { p.scores.erase(p.scores.begin()); }));
  EXPECT_EQ(other.probes, 0);
  EXPECT_FALSE(other.passed);
}

TEST(EvidenceRule, ARepeatedTextCountsOnce) {
  const EvidenceVerdict v = verdict_of(probes(300, [](std::size_t i, ProbeResult& p) {
    p.subject = "s" + std::to_string(i % 12);
    p.document = "d" + std::to_string(i % 12);
  }));
  EXPECT_FALSE(v.passed);
  EXPECT_FALSE(v.enough);
  EXPECT_EQ(v.probes, 12);
  // The latest time counts.
  const EvidenceVerdict worse = verdict_of(
      probes(2 * kLeastProbes, [](std::size_t i, ProbeResult& p) {
        p.subject = "s" + std::to_string(i % kLeastProbes);
        if (i >= kLeastProbes) p.scores[0].agreement = 0.5;
      }));
  EXPECT_EQ(worse.probes, static_cast<std::int64_t>(kLeastProbes));
  EXPECT_DOUBLE_EQ(worse.agreement.value, 0.5);
}

TEST(EvidenceRule, PromptsOfOneContextShowNothing) {
  EvidenceVerdict v = verdict_of(probes(64, [](std::size_t i, ProbeResult& p) {
    if (i >= kLeastProbes - 1) p.contexts = 1;
  }));
  EXPECT_EQ(v.probes, static_cast<std::int64_t>(kLeastProbes - 1));
  EXPECT_FALSE(v.passed);
  v = verdict_of(probes(64));
  EXPECT_TRUE(v.passed) << v.reason;
  EXPECT_EQ(v.least_contexts, 2);
  EXPECT_EQ(v.most_contexts, 5);
  EXPECT_NE(v.reason.find("in prompts of 2 to 5 chunks"), std::string::npos) << v.reason;
}

TEST(EvidenceRule, FewDocumentsSayLittleOfOthers) {
  const auto of = [](std::size_t documents) {
    return probes(64, [documents](std::size_t i, ProbeResult& p) {
      p.document = "d" + std::to_string(i % documents);
    });
  };
  EvidenceVerdict v = verdict_of(of(kLeastDocuments));
  EXPECT_TRUE(v.passed) << v.reason;
  EXPECT_EQ(v.documents, kLeastDocuments);
  EXPECT_NE(v.reason.find("64 passages of 8 of"), std::string::npos) << v.reason;
  v = verdict_of(of(1));
  EXPECT_FALSE(v.passed);
  EXPECT_FALSE(v.enough);
  EXPECT_NE(v.reason.find("texts of 1 documents"), std::string::npos) << v.reason;
  // Equal ids in two namespaces are two documents; real queries are of none that is known.
  v = verdict_of(probes(64, [](std::size_t i, ProbeResult& p) {
    p.document = "d" + std::to_string(i % 4);
    p.ns = i % 8 < 4 ? "one" : "two";
    if (i % 8 == 7) p.kind = ProbeKind::kQuery;
  }));
  EXPECT_EQ(v.documents, 7);
  EXPECT_FALSE(v.passed);
}

TEST(Evidence, ProbesOfASmallerCorpusGo) {
  std::vector<ProbeResult> all = probes(
      64, [](std::size_t i, ProbeResult& p) { p.corpus = i < 60 ? 10 : 21; });
  EXPECT_EQ(drop_outgrown_probes(all, 0), 0u);
  EXPECT_EQ(drop_outgrown_probes(all, 20), 0u) << "half of today's documents were there";
  EXPECT_EQ(drop_outgrown_probes(all, 21), 60u);
  EXPECT_EQ(all.size(), 4u);
}

TEST(EvidenceRule, AModelThatMakesNothingOfTheDocumentsProvesNothing) {
  const EvidenceVerdict v = verdict_of(probes(
      64, [](std::size_t i, ProbeResult& p) { p.nll_without = p.nll + (i % 2 ? 0.1 : -0.1); }));
  EXPECT_FALSE(v.passed);
  EXPECT_NE(v.reason.find("do not make their own texts likelier"), std::string::npos) << v.reason;
}

TEST(EvidenceRule, LikelihoodAndAgreementBothCount) {
  // A tenth of 1.96 nats is the limit.
  EXPECT_TRUE(verdict_of(probes(64, [](std::size_t, ProbeResult& p) {
                p.scores[0].nll = p.nll + 0.19;
              })).passed);
  const EvidenceVerdict unlikely = verdict_of(
      probes(64, [](std::size_t, ProbeResult& p) { p.scores[0].nll = p.nll + 0.21; }));
  EXPECT_FALSE(unlikely.passed);
  EXPECT_NE(unlikely.reason.find("less likely"), std::string::npos) << unlikely.reason;
  const auto agreeing = [](double share) {
    return probes(64, [share](std::size_t, ProbeResult& p) { p.scores[0].agreement = share; });
  };
  EXPECT_TRUE(verdict_of(agreeing(0.9)).passed);
  EXPECT_FALSE(verdict_of(agreeing(0.89)).passed);
  EXPECT_TRUE(verdict_of(agreeing(0.89), 0.8).passed);
}

TEST(EvidenceRule, OneKindOfProbeDoesNotHideInTheMean) {
  const EvidenceVerdict v = verdict_of(probes(64, [](std::size_t, ProbeResult& p) {
    p.scores[0].nll = p.nll + (p.kind == ProbeKind::kContinuation ? 0.5 : -0.4);
  }));
  EXPECT_FALSE(v.passed);
  EXPECT_NE(v.reason.find("continuation"), std::string::npos) << v.reason;
}

const ReadBehind kBehind{ReadBehind::Kind::kLeadIn, sha256("lead-in")};

TEST(EvidenceRule, AVerdictIsOnDocumentsThatWereReadAlike) {
  const std::vector<std::string> candidates = {"reuse", "prophetkv"};
  // Half of them are behind the lead-in, and there alone `reuse` says other things.
  const auto mixed = probes(2 * kLeastProbes, [](std::size_t i, ProbeResult& p) {
    if (i >= kLeastProbes) return;
    p.read_behind = kBehind;
    p.scores[0].agreement = 0.5;
  });
  const auto verdicts = judge_evidence(mixed, candidates, kLimit);
  ASSERT_EQ(verdicts.size(), 4u);
  for (const EvidenceVerdict& v : verdicts) {
    EXPECT_EQ(v.probes, static_cast<std::int64_t>(kLeastProbes));
    EXPECT_EQ(v.passed, v.spec == "prophetkv" || v.read_behind == ReadBehind()) << v.reason;
  }
  // Many probes of the one kind make up for no probe of the other.
  const auto few = judge_evidence(probes(kLeastProbes + 5,
                                         [](std::size_t i, ProbeResult& p) {
                                           if (i < 5) p.read_behind = kBehind;
                                         }),
                                  candidates, kLimit);
  for (const EvidenceVerdict& v : few) EXPECT_EQ(v.passed, v.read_behind == ReadBehind());
}

TEST(Evidence, ManyProbesOfOneKindDriveOutNoOthers) {
  std::vector<ProbeResult> all = probes(kMostProbes + 20, [](std::size_t i, ProbeResult& p) {
    if (i < 4) p.read_behind = kBehind;
  });
  drop_old_probes(all, 1000);
  ASSERT_EQ(all.size(), kMostProbes + 4);
  EXPECT_EQ(std::ranges::count(all, kBehind, &ProbeResult::read_behind), 4);
  EXPECT_EQ(all[4].document, "d20");
}

TEST(Evidence, WhatDocumentsWereReadBehindSurvivesStorage) {
  std::vector<ProbeResult> kept = probes(3);
  EXPECT_EQ(evidence_json(kept).find("read_behind"), std::string::npos) << "nothing";
  kept[1].read_behind = kBehind;
  kept[2].read_behind = {ReadBehind::Kind::kRelated, {}};
  const std::string text = evidence_json(kept);
  const auto again = parse_evidence(text);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(*again, kept);
}

TEST(Evidence, OldProbesGo) {
  std::vector<ProbeResult> all = probes(kMostProbes + 10);
  drop_old_probes(all, 1000);
  ASSERT_EQ(all.size(), kMostProbes);
  EXPECT_EQ(all.front().document, "d10");
  drop_old_probes(all, kProbeLifeMs + 50);
  EXPECT_EQ(all.front().document, "d50");
  drop_old_probes(all, 2 * kProbeLifeMs);
  EXPECT_TRUE(all.empty());
}

TEST(Evidence, SurvivesStorageAndDamageCountsAsNone) {
  TempFolder folder;
  StoreOptions o;
  o.path = (folder.path() / "store").string();
  o.dram_bytes = 0;
  auto store = open_store(o);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  const std::string model(64, 'a');
  EXPECT_TRUE(load_evidence(**store, model).empty());
  const std::vector<ProbeResult> kept = probes(5);
  ASSERT_TRUE(save_evidence(**store, model, kept).ok());
  EXPECT_EQ(load_evidence(**store, model), kept);
  EXPECT_TRUE(load_evidence(**store, std::string(64, 'b')).empty());
  const std::string good = evidence_json(kept);
  // One that does not say whether its probes repeat each other is gathered anew.
  std::string before = good;
  before.replace(before.find("quire-evidence-3"), 16, "quire-evidence-2");
  EXPECT_FALSE(parse_evidence(before).ok());
  for (const char* part : {"\"format\"", "\"at_ms\"", "\"subject\"", "\"contexts\"", "\"corpus\"",
                           "\"scores\"", "\"agreement\"", "\"quote\""}) {
    std::string damaged = good;
    damaged.replace(damaged.find(part), 2, "\"_");
    EXPECT_FALSE(parse_evidence(damaged).ok()) << part;
    ASSERT_TRUE((*store)->put_meta("evidence/" + model, damaged).ok());
    EXPECT_TRUE(load_evidence(**store, model).empty()) << part;
  }
  for (std::size_t cut = 0; cut < good.size(); cut += 37)
    EXPECT_FALSE(parse_evidence(good.substr(0, cut)).ok()) << cut;
}

}  // namespace
}  // namespace quire
