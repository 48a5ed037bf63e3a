/// The draft's own KV of documents: kept at ingest, placed for a look-ahead, and not required where
/// it is gone.
#include <gtest/gtest.h>

#include <future>

#include "engine/draft/draft.h"
#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

class DraftDocumentsTest : public ::testing::Test {
 protected:
  DraftDocumentsTest()
      : tokenizer_(std::move(*load_tokenizer(model_.path()))),
        store_(open_test_store(folder_.path() / "store")) {
    for (const std::size_t n : {150u, 90u}) documents_.push_back(random_ids(rng_, n));
    question_ = random_ids(rng_, 40);
  }

  std::unique_ptr<Draft> load(Store* store) {
    DraftOptions options;
    options.path = model_.path().string();
    options.model.weights = WeightFormat::kF32;
    options.chunk_tokens = 64;
    options.store = store;
    auto draft = load_draft(options, tokenizer_);
    if (!draft.ok()) {
      ADD_FAILURE() << draft.status().to_string();
      std::abort();
    }
    return std::move(*draft);
  }
  static Result<SegmentHandle> keep(Draft& draft, const std::vector<std::int32_t>& ids,
                                    const std::string& tenant = "t") {
    std::promise<Result<SegmentHandle>> done;
    draft.keep({ids, tenant, {}, nullptr},
               [&done](Result<SegmentHandle> kept) { done.set_value(std::move(kept)); });
    return done.get_future().get();
  }
  /// Returns a request of BOS, the first `count` documents and the question.
  DraftRequest request(std::size_t count) const {
    DraftRequest r;
    r.prompt_ids = {*tokenizer_->bos_id()};
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<std::int64_t>(r.prompt_ids.size());
      r.prompt_ids.insert(r.prompt_ids.end(), documents_[i].begin(), documents_[i].end());
      r.documents.push_back({begin, static_cast<std::int64_t>(r.prompt_ids.size())});
    }
    r.prompt_ids.insert(r.prompt_ids.end(), question_.begin(), question_.end());
    r.max_tokens = 8;
    r.score_window = 20;
    r.tenant = "t";
    return r;
  }
  static std::shared_ptr<LookAhead> ask(Draft& draft, DraftRequest request) {
    auto done = std::make_shared<std::promise<void>>();
    auto calls = std::make_shared<std::atomic<int>>(0);
    request.on_progress = [done, calls] {
      if (calls->fetch_add(1) == 1) done->set_value();  // scores, then the answer
    };
    auto answer = draft.ask(std::move(request));
    done->get_future().wait();
    EXPECT_EQ(answer->reason(), "");
    return answer;
  }
  /// Returns the request without scores.
  static DraftRequest look_ahead(DraftRequest request) {
    request.score_window = 0;
    return request;
  }
  static std::shared_ptr<LookAhead> ask_once(Draft& draft, DraftRequest request) {
    std::promise<void> done;
    request.on_progress = [&done] { done.set_value(); };
    auto answer = draft.ask(std::move(request));
    done.get_future().wait();
    EXPECT_EQ(answer->reason(), "");
    return answer;
  }
  /// Commits as ingest does: the document names only the companion.
  void commit(const std::string& id, const std::vector<SegmentHandle>& segments) {
    DocumentManifest manifest;
    manifest.ns = "t";
    manifest.id = id;
    manifest.content_hash = "sha256:" + id;
    manifest.status = DocumentStatus::kReady;
    for (const SegmentHandle& s : segments) manifest.companions.push_back(s->key);
    const auto committed = store_->commit_document(manifest, "text", segments);
    EXPECT_TRUE(committed.ok()) << committed.status().to_string();
  }

  std::mt19937 rng_{71};
  TempFolder folder_;
  RandomModelFolder model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Store> store_;
  std::vector<std::vector<std::int32_t>> documents_;
  std::vector<std::int32_t> question_;
};

TEST_F(DraftDocumentsTest, ADocumentThatComesFirstReadsAsItsTokensDo) {
  auto plain = load(nullptr), keeping = load(store_.get());
  EXPECT_FALSE(plain->keeps_documents());
  EXPECT_EQ(plain->document_bytes_per_token(), 0);
  EXPECT_EQ(keep(*plain, documents_[0]).status().code(), Code::kUnimplemented);
  const auto tokens = ask(*plain, request(1));
  const auto segment = keep(*keeping, documents_[0]);
  ASSERT_TRUE(segment.ok()) << segment.status().to_string();
  EXPECT_EQ(static_cast<std::int64_t>((*segment)->value_bytes),
            150 * keeping->document_bytes_per_token());
  const auto hits = store_->stats().segment_hits;
  const auto kept = ask(*keeping, request(1));
  EXPECT_EQ(store_->stats().segment_hits, hits + 1);
  // The kept KV equals that of the prompt, so the bits are the same.
  EXPECT_EQ(kept->token_ids(), tokens->token_ids());
  EXPECT_EQ(kept->scores(), tokens->scores());
}

TEST_F(DraftDocumentsTest, LaterDocumentsAreReadWithoutThoseBeforeThem) {
  auto plain = load(nullptr), keeping = load(store_.get());
  const auto first = keep(*keeping, documents_[0]), second = keep(*keeping, documents_[1]);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto tokens = ask(*plain, request(2)), kept = ask(*keeping, request(2));
  EXPECT_NE(kept->scores(), tokens->scores());
  EXPECT_EQ(kept->scores().size(), tokens->scores().size());
}

TEST_F(DraftDocumentsTest, OfAKeptDocumentOnlyWhatStaysIsPlaced) {
  auto plain = load(nullptr), keeping = load(store_.get());
  const auto segment = keep(*keeping, documents_[0]);
  ASSERT_TRUE(segment.ok());
  const DraftRequest whole = request(1);
  const auto end = static_cast<std::int64_t>(whole.prompt_ids.size());
  // Keep the beginning of the first document, up to within its second block. The KV of these rows
  // saw no other text.
  DraftRequest front = look_ahead(whole);
  front.kept = {{0, 1 + 101}, {1 + 150, end}};
  const auto placed = ask_once(*keeping, front);
  EXPECT_EQ(placed->token_ids(), ask_once(*plain, front)->token_ids());
  EXPECT_NE(placed, ask_once(*keeping, look_ahead(whole)));
  // Two adjacent ranges that cover everything equal no ranges.
  DraftRequest all = look_ahead(whole);
  all.kept = {{0, 40}, {40, end}};
  EXPECT_EQ(ask_once(*keeping, all)->token_ids(),
            ask_once(*keeping, look_ahead(whole))->token_ids());
}

TEST_F(DraftDocumentsTest, StretchesOfSeveralBlocksAndDocumentsArePlacedWhereTheyStood) {
  auto keeping = load(store_.get());
  const auto one = keep(*keeping, documents_[0]), two = keep(*keeping, documents_[1]);
  ASSERT_TRUE(one.ok() && two.ok());
  DraftRequest few = look_ahead(request(2));
  const auto end = static_cast<std::int64_t>(few.prompt_ids.size());
  few.kept = {{0, 4}, {9, 12}, {60, 71}, {130, 140}, {151, 152}, {170, 200}, {241, end}};
  const auto hits = store_->stats().segment_hits;
  const auto first = ask_once(*keeping, few);
  EXPECT_EQ(store_->stats().segment_hits, hits + 2);
  EXPECT_FALSE(first->token_ids().empty());
  auto again = load(store_.get());
  EXPECT_EQ(ask_once(*again, few)->token_ids(), first->token_ids());
  // A lost segment is not an error; its tokens are read.
  ASSERT_TRUE(store_->discard_segment(*two).ok());
  auto missing = load(store_.get());
  EXPECT_EQ(ask_once(*missing, few)->reason(), "");
}

TEST_F(DraftDocumentsTest, WhatIsMissingIsReadAndKeepingTwiceKeepsOnce) {
  auto plain = load(nullptr), keeping = load(store_.get());
  const auto tokens = ask(*plain, request(2));
  EXPECT_EQ(ask(*keeping, request(2))->scores(), tokens->scores());
  const auto one = keep(*keeping, documents_[0]), again = keep(*keeping, documents_[0]),
             other = keep(*keeping, documents_[0], "another");
  ASSERT_TRUE(one.ok() && again.ok() && other.ok());
  EXPECT_EQ((*one)->id, (*again)->id);
  EXPECT_NE((*one)->key, (*other)->key);
  // A document for which only another tenant has KV is read.
  DraftRequest stranger = request(1);
  stranger.tenant = "third";
  EXPECT_EQ(ask(*keeping, stranger)->scores(), ask(*plain, request(1))->scores());
}

TEST_F(DraftDocumentsTest, SurvivesARestartAndGoesWithItsDocument) {
  std::vector<float> scores;
  {
    auto keeping = load(store_.get());
    const auto first = keep(*keeping, documents_[0]), second = keep(*keeping, documents_[1]);
    ASSERT_TRUE(first.ok() && second.ok());
    commit("d", {*first, *second});
    scores = ask(*keeping, request(2))->scores();
  }
  store_.reset();
  store_ = open_test_store(folder_.path() / "store");
  auto keeping = load(store_.get()), plain = load(nullptr);
  EXPECT_EQ(store_->stats().segments, 2u);
  EXPECT_EQ(ask(*keeping, request(2))->scores(), scores);
  ASSERT_TRUE(store_->delete_document("t", "d").ok());
  EXPECT_EQ(ask(*keeping, request(2))->scores(), ask(*plain, request(2))->scores());
  EXPECT_EQ(store_->stats().segments, 0u);
}

TEST_F(DraftDocumentsTest, AStoreWithoutRoomOrADamagedSegmentCostsTimeAlone) {
  FaultyStore faulty(store_);
  auto keeping = load(&faulty), plain = load(nullptr);
  faulty.refuse_writes = Status::exhausted("no room");
  EXPECT_EQ(keep(*keeping, documents_[0]).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(ask(*keeping, request(1))->scores(), ask(*plain, request(1))->scores());
  faulty.refuse_writes = Status();
  const auto segment = keep(*keeping, documents_[0]);
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(store_->discard_segment(*segment).ok());
  EXPECT_EQ(ask(*keeping, request(1))->scores(), ask(*plain, request(1))->scores());
}

TEST_F(DraftDocumentsTest, NobodyWaitsForADraftThatStops) {
  auto keeping = load(store_.get());
  std::atomic<int> told{0};
  for (int i = 0; i < 5; ++i)
    keeping->keep({random_ids(rng_, 200), "t", {}, nullptr},
                  [&](Result<SegmentHandle>) { told.fetch_add(1); });
  keeping->stop();
  EXPECT_EQ(told.load(), 5);
  EXPECT_EQ(keep(*keeping, documents_[0]).status().code(), Code::kUnavailable);
}

TEST_F(DraftDocumentsTest, IngestHandsItOutAndQueriesAreAnsweredWithAndWithoutIt) {
  const auto start = [&] {
    return make_test_engine(model_.path(), *store_, [&](EngineOptions& o) {
      o.draft_path = model_.path().string();
      o.draft_wait_ms = 600000;
      o.draft_document_kv = true;
    });
  };
  auto engine = start();
  EXPECT_GT(engine->info().draft_kv_bytes_per_token, 0);
  std::vector<Doc> docs;
  for (std::size_t i = 0; i < documents_.size(); ++i) {
    auto result = prefill_now(*engine, documents_[i]);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    ASSERT_TRUE(result->companion);
    EXPECT_NE(result->companion->key, result->key);
    DocumentManifest manifest;
    manifest.ns = "t";
    manifest.id = "d" + std::to_string(i);
    manifest.content_hash = "sha256:" + manifest.id;
    manifest.status = DocumentStatus::kReady;
    DocumentChunk chunk;
    chunk.byte_end = 4;
    chunk.block_tokens = static_cast<std::uint32_t>(
        engine->names().block_tokens_for(static_cast<std::int64_t>(documents_[i].size())));
    chunk.key = result->key;
    chunk.token_ids = documents_[i];
    manifest.chunks.push_back(chunk);
    manifest.companions.push_back(result->companion->key);
    const std::vector<SegmentHandle> segments = {result->segment, result->companion};
    ASSERT_TRUE(store_->commit_document(manifest, "text", segments).ok());
    docs.push_back({manifest.id, documents_[i], result->key});
  }
  const auto answer = [&](Engine& e) {
    QueryRequest r = make_request(e, docs, question_, "samkv");
    r.cache.compress = "speckv";
    r.cache.options = PlugOptions(std::map<std::string, std::string, std::less<>>{
        {"capacity", "60"}, {"lookahead", "8"}, {"boost", "1"}, {"drop_mode", "drop"}});
    Outcome o = run_query(e, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_GT(o.stats.lookahead_tokens, 0);
    EXPECT_FALSE(o.plan.fallback.has_value());
    return o;
  };
  const Outcome kept = answer(*engine);
  engine->stop(std::chrono::milliseconds(0));
  engine = start();
  EXPECT_EQ(answer(*engine).ids, kept.ids);
  // Without its KV the draft reads the documents.
  for (const Doc& d : docs) {
    const auto manifest = store_->get_document("t", d.id);
    ASSERT_TRUE(manifest.ok());
    for (const ContextKey& key : manifest->companions) {
      const auto segment = store_->peek_segment(key);
      ASSERT_TRUE(segment.has_value());
      ASSERT_TRUE(store_->discard_segment(*segment).ok());
    }
  }
  EXPECT_EQ(answer(*engine).plan.contexts.size(), 2u);
  engine->stop(std::chrono::milliseconds(0));
  EngineOptions without;
  without.model_path = model_.path().string();
  without.weights = "f32";
  without.working_cache_bytes = 1 << 20;
  without.draft_document_kv = true;
  EXPECT_EQ(create_engine(without, *store_).status().field(), "model.draft_document_kv");
}

}  // namespace
}  // namespace quire::testing
