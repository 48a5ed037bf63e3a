// The service's own documents are probed while it is idle, and only then.
#include "server/service/evidence_collector.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "fidelity/answer_sink.h"
#include "fidelity/suite_reader.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using testing::TempFolder;

/// A store, an engine and a document service over the embedded model, with documents of its text.
class EvidenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions so;
    so.path = (folder_.path() / "store").string();
    so.dram_bytes = 64 << 20;
    store_ = std::move(*open_store(so));
    EngineOptions eo;
    eo.model_path = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
    eo.num_threads = 1;
    eo.weights = "f32";
    auto made = create_engine(eo, *store_);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    engine_ = std::move(*made);
    ingest_ = std::move(*create_ingest_service({}, *store_, *engine_));
    ASSERT_TRUE(ingest_->start().ok());
    const auto suite = read_suite(eo.model_path + "/encyclopedia.jsonl");
    ASSERT_TRUE(suite.ok());
    for (std::size_t r = 0; r < suite->records.size(); ++r) {
      const auto& from = *suite->records[r].documents;
      if (r > 0 && suite->records[r].documents == suite->records[r - 1].documents) continue;
      std::string& text = texts_.emplace_back();
      for (const SuiteDocument& part : from) text += part.text + "\n";
    }
    ASSERT_NO_FATAL_FAILURE(post(0, 12));
  }
  /// Posts texts of these numbers and waits until they are ready.
  void post(std::size_t first, std::size_t count) {
    ASSERT_LE(first + count, texts_.size());
    std::vector<DocumentInput> documents;
    for (std::size_t i = first; i < first + count; ++i) {
      DocumentInput d;
      d.id = "d" + std::to_string(i);
      d.text = texts_[i];
      documents.push_back(std::move(d));
    }
    BatchOptions options;
    options.chunking.max_tokens = 64;
    const auto all = ready() + static_cast<std::int64_t>(count);
    const auto job = ingest_->submit("default", std::move(documents), options);
    ASSERT_TRUE(job.ok()) << job.status().to_string();
    for (int i = 0; i < 12000 && ready() < all; ++i) std::this_thread::sleep_for(10ms);
    ASSERT_EQ(ready(), all);
  }
  void TearDown() override {
    if (ingest_) ingest_->stop();
    if (engine_) engine_->stop(0ms);
  }
  std::int64_t ready() const { return ingest_->stats().documents_ready; }

  std::unique_ptr<EvidenceCollector> start(
      std::vector<std::string> candidates,
      const std::function<void(EvidenceCollector::Options&)>& edit = {}) {
    EvidenceCollector::Options o;
    o.quiet = 0ms;
    o.look = 5ms;
    o.prompt_tokens = 160;
    o.seed = 7;
    if (edit) edit(o);
    return std::make_unique<EvidenceCollector>(*engine_, *ingest_, *store_, kModel,
                                               std::move(candidates), o,
                                               [this](std::vector<EvidenceVerdict> v) {
                                                 std::lock_guard lock(mu_);
                                                 verdicts_ = std::move(v);
                                                 changed_.notify_all();
                                               });
  }
  /// Waits until that many probes are known.
  std::vector<EvidenceVerdict> wait_for(std::int64_t probes) {
    std::unique_lock lock(mu_);
    const bool there = changed_.wait_for(
        lock, 60s, [&] { return !verdicts_.empty() && verdicts_.front().probes >= probes; });
    EXPECT_TRUE(there) << probes << " probes";
    return verdicts_;
  }

  const std::string kModel = std::string(64, 'a');
  TempFolder folder_;
  std::vector<std::string> texts_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<IngestService> ingest_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<EvidenceVerdict> verdicts_;
};

TEST_F(EvidenceTest, ProbesTellExactFromRandomAndAreKept) {
  auto collector = start({"exact", "reuse", "random:keep_ratio=0.05"});
  const auto verdicts = wait_for(static_cast<std::int64_t>(kLeastProbes));
  collector.reset();
  ASSERT_EQ(verdicts.size(), 3u);
  const auto &exact = verdicts[0], &reuse = verdicts[1], &random = verdicts[2];
  // An exact strategy gives recompute's own distributions.
  EXPECT_DOUBLE_EQ(exact.agreement.value, 1);
  EXPECT_LT(exact.kl.value, 1e-6);
  EXPECT_NEAR(exact.nll_difference.value, 0, 1e-6);
  EXPECT_GT(exact.worth_nll.low, 0.1) << "the model reads its documents";
  EXPECT_TRUE(exact.passed) << exact.reason;
  // Without nearly all of the documents their texts are far less likely.
  EXPECT_FALSE(random.passed);
  EXPECT_GT(random.nll_difference.low, reuse.nll_difference.high);
  EXPECT_LT(random.agreement.high, reuse.agreement.value);

  // The next start goes on from what is known.
  const auto kept = load_evidence(*store_, kModel);
  ASSERT_GE(kept.size(), kLeastProbes);
  EXPECT_TRUE(std::ranges::any_of(kept, [](auto& p) { return p.kind == ProbeKind::kQuote; }));
  EXPECT_TRUE(
      std::ranges::any_of(kept, [](auto& p) { return p.kind == ProbeKind::kContinuation; }));
  // A probe whose document is gone or changed counts no more.
  const std::string gone = kept.front().document;
  ASSERT_TRUE(ingest_->documents().remove("default", gone).ok());
  const auto left = std::ranges::count_if(kept, [&](auto& p) { return p.document != gone; });
  verdicts_.clear();
  auto again = start({"exact"});
  EXPECT_GE(wait_for(left)[0].probes, left);
  again.reset();
  for (const ProbeResult& p : load_evidence(*store_, kModel)) EXPECT_NE(p.document, gone);
}

TEST_F(EvidenceTest, ARealQueryServesAsAProbe) {
  auto collector = start({"reuse"});
  ASSERT_TRUE(collector->wants_query());
  const std::string ids[] = {"d0", "d1"};
  auto resolved = ingest_->resolve("default", ids, {});
  ASSERT_TRUE(resolved.ok());
  QueryRequest request;
  request.prefix_ids = *engine_->prompt_format().prefix();
  request.suffix_ids = *engine_->prompt_format().suffix("Who was it?");
  request.tenant = resolved->tenant;
  for (auto& d : resolved->documents)
    for (std::size_t i = 0; i < std::min<std::size_t>(2, d.contexts.size()); ++i)
      request.contexts.push_back(d.contexts[i]);
  collector->submit(request, {5, 6, 7});
  collector->submit(request, {});  // an empty answer proves nothing
  wait_for(8);
  collector.reset();
  const auto kept = load_evidence(*store_, kModel);
  EXPECT_EQ(std::ranges::count(kept, ProbeKind::kQuery, &ProbeResult::kind), 1);
}

TEST_F(EvidenceTest, EachProbeIsOfDocumentsThatWereReadAlike) {
  std::vector<DocumentInput> documents;
  for (int i = 0; i < 12; ++i) {
    DocumentInput d;
    d.id = "behind" + std::to_string(i);
    d.text = *ingest_->documents().content("default", "d" + std::to_string(i));
    documents.push_back(std::move(d));
  }
  BatchOptions options;
  options.chunking.max_tokens = 64;
  options.chunking.lead_in = true;
  ASSERT_TRUE(ingest_->submit("default", std::move(documents), options).ok());
  for (int i = 0; i < 12000 && ready() < 24; ++i) std::this_thread::sleep_for(10ms);
  ASSERT_EQ(ready(), 24);
  auto collector = start({"exact"});
  const std::string ids[] = {"d0", "behind0"};
  auto resolved = ingest_->resolve("default", ids, {});
  ASSERT_TRUE(resolved.ok());
  QueryRequest mixed;
  mixed.prefix_ids = *engine_->prompt_format().prefix();
  mixed.suffix_ids = *engine_->prompt_format().suffix("Who was it?");
  mixed.tenant = resolved->tenant;
  for (auto& d : resolved->documents) mixed.contexts.push_back(d.contexts[0]);
  collector->submit(mixed, {5, 6, 7});
  {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] {
      return verdicts_.size() == 2 && verdicts_[0].probes >= 3 && verdicts_[1].probes >= 3;
    }));
  }
  collector.reset();
  for (const ProbeResult& p : load_evidence(*store_, kModel)) {
    EXPECT_NE(p.kind, ProbeKind::kQuery) << "its documents were not read alike";
    EXPECT_EQ(p.read_behind.kind == ReadBehind::Kind::kLeadIn, p.document.starts_with("behind"));
  }
}

TEST_F(EvidenceTest, NoTextIsProbedTwiceAndEveryPromptHoldsSeveralContexts) {
  auto collector = start({"exact"});
  wait_for(40);
  collector.reset();
  std::set<std::string> subjects;
  for (const ProbeResult& p : load_evidence(*store_, kModel)) {
    EXPECT_TRUE(subjects.insert(p.subject).second) << p.document;
    EXPECT_GE(p.contexts, kLeastContexts);
    EXPECT_EQ(p.corpus, 12);
  }
  EXPECT_GE(subjects.size(), 40u);
}

TEST_F(EvidenceTest, OneDocumentIsNoEvidence) {
  for (int i = 1; i < 12; ++i)
    ASSERT_TRUE(ingest_->documents().remove("default", "d" + std::to_string(i)).ok());
  auto collector = start({"exact"}, [](auto& o) { o.prompt_tokens = 400; });
  const auto verdicts = wait_for(10);
  collector.reset();
  EXPECT_EQ(verdicts[0].documents, 1);
  EXPECT_FALSE(verdicts[0].enough);
}

TEST_F(EvidenceTest, ManyNewDocumentsEndTheEvidenceAlsoWhileTheServiceIsBusy) {
  auto collector = start({"exact"});
  wait_for(4);
  collector.reset();
  collector = start({"exact"}, [](auto& o) { o.quiet = 1h; });
  wait_for(4);
  ASSERT_NO_FATAL_FAILURE(post(12, 12));
  std::this_thread::sleep_for(50ms);
  {
    std::lock_guard lock(mu_);
    EXPECT_GE(verdicts_.front().probes, 4) << "half of the documents were there";
  }
  ASSERT_NO_FATAL_FAILURE(post(24, 1));
  {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return verdicts_.front().probes == 0; }));
  }
  collector.reset();
  EXPECT_TRUE(load_evidence(*store_, kModel).empty());
  collector = start({"exact"});
  wait_for(2);
  collector.reset();
  for (const ProbeResult& p : load_evidence(*store_, kModel)) EXPECT_EQ(p.corpus, 25);
}

TEST_F(EvidenceTest, WhatAStepThrowsEndsNothingButTheStep) {
  std::atomic<int> thrown = 0;
  auto collector = start({"reuse"}, [&thrown](auto& o) {
    o.others_idle = [&thrown] {
      if (thrown < 3) {
        ++thrown;
        throw std::runtime_error("out of everything");
      }
      return true;
    };
  });
  wait_for(1);
  collector.reset();
  EXPECT_EQ(thrown, 3);
}

TEST_F(EvidenceTest, ClientsComeFirst) {
  auto collector = start({"reuse"});
  wait_for(2);
  // While a client's query runs, nothing is probed.
  QueryRequest request;
  request.id = "client";
  request.prefix_ids = *engine_->prompt_format().prefix();
  request.suffix_ids = *engine_->prompt_format().suffix("Who was it?");
  request.sampling.max_tokens = 1500;
  request.sampling.ignore_eos = true;
  auto sink = std::make_shared<AnswerSink>(0);
  collector->yield();
  auto handle = engine_->query(request, sink);
  ASSERT_TRUE(handle.ok()) << handle.status().to_string();
  for (int i = 0; i < 1000 && engine_->load().queries_running != 1; ++i)
    std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(50ms);  // a probe that was ending has ended
  std::int64_t before = 0;
  {
    std::lock_guard lock(mu_);
    before = verdicts_.front().probes;
  }
  std::this_thread::sleep_for(200ms);
  const bool still_runs = engine_->load().queries_running == 1;
  {
    std::lock_guard lock(mu_);
    ASSERT_TRUE(still_runs) << "the client's answer was too short to see anything";
    EXPECT_EQ(verdicts_.front().probes, before);
  }
  handle->cancel();
  sink->wait(*handle, nullptr);
  wait_for(before + 1);
}

}  // namespace
}  // namespace quire
