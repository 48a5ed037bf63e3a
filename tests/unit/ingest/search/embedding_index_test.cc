// Retrieval by embeddings works over a store and the fake engine, whose vectors count tokens.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <thread>
#include <tuple>

#include "ingest/embed/encoder_embedder.h"
#include "ingest/embed/engine_embedder.h"
#include "ingest/index/embedding_record.h"
#include "ingest/search/retrieval.h"
#include "tests/support/engine_harness.h"
#include "tests/support/fake_engine.h"
#include "tests/support/faulty_store.h"
#include "tests/support/scratch_files.h"

namespace quire {
namespace {

using quire::test::FakeEngine;
using quire::testing::open_test_store;
using quire::testing::TempFolder;
using Texts = std::vector<std::string>;

class EmbeddingIndexTest : public ::testing::Test {
 protected:
  void SetUp() override { begin(); }
  void TearDown() override { end(); }

  void begin(const std::string& fingerprint = "m-00000001") {
    store_ = open_test_store(folder_.path(), 0);
    engine_ = std::make_unique<FakeEngine>(*store_, fingerprint);
  }
  void end() {
    if (retrieval_) retrieval_->stop();
    retrieval_.reset();
    engine_.reset();
    store_.reset();
  }
  /// Commits a document of the given chunks, which are separated by bars.
  void commit(const std::string& id, const std::string& bars, const std::string& metadata = "{}",
              const std::string& ns = "n", const std::string& title = "") {
    DocumentManifest m;
    m.title = title;
    m.ns = ns;
    m.id = id;
    m.metadata_json = metadata;
    m.content_hash = "sha256:" + Sha256().update_field(bars).finish().hex();
    m.status = DocumentStatus::kReady;
    std::size_t begin = 0;
    while (begin <= bars.size()) {
      const std::size_t end = std::min(bars.find('|', begin), bars.size());
      DocumentChunk c;
      c.byte_begin = begin;
      c.byte_end = end;
      c.block_tokens = 16;
      c.token_ids = {1, 2};
      m.chunks.push_back(c);
      begin = end + 1;
    }
    const auto done = store_->commit_document(m, bars);
    ASSERT_TRUE(done.ok()) << done.status().to_string();
  }
  void start(const EmbeddingOptions& embeddings = {}, std::shared_ptr<Embedder> embedder = nullptr,
             RetrieveScorer scorer = RetrieveScorer::kBm25, const Fusion& fusion = {}) {
    RetrievalOptions options;
    options.embeddings = embeddings;
    options.scorer = scorer;
    options.fusion = fusion;
    retrieval_ = create_retrieval(options, *store_,
                                  embedder ? embedder : make_engine_embedder(*engine_));
    retrieval_->start();
    synchronize();
  }
  EmbeddingStats stats() const { return *retrieval_->stats().embeddings; }
  /// Returns once every document was processed.
  EmbeddingStats synchronize() {
    while (!retrieval_->ready() || stats().pending > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return stats();
  }
  static RetrieveRequest ask(const std::string& query, std::size_t k = 4,
                             RetrieveScorer scorer = RetrieveScorer::kEmbedding) {
    RetrieveRequest r;
    r.query = query;
    r.k = k;
    r.scorer = scorer;
    return r;
  }
  std::vector<Passage> search(const RetrieveRequest& request, const std::string& ns = "n") {
    auto found = retrieval_->search(ns, request);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : std::vector<Passage>();
  }
  Texts texts(const RetrieveRequest& request, const std::string& ns = "n") {
    Texts out;
    for (const auto& p : search(request, ns)) out.push_back(p.text);
    return out;
  }

  TempFolder folder_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Retrieval> retrieval_;
};

TEST_F(EmbeddingIndexTest, FindsChunksByTheirVectorsBestFirst) {
  commit("a", "red fish swim in the sea|green tea grows on hills");
  start();
  commit("b", "tea is green");
  EXPECT_EQ(synchronize().chunks, 3u);
  const auto found = search(ask("green tea grows on hills", 3));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].text, "green tea grows on hills");
  EXPECT_EQ(found[0].document_id, "a");
  EXPECT_EQ(found[0].chunk, 1);
  EXPECT_NEAR(found[0].score, 1, 1e-3);
  EXPECT_EQ(found[1].text, "tea is green");
  EXPECT_GT(found[0].score, found[1].score);
  EXPECT_GT(found[1].score, found[2].score);
}

/// Gives questions fewer values than texts, as a service does whose model was changed.
class UnevenEmbedder final : public Embedder {
 public:
  Digest fingerprint() const override { return sha256("uneven"); }
  Result<std::vector<std::vector<float>>> embed(std::span<const std::string> texts, EmbedRole role,
                                                const EmbedLimits&) override {
    const std::size_t values = role == EmbedRole::kQuestion ? 2 : 8;
    return std::vector(texts.size(), std::vector<float>(values, 0.5F));
  }
};

TEST_F(EmbeddingIndexTest, AQuestionWhoseVectorHasAnotherLengthIsRefused) {
  commit("a", "red fish");
  start({}, std::make_shared<UnevenEmbedder>());
  for (const auto scorer : {RetrieveScorer::kEmbedding, RetrieveScorer::kHybrid})
    EXPECT_EQ(retrieval_->search("n", ask("red fish", 4, scorer)).code(), Code::kIo);
  EXPECT_EQ(texts(ask("red fish", 4, RetrieveScorer::kBm25)), Texts{"red fish"});
}

TEST_F(EmbeddingIndexTest, ChangedDocumentsAreEmbeddedAgainAndDeletedOnesAreGone) {
  start();
  commit("a", "red fish");
  commit("b", "blue sky");
  synchronize();
  commit("a", "green tea");
  synchronize();
  EXPECT_EQ(texts(ask("green tea", 9)), (Texts{"green tea", "blue sky"}));
  ASSERT_TRUE(store_->delete_document("n", "a").ok());
  EXPECT_EQ(synchronize().documents, 1u);
  EXPECT_EQ(texts(ask("green tea", 9)), Texts{"blue sky"});
  EXPECT_EQ(store_->get_meta(embedding_record_name("n", "a")).code(), Code::kNotFound);
  EXPECT_TRUE(store_->get_meta(embedding_record_name("n", "b")).ok());
}

TEST_F(EmbeddingIndexTest, OtherMetadataComputesNothing) {
  start();
  commit("a", "red fish", R"({"year":1})");
  synchronize();
  const auto before = engine_->embeds();
  ASSERT_TRUE(store_
                  ->update_document("n", "a",
                                    [](DocumentManifest& m) {
                                      m.metadata_json = R"({"year":2})";
                                      return Status();
                                    })
                  .ok());
  synchronize();
  EXPECT_EQ(engine_->embeds(), before);
  RetrieveRequest r = ask("red fish");
  r.metadata = {{"year", "2"}};
  EXPECT_EQ(texts(r), Texts{"red fish"});
}

TEST_F(EmbeddingIndexTest, ARestartReadsWhatWasComputedAndAnotherModelComputesAgain) {
  commit("a", "red fish|green tea");
  commit("b", "blue sky");
  start();
  EXPECT_EQ(engine_->embeds(), 3);
  const auto before = search(ask("green tea", 3));
  end();
  begin();
  start();
  EXPECT_EQ(engine_->embeds(), 0);
  const auto after = search(ask("green tea", 3));
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].text, before[i].text);
    EXPECT_EQ(after[i].score, before[i].score);
  }
  end();
  begin("m-00000002");
  start();
  EXPECT_EQ(engine_->embeds(), 3);
  EXPECT_EQ(texts(ask("green tea", 1)), Texts{"green tea"});
}

/// Returns an embedder of the tiny encoder that tests/unit/engine/encoder compares with
/// transformers.
std::shared_ptr<Embedder> tiny_encoder(WeightFormat format) {
  auto encoder = TextEncoder::load(
      std::string(QUIRE_SOURCE_DIR) + "/tests/unit/engine/encoder/golden/mean_f32", format);
  EXPECT_TRUE(encoder.ok()) << encoder.status().to_string();
  return make_encoder_embedder(std::move(*encoder), 2);
}

TEST_F(EmbeddingIndexTest, AnEncoderEmbedsInsteadOfTheModelAndVectorsNeverMix) {
  const auto made_of = [this](const std::string& id) {
    const auto record = store_->get_meta(embedding_record_name("n", id));
    EXPECT_TRUE(record.ok());
    return decode_embeddings(*record)->made_of;
  };
  commit("a", "the red fish|green tea in a house");
  commit("b", "the dog sleeps on the river");
  start();
  const Digest of_model = made_of("a");
  EXPECT_EQ(engine_->embeds(), 3);
  end();
  begin();
  start({}, tiny_encoder(WeightFormat::kF32));
  const Digest of_encoder = made_of("a");
  EXPECT_NE(of_encoder, of_model);
  EXPECT_EQ(stats().chunks, 3u);
  const auto found = search(ask("the dog sleeps on the river", 3));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].document_id, "b");
  EXPECT_NEAR(found[0].score, 1, 1e-3);
  EXPECT_EQ(engine_->embeds(), 0) << "neither texts nor questions go to the model";
  end();
  begin();
  start({}, tiny_encoder(WeightFormat::kF32));
  EXPECT_EQ(made_of("a"), of_encoder);
  EXPECT_EQ(search(ask("the dog sleeps on the river", 3))[0].score, found[0].score);
  end();
  begin();
  start({}, tiny_encoder(WeightFormat::kBF16));
  EXPECT_NE(made_of("a"), of_encoder);
  EXPECT_EQ(stats().chunks, 3u);
}

TEST_F(EmbeddingIndexTest, ARequestWithoutAScorerTakesTheOptions) {
  commit("a", "red fish");
  commit("b", "green tea");
  start({}, nullptr, RetrieveScorer::kHybrid);
  EXPECT_EQ(retrieval_->default_scorer(), RetrieveScorer::kHybrid);
  const auto hybrid = search(ask("red", 2, RetrieveScorer::kHybrid));
  const auto found = search(ask("red", 2, RetrieveScorer::kAuto));
  ASSERT_EQ(found.size(), hybrid.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].score, hybrid[i].score);
}

TEST_F(EmbeddingIndexTest, WhatTheStoreDoesNotTakeIsFoundAndComputedOnce) {
  test::FaultyStore full(store_);
  full.refuse_derived = Status::exhausted("the store is full");
  RetrievalOptions options;
  options.embeddings = EmbeddingOptions();
  retrieval_ = create_retrieval(options, full, make_engine_embedder(*engine_));
  retrieval_->start();
  commit("a", "red fish");
  commit("b", "green tea");
  synchronize();
  EXPECT_EQ(engine_->embeds(), 2);
  EXPECT_EQ(texts(ask("green tea", 1)), Texts{"green tea"});
  EXPECT_EQ(stats().failed, 0u);
  commit("b", "blue sky");
  synchronize();
  EXPECT_EQ(texts(ask("blue sky", 1)), Texts{"blue sky"});
  retrieval_->stop();
  retrieval_.reset();
  start();
  EXPECT_EQ(stats().chunks, 2u) << "a restart computes them again";
}

TEST_F(EmbeddingIndexTest, ADamagedRecordIsComputedAgain) {
  commit("a", "red fish");
  start();
  end();
  begin();
  ASSERT_TRUE(store_->put_meta(embedding_record_name("n", "a"), "QEB1 nonsense").ok());
  start();
  EXPECT_EQ(engine_->embeds(), 1);
  EXPECT_EQ(texts(ask("red fish")), Texts{"red fish"});
}

TEST_F(EmbeddingIndexTest, RecordsOfDocumentsDeletedWhileEmbeddingsAreOffGoToo) {
  commit("a", "red fish");
  start();
  end();
  begin();
  retrieval_ = create_retrieval({}, *store_, nullptr);
  retrieval_->start();
  while (!retrieval_->ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(store_->delete_document("n", "a").ok());
  // A search applies changes first.
  EXPECT_TRUE(texts(ask("red", 4, RetrieveScorer::kBm25)).empty());
  EXPECT_EQ(store_->get_meta(embedding_record_name("n", "a")).code(), Code::kNotFound);
}

TEST_F(EmbeddingIndexTest, KeepsToIdsMetadataAndNamespace) {
  start();
  commit("a", "red one", R"({"year":2025})");
  commit("b", "red two", R"({"year":2024})");
  commit("c", "red three", R"({"year":2025})", "other");
  synchronize();
  EXPECT_EQ(texts(ask("red", 9)).size(), 2u);
  EXPECT_EQ(texts(ask("red", 9), "other"), Texts{"red three"});
  EXPECT_TRUE(texts(ask("red", 9), "nobody").empty());
  RetrieveRequest r = ask("red", 9);
  r.metadata = {{"year", "2025"}};
  EXPECT_EQ(texts(r), Texts{"red one"});
  r = ask("red", 9);
  r.document_ids = {"b", "c"};
  EXPECT_EQ(texts(r), Texts{"red two"});
}

TEST_F(EmbeddingIndexTest, DocumentsAreFoundOnceByTheirBestChunk) {
  start();
  std::string many = "red fish";
  for (int i = 0; i < 120; ++i) many += "|red fish";
  commit("a", many);
  commit("b", "red fish swim");
  synchronize();
  RetrieveRequest r = ask("red fish", 2);
  r.unit = RetrieveUnit::kDocument;
  const auto found = search(r);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].document_id, "a");
  EXPECT_EQ(found[0].text, many);
  EXPECT_EQ(found[0].chunk, 0);
  EXPECT_EQ(found[1].document_id, "b");
}

TEST_F(EmbeddingIndexTest, ALargeNamespaceIsSearchedThroughListsAndShrinksAgain) {
  start({.max_bytes = 0, .exact_vectors = 50});
  for (int i = 0; i < 60; ++i)
    commit("d" + std::to_string(i), "text number " + std::to_string(i * 7919) + " of many");
  EmbeddingStats now = synchronize();
  EXPECT_EQ(now.chunks, 60u);
  EXPECT_FALSE(now.exact);
  EXPECT_EQ(texts(ask("text number 79190 of many", 1)), Texts{"text number 79190 of many"});
  for (int i = 0; i < 60; ++i)
    ASSERT_TRUE(store_->delete_document("n", "d" + std::to_string(i)).ok());
  now = synchronize();
  EXPECT_EQ(now.chunks, 0u);
  EXPECT_TRUE(now.exact);
}

TEST_F(EmbeddingIndexTest, ListsStayOverARestartAndAreMadeAnewWhenMuchIsGone) {
  const EmbeddingOptions options{.max_bytes = 0, .exact_vectors = 50};
  const auto text = [](int i) { return "text number " + std::to_string(i * 7919) + " of many"; };
  const auto erase = [&](int first, int last) {
    for (int i = first; i < last; ++i)
      ASSERT_TRUE(store_->delete_document("n", "d" + std::to_string(i)).ok());
  };
  start(options);
  for (int i = 0; i < 60; ++i) commit("d" + std::to_string(i), text(i));
  EXPECT_FALSE(synchronize().exact);
  erase(40, 60);
  synchronize();
  end();
  begin();
  start(options);
  // Forty vectors would not be put into lists.
  EXPECT_EQ(synchronize().chunks, 40u);
  EXPECT_FALSE(stats().exact);
  EXPECT_EQ(texts(ask(text(7), 1)), Texts{text(7)});
  erase(8, 40);
  synchronize();
  commit("more", text(100));
  EXPECT_TRUE(synchronize().exact);
  EXPECT_EQ(texts(ask(text(100), 1)), Texts{text(100)});
  const auto lists = store_->get_meta(embedding_lists_name("n"));
  ASSERT_TRUE(lists.ok());
  EXPECT_EQ(decode_embeddings(*lists)->num_chunks(), 0u);
}

TEST_F(EmbeddingIndexTest, ListsOfAnotherEmbedderOrDamagedOnesDoNotCount) {
  const EmbeddingOptions options{.max_bytes = 0, .exact_vectors = 50};
  start(options);
  for (int i = 0; i < 60; ++i) commit("d" + std::to_string(i), "text " + std::to_string(i));
  synchronize();
  for (int i = 40; i < 60; ++i)
    ASSERT_TRUE(store_->delete_document("n", "d" + std::to_string(i)).ok());
  synchronize();
  end();
  begin("m-00000002");
  start(options);
  EXPECT_TRUE(synchronize().exact);
  EXPECT_EQ(stats().chunks, 40u);
  ASSERT_TRUE(store_->put_meta(embedding_lists_name("n"), "QEB1 and no more").ok());
  end();
  begin("m-00000002");
  start(options);
  EXPECT_TRUE(synchronize().exact);
  EXPECT_EQ(stats().chunks, 40u);
}

TEST_F(EmbeddingIndexTest, MemoryThatIsFullLeavesDocumentsOutAndSaysSo) {
  // room for one vector of 2,048 bytes
  start({.max_bytes = 3000, .max_disk_bytes = 0, .exact_vectors = 100});
  commit("a", "red fish");
  commit("b", "blue sky");
  const EmbeddingStats now = synchronize();
  EXPECT_EQ(now.documents, 1u);
  EXPECT_EQ(now.left_out, 1u);
  EXPECT_EQ(texts(ask("red fish", 9)).size(), 1u);
  EXPECT_EQ(texts(ask("fish sky", 9, RetrieveScorer::kBm25)).size(), 2u);
}

TEST_F(EmbeddingIndexTest, PastItsMemoryVectorsLieOnDiskAndFindTheSame) {
  const auto text = [](int i) {
    return "text number " + std::to_string(i * 7919) + " of many|about " + std::to_string(i % 7);
  };
  struct Outcome {
    std::vector<std::tuple<std::string, std::int32_t, double>> hits;
    std::int64_t memory = 0, disk = 0;
    std::uint64_t left_out = 0;
  };
  const auto look = [&](Outcome& out) {
    for (int q = 0; q < 8; ++q) {
      RetrieveRequest r = ask(text(q * 11), 12);
      if (q % 3 == 1) r.metadata = {{"year", "1"}};
      if (q % 3 == 2) r.unit = RetrieveUnit::kDocument;
      for (const Passage& p : search(r)) out.hits.emplace_back(p.document_id, p.chunk, p.score);
    }
    const EmbeddingStats now = stats();
    out.memory = std::max(out.memory, now.memory_bytes);
    out.disk = std::max(out.disk, now.disk_bytes);
    out.left_out += now.left_out;
  };
  const auto outcome = [&](std::int64_t max_bytes, std::int64_t exact) {
    Outcome out;
    end();
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      std::filesystem::remove_all(entry);
    begin();
    for (int i = 0; i < 80; ++i)
      commit("d" + std::to_string(i), text(i), i % 4 == 0 ? R"({"year":1})" : "{}");
    start({.max_bytes = max_bytes, .exact_vectors = exact});
    look(out);
    for (int i = 0; i < 80; i += 4) {
      const std::string id = "d" + std::to_string(i);
      if (i % 8 == 0)
        EXPECT_TRUE(store_->delete_document("n", id).ok());
      else
        commit(id, text(i + 200), R"({"year":1})");
      synchronize();  // so that changes are entered in this order
    }
    look(out);
    return out;
  };
  for (const std::int64_t exact : {1000, 60}) {
    const Outcome memory = outcome(0, exact);
    // A fifth of it is little more than entries and centres need.
    const std::int64_t most = memory.memory / 5;
    const Outcome disk = outcome(most, exact);
    EXPECT_EQ(disk.hits, memory.hits);
    EXPECT_GT(memory.hits.size(), 100u);
    EXPECT_EQ(memory.disk, 0);
    EXPECT_GT(disk.disk, 0);
    EXPECT_LE(disk.memory, most);
    EXPECT_EQ(disk.left_out, 0u);
  }
}

TEST_F(EmbeddingIndexTest, RoomOnDiskIsBoundedAndComesBack) {
  start({.max_bytes = 10'000, .max_disk_bytes = 20'000});
  for (int i = 0; i < 40; ++i) commit("d" + std::to_string(i), "text " + std::to_string(i));
  EmbeddingStats now = synchronize();
  EXPECT_GT(now.left_out, 0u);
  EXPECT_EQ(now.documents + now.left_out, 40u);
  EXPECT_LE(now.memory_bytes, 10'000);
  EXPECT_LE(now.disk_bytes, 20'000);
  EXPECT_GT(now.disk_bytes, 15'000);
  const auto found = texts(ask("text", 100));
  EXPECT_EQ(found.size(), now.documents);
  for (int i = 0; i < 40; ++i) (void)store_->delete_document("n", "d" + std::to_string(i));
  now = synchronize();
  EXPECT_EQ(now.disk_bytes, 0);
  EXPECT_EQ(now.memory_bytes, 0);
  EXPECT_EQ(now.left_out, 0u);
  for (int i = 0; i < 10; ++i) commit("e" + std::to_string(i), "text " + std::to_string(i));
  EXPECT_EQ(synchronize().documents, 10u);
  EXPECT_EQ(texts(ask("text", 100)).size(), 10u);
}

TEST_F(EmbeddingIndexTest, DocumentsThatTheDiskLosesAreLeftOutUntilTheyChange) {
  start({.max_bytes = 1});
  for (int i = 0; i < 20; ++i) commit("d" + std::to_string(i), "text " + std::to_string(i));
  EXPECT_EQ(synchronize().left_out, 20u);  // entries need more than one byte
  end();
  begin();
  start({.max_bytes = 12'000});
  EXPECT_EQ(stats().left_out, 0u);
  EXPECT_EQ(texts(ask("text", 100)).size(), 20u);
  const auto files = testing::scratch_files(folder_.path());
  ASSERT_EQ(files.size(), 1u);
  ASSERT_EQ(::truncate(files[0].c_str(), 0), 0);
  const auto kept = texts(ask("text", 100));
  EXPECT_LT(kept.size(), 20u);
  const EmbeddingStats now = synchronize();
  EXPECT_EQ(now.documents, kept.size());
  EXPECT_EQ(now.left_out, 20u - kept.size());
  EXPECT_EQ(texts(ask("text", 100)), kept);
  for (int i = 0; i < 20; ++i) commit("d" + std::to_string(i), "other " + std::to_string(i));
  EXPECT_EQ(synchronize().left_out, 0u);
  EXPECT_EQ(texts(ask("other", 100)).size(), 20u);
}

TEST_F(EmbeddingIndexTest, AFullQueueIsTriedAgainAndATextTooLongHasNoVector) {
  engine_->fail_embed(Status::exhausted("the queue is full"));
  engine_->fail_embed(Status::invalid("input", "too long"));
  commit("a", "red fish|green tea");
  start();
  const EmbeddingStats now = stats();
  EXPECT_EQ(now.documents, 1u);
  EXPECT_EQ(now.chunks, 1u);
  EXPECT_EQ(now.failed, 0u);
  EXPECT_EQ(engine_->embeds(), 3);
  EXPECT_EQ(texts(ask("red fish", 9)), Texts{"green tea"});
}

TEST_F(EmbeddingIndexTest, AnEmbeddingThatFailsIsCountedUntilTheDocumentChanges) {
  engine_->fail_embed(Status::internal("broken"));
  commit("a", "red fish");
  start();
  EXPECT_EQ(stats().failed, 1u);
  EXPECT_EQ(stats().documents, 0u);
  EXPECT_TRUE(texts(ask("red fish", 9)).empty());
  commit("a", "green tea");
  EXPECT_EQ(synchronize().failed, 0u);
  EXPECT_EQ(texts(ask("green tea", 9)), Texts{"green tea"});
}

TEST_F(EmbeddingIndexTest, AQuestionThatCannotBeEmbeddedFailsTheSearchOnly) {
  start();
  commit("a", "red fish");
  synchronize();
  engine_->fail_embed(Status::exhausted("the queue is full"));
  EXPECT_EQ(retrieval_->search("n", ask("red")).code(), Code::kResourceExhausted);
  EXPECT_EQ(texts(ask("red fish")), Texts{"red fish"});
}

TEST_F(EmbeddingIndexTest, HybridAddsScaledScores) {
  start();
  commit("both", "green tea");
  commit("words", "green and tea");
  commit("none", "blue sky");
  synchronize();
  const auto found = search(ask("green tea", 9, RetrieveScorer::kHybrid));
  const auto words = search(ask("green tea", 9, RetrieveScorer::kBm25));
  const auto meaning = search(ask("green tea", 9, RetrieveScorer::kEmbedding));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].document_id, "both");
  EXPECT_NEAR(found[0].score, 1, 1e-9);  // is first in both rankings
  EXPECT_EQ(found[1].document_id, "words");
  EXPECT_NEAR(found[1].score,
              0.5 * words[1].score / words[0].score +
                  0.5 * (0.1 + 0.9 * (meaning[1].score - meaning[2].score) /
                                   (meaning[0].score - meaning[2].score)),
              1e-9);
  EXPECT_EQ(found[2].document_id, "none");
  EXPECT_NEAR(found[2].score, 0.05, 1e-9) << "no word of the question, and the least alike";
  EXPECT_EQ(search(ask("green tea", 1, RetrieveScorer::kHybrid)).size(), 1u);
}

TEST_F(EmbeddingIndexTest, FusionWeighsBothRankings) {
  commit("both", "green tea");
  commit("words", "green and tea");
  commit("none", "blue sky");
  start({}, nullptr, RetrieveScorer::kHybrid, {.meaning = 0.9});
  const auto found = search(ask("green tea", 9, RetrieveScorer::kHybrid));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_NEAR(found[0].score, 1, 1e-9);
  EXPECT_EQ(found[2].document_id, "none");
  EXPECT_NEAR(found[2].score, 0.09, 1e-9);
}

TEST_F(EmbeddingIndexTest, ASingleTextHasTheWholeScore) {
  start();
  commit("only", "green tea");
  synchronize();
  EXPECT_NEAR(search(ask("green tea", 9, RetrieveScorer::kHybrid))[0].score, 1, 1e-9);
  EXPECT_NEAR(search(ask("blue sky", 9, RetrieveScorer::kHybrid))[0].score, 0.5, 1e-9)
      << "what its meaning gives, however far it is";
}

TEST_F(EmbeddingIndexTest, HybridFollowsTitlesBehindTheFusion) {
  start();
  commit("song", "get low is a song by dillon francis", "{}", "n", "Get Low");
  commit("man", "he likes tea", "{}", "n", "Dillon Francis");
  for (const char* id : {"x", "y", "z"}) commit(id, "get low tea in the song of the tide");
  synchronize();
  const auto score = [&](double links) {
    RetrieveRequest request = ask("get low song", 9, RetrieveScorer::kHybrid);
    request.links = links;
    std::map<std::string, double> out;
    for (const Passage& p : search(request)) out[p.document_id] = p.score;
    return out;
  };
  const auto without = score(0), some = score(0.3), all = score(1);
  ASSERT_EQ(without.size(), 5u);
  EXPECT_NEAR(some.at("man"),
              std::max(without.at("man"), std::min(without.at("man") + 0.3 * without.at("song"),
                                                   0.999 * without.at("song"))),
              1e-9);
  EXPECT_GT(some.at("man"), without.at("man"));
  EXPECT_NEAR(all.at("man"), 0.999 * without.at("song"), 1e-9)
      << "it comes right behind the text that names it";
  EXPECT_EQ(some.at("song"), without.at("song"));
  EXPECT_EQ(some.at("x"), without.at("x"));
}

TEST_F(EmbeddingIndexTest, WithoutEmbeddingsOtherScorersAreRefused) {
  retrieval_ = create_retrieval({}, *store_, nullptr);
  retrieval_->start();
  EXPECT_FALSE(retrieval_->stats().embeddings);
  for (const auto scorer : {RetrieveScorer::kEmbedding, RetrieveScorer::kHybrid}) {
    const auto found = retrieval_->search("n", ask("x", 4, scorer));
    EXPECT_EQ(found.code(), Code::kInvalidArgument);
    EXPECT_EQ(found.status().field(), "scorer");
  }
}

/// While documents change, each passage is the text of one version of its document. In the end the
/// index holds what the store holds.
TEST_F(EmbeddingIndexTest, SearchesWhileDocumentsChange) {
  start({.max_bytes = 0, .exact_vectors = 3});
  std::thread writer([&] {
    for (int i = 0; i < 40; ++i) {
      const std::string id = "d" + std::to_string(i % 5);
      if (i % 3 == 2)
        (void)store_->delete_document("n", id);
      else
        commit(id, "red " + id + "|blue " + id);
    }
  });
  for (int i = 0; i < 20; ++i) {
    for (const auto& p : search(
             ask("red", 20, i % 2 == 0 ? RetrieveScorer::kHybrid : RetrieveScorer::kEmbedding))) {
      EXPECT_EQ(p.text, (p.chunk == 0 ? "red " : "blue ") + p.document_id);
    }
  }
  writer.join();
  const EmbeddingStats now = synchronize();
  ListOptions all;
  all.limit = 100;
  const auto left = store_->list_documents("n", all);
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(now.documents, left->documents.size());
  EXPECT_EQ(now.chunks, 2 * left->documents.size());
  EXPECT_EQ(texts(ask("red", 50)).size(), now.chunks);
}

}  // namespace
}  // namespace quire
