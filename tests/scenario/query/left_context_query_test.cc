/// Contexts that attend to those before them: chunks of one document, from prefill to answer.
#include <gtest/gtest.h>

#include <future>
#include <mutex>

#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

class LeftContextQueryTest : public ::testing::Test {
 protected:
  LeftContextQueryTest() : real_(open_test_store(folder_.path() / "store")), store_(real_) {
    engine_ = make_test_engine(model_.path(), store_);
    std::vector<std::int32_t> left;
    for (std::size_t n : {70u, 64u, 100u}) {
      QueryContext c{.document_id = "doc",
                     .chunk = static_cast<std::int32_t>(chunks_.size()),
                     .token_ids = random_ids(rng_, n),
                     .left_context = left};
      left.insert(left.end(), c.token_ids.begin(), c.token_ids.end());
      chunks_.push_back(std::move(c));
    }
    question_ = random_ids(rng_, 9);
  }
  ~LeftContextQueryTest() override {
    store_.release();
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
  }
  /// Prefills the contexts and keeps them as one document.
  void store_chunks() {
    DocumentManifest m;
    m.ns = "t";
    m.id = "doc";
    m.content_hash = "sha256:doc";
    m.status = DocumentStatus::kReady;
    std::vector<SegmentHandle> segments;
    for (QueryContext& c : chunks_) {
      PrefillResult r = prefill(c);
      c.key = r.key;
      DocumentChunk chunk;
      chunk.byte_end = 4;
      chunk.block_tokens = 16;
      chunk.key = r.key;
      chunk.token_ids = c.token_ids;
      chunk.left_chunks = static_cast<std::uint32_t>(m.chunks.size());
      m.chunks.push_back(chunk);
      segments.push_back(std::move(r.segment));
    }
    const auto committed = store_.commit_document(m, "text", segments, {});
    ASSERT_TRUE(committed.ok()) << committed.status().to_string();
  }
  PrefillResult prefill(const QueryContext& c) {
    std::promise<Result<PrefillResult>> done;
    engine_->prefill({.token_ids = c.token_ids, .left_context = c.left_context, .tenant = "t"},
                     [&done](Result<PrefillResult> r) { done.set_value(std::move(r)); });
    auto result = done.get_future().get();
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? *result : PrefillResult{};
  }
  Outcome ask(const std::string& strategy, std::vector<QueryContext> contexts) {
    QueryRequest r = make_request(*engine_, {}, question_, strategy);
    r.contexts = std::move(contexts);
    Outcome o = run_query(*engine_, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    expect_fates_sum(o.plan);
    return o;
  }

  std::mt19937 rng_{23};
  TempFolder folder_;
  RandomModelFolder model_{7, 1024};
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
  std::vector<QueryContext> chunks_;
  std::vector<std::int32_t> question_;
};

TEST_F(LeftContextQueryTest, ReuseOfAWholeDocumentIsExact) {
  store_chunks();
  const Outcome recompute = ask("recompute", chunks_), reuse = ask("reuse", chunks_),
                exact = ask("exact", chunks_);
  EXPECT_EQ(reuse.ids, recompute.ids);
  EXPECT_EQ(exact.ids, recompute.ids);
  EXPECT_EQ(exact.plan.fates.reused - exact.stats.shared_tokens, 234)
      << "nothing is computed again";
  for (const PlannedContext& c : reuse.plan.contexts) EXPECT_EQ(c.miss, MissReason::kNone);
  // Behind another text the same KV is an approximation, and so it is in another order.
  std::vector<QueryContext> moved = {chunks_[1], chunks_[0], chunks_[2]};
  const auto documents_reused = [](const Outcome& o) {
    return o.plan.fates.reused - o.stats.shared_tokens;
  };
  EXPECT_EQ(documents_reused(ask("exact", moved)), 0);
  std::vector<QueryContext> gap = {chunks_[0], chunks_[2]};
  EXPECT_EQ(documents_reused(ask("exact", gap)), 70);
}

TEST_F(LeftContextQueryTest, EachLeftContextHasItsOwnKey) {
  store_chunks();
  QueryContext alone = chunks_[1];
  alone.left_context.clear();
  EXPECT_NE(prefill(alone).key, chunks_[1].key);
  EXPECT_FALSE(prefill(alone).key == chunks_[1].key);
  QueryContext changed = chunks_[2];
  changed.left_context[3] += 1;
  const PrefillResult other = prefill(changed);
  EXPECT_NE(other.key, chunks_[2].key);
  EXPECT_FALSE(other.already_cached);
  EXPECT_TRUE(prefill(chunks_[2]).already_cached);
  // The stored key is of another left context, so the query does not take its KV.
  changed.left_context[5] += 1;
  changed.key = chunks_[2].key;
  const Outcome o = ask("reuse", {chunks_[0], chunks_[1], changed});
  EXPECT_NE(o.plan.contexts[2].miss, MissReason::kNone);
}

TEST_F(LeftContextQueryTest, ALostChunkIsComputedBehindWhatItSaw) {
  store_chunks();
  const std::vector<std::int32_t> want = ask("reuse", chunks_).ids;
  const auto manifest = real_->get_document("t", "doc");
  ASSERT_TRUE(manifest.ok());
  for (std::size_t lost = 0; lost < 3; ++lost) {
    // As under a budget, the document stays and KV of it is evicted.
    DocumentManifest without = *manifest;
    without.chunks[lost].key = ContextKey{};
    ASSERT_TRUE(real_->commit_document(without, std::nullopt, {}).ok());
    ASSERT_TRUE(real_->commit_document(*manifest, std::nullopt, {}).ok());
    const Outcome o = ask("reuse", chunks_);
    EXPECT_EQ(o.plan.contexts[lost].miss, MissReason::kEvicted);
    EXPECT_EQ(o.ids, want) << lost;
  }
  // All at once and inline: nothing comes from the store.
  std::vector<QueryContext> fresh = chunks_;
  for (QueryContext& c : fresh) c.key.reset();
  QueryRequest r = make_request(*engine_, {}, question_, "reuse");
  r.tenant = "other";
  r.contexts = fresh;
  EXPECT_EQ(run_query(*engine_, r).ids, want);
}

TEST_F(LeftContextQueryTest, ChunksOfADocumentFollowEachOther) {
  // A long context keeps the engine busy until all others wait.
  const std::vector<std::int32_t> busy = random_ids(rng_, 900);
  std::mutex mu;
  std::vector<std::string> order;
  std::vector<std::future<void>> ends;
  const auto submit = [&](const std::string& name, std::vector<std::int32_t> ids,
                          std::vector<std::int32_t> left) {
    auto done = std::make_shared<std::promise<void>>();
    ends.push_back(done->get_future());
    engine_->prefill({.token_ids = std::move(ids), .left_context = std::move(left), .tenant = "t"},
                     [&, name, done](const Result<PrefillResult>& r) {
                       EXPECT_TRUE(r.ok()) << r.status().to_string();
                       {
                         const std::lock_guard lock(mu);
                         order.push_back(name);
                       }
                       done->set_value();
                     });
  };
  const auto b1 = random_ids(rng_, 40), b2 = random_ids(rng_, 40);
  submit("busy", busy, {});
  submit("a1", chunks_[0].token_ids, {});
  submit("b1", b1, {});
  submit("a2", chunks_[1].token_ids, chunks_[1].left_context);
  submit("b2", b2, b1);
  submit("a3", chunks_[2].token_ids, chunks_[2].left_context);
  for (auto& end : ends) end.wait();
  EXPECT_EQ(order, (std::vector<std::string>{"busy", "a1", "a2", "a3", "b1", "b2"}));
}

TEST_F(LeftContextQueryTest, MoreThanTheWindowIsRefused) {
  std::promise<Status> refused;
  engine_->prefill({.token_ids = random_ids(rng_, 500), .left_context = random_ids(rng_, 600)},
                   [&](const Result<PrefillResult>& r) { refused.set_value(r.status()); });
  const Status status = refused.get_future().get();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("1100 tokens"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace quire::testing
