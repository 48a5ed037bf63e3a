#include "ingest/search/retrieval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire {
namespace {

using quire::testing::open_test_store;
using quire::testing::TempFolder;

class RetrievalTest : public ::testing::Test {
 protected:
  void SetUp() override { store_ = open_test_store(folder_.path(), 0); }
  void TearDown() override {
    if (retrieval_) retrieval_->stop();
  }

  /// Commits a document of the given chunks, which are separated by bars.
  void commit(const std::string& id, const std::string& bars, const std::string& metadata = "{}",
              const std::string& ns = "n", const std::string& title = "") {
    DocumentManifest m;
    m.title = title;
    m.ns = ns;
    m.id = id;
    m.metadata_json = metadata;
    m.content_hash = "sha256:" + bars;
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
  void start(const RetrievalOptions& options = {}) {
    retrieval_ = create_retrieval(options, *store_, nullptr);
    retrieval_->start();
  }
  /// Repeats the search until the index is built.
  std::vector<Passage> search(const RetrieveRequest& request, const std::string& ns = "n") {
    auto found = retrieval_->search(ns, request);
    while (found.code() == Code::kUnavailable) {
      std::this_thread::yield();
      found = retrieval_->search(ns, request);
    }
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : std::vector<Passage>();
  }
  std::vector<std::string> texts(const RetrieveRequest& request, const std::string& ns = "n") {
    std::vector<std::string> out;
    for (const auto& p : search(request, ns)) out.push_back(p.text);
    return out;
  }
  static RetrieveRequest ask(const std::string& query, std::size_t k = 4) {
    RetrieveRequest r;
    r.query = query;
    r.k = k;
    return r;
  }

  TempFolder folder_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Retrieval> retrieval_;
};

using Texts = std::vector<std::string>;

TEST_F(RetrievalTest, AHanCharacterFindsTheTextsThatHaveIt) {
  commit("cats", "小猫喝水。");
  commit("dogs", "小狗吃肉。");
  start();
  for (const auto& [question, text] :
       {std::pair("猫", "小猫喝水。"), {"狗", "小狗吃肉。"}, {"小狗", "小狗吃肉。"}}) {
    const auto found = search(ask(question));
    ASSERT_EQ(found.size(), 2u) << question;
    EXPECT_EQ(found[0].text, text);
    EXPECT_GT(found[0].score, 0);
    EXPECT_EQ(found[1].score, 0) << "it has no word of the question";
  }
}

TEST_F(RetrievalTest, TheStoreTellsItsWatcherWhatCanBeRead) {
  std::vector<std::string> heard;
  store_->watch_documents([&](std::string_view ns, std::string_view id) {
    const auto head = store_->get_document_head(ns, id);
    heard.push_back(std::string(ns) + "/" + std::string(id) + " " +
                    (head.ok() ? std::to_string(head->version) : "gone"));
  });
  commit("a", "one");
  commit("a", "two");
  ASSERT_TRUE(store_
                  ->update_document("n", "a",
                                    [](DocumentManifest& m) {
                                      m.expires_at_ms = 1;
                                      return Status();
                                    })
                  .ok());
  ASSERT_TRUE(store_->expire(std::int64_t{1} << 50).ok());
  commit("b", "three");
  ASSERT_TRUE(store_->delete_document("n", "b").ok());
  EXPECT_EQ(heard, (std::vector<std::string>{"n/a 1", "n/a 2", "n/a gone", "n/a gone", "n/b 1",
                                             "n/b gone"}));
  store_->watch_documents({});
  commit("c", "four");
  EXPECT_EQ(heard.size(), 6u);
}

TEST_F(RetrievalTest, ADocumentThatAGoodTextNamesIsFound) {
  const auto score = [this](const RetrieveRequest& request, const std::string& name) {
    for (const Passage& p : search(request))
      if (p.document_id + "#" + std::to_string(p.chunk) == name) return p.score;
    return -1.0;
  };
  const auto ids = [this](const RetrieveRequest& request) {
    std::vector<std::string> out;
    for (const Passage& p : search(request))
      out.push_back(p.document_id + "#" + std::to_string(p.chunk));
    return out;
  };
  using Ids = std::vector<std::string>;
  commit("song", "get low is a song by dillon francis", "{}", "n", "Get Low (song)");
  commit("man", "he likes tea|he was born in 1987|a singer", "{}", "n", "Dillon Francis");
  commit("tide", "a low tide", "{}", "n", "Tide");
  commit("other", "nothing here", "{}", "n", "Elsewhere");
  const RetrieveRequest born = ask("get low born", 6), low = ask("get low", 6);
  start();
  EXPECT_EQ(ids(born)[0], "song#0");
  EXPECT_EQ(ids(born)[1], "man#1") << "the chunk that matches best gets the part";
  const double best = score(born, "song#0"), linked = score(born, "man#1");
  EXPECT_NEAR(score(low, "man#0"), 0.6 * score(low, "song#0"), 1e-9)
      << "also without a word of the question";
  RetrieveRequest whole = born;
  whole.unit = RetrieveUnit::kDocument;
  EXPECT_NEAR(score(whole, "man#1"), linked, 1e-9);
  RetrieveRequest some = born;
  some.k = 1;
  EXPECT_EQ(ids(some), Ids{"song#0"});
  some.k = 6;
  some.links = 0;
  const double own = score(some, "man#1");
  EXPECT_LT(own, linked) << "the request decides";
  EXPECT_NEAR(linked, std::min(own + 0.6 * best, 0.999 * best), 1e-9)
      << "it stands at most right behind the text that names it";
  some.links = std::nullopt;
  some.document_ids = {"song", "tide"};
  EXPECT_EQ(ids(some), (Ids{"song#0", "tide#0"})) << "what is not asked for stays out";
  EXPECT_NEAR(score(some, "song#0"), best, 1e-9);
  retrieval_->stop();

  start({.links = 0});
  EXPECT_NEAR(score(born, "song#0"), best, 1e-9);
  EXPECT_EQ(score(born, "man#1"), own);
  EXPECT_EQ(score(low, "man#0"), 0);
  retrieval_->stop();

  // With another title, and without the document, nothing is named.
  start();
  commit("man", "he likes tea|he was born in 1987|a singer", "{}", "n", "Another Man");
  EXPECT_EQ(score(low, "man#0"), 0);
  commit("man", "he likes tea", "{}", "n", "Dillon Francis");
  EXPECT_GT(score(low, "man#0"), 0);
  ASSERT_TRUE(store_->delete_document("n", "man").ok());
  EXPECT_EQ(ids(low), (Ids{"song#0", "tide#0", "other#0"}));
}

TEST_F(RetrievalTest, FindsWhatTheStoreHeldAndWhatComesLater) {
  commit("a", "red fish|green tea");
  commit("b", "blue tea");
  start();
  EXPECT_EQ(texts(ask("green", 1)), Texts{"green tea"});
  commit("c", "green green");
  EXPECT_EQ(texts(ask("green", 2)), (Texts{"green green", "green tea"}));
  commit("c", "something else");
  EXPECT_EQ(texts(ask("green", 1)), Texts{"green tea"});
  ASSERT_TRUE(store_->delete_document("n", "a").ok());
  EXPECT_EQ(texts(ask("tea", 9)), (Texts{"blue tea", "something else"}));
}

TEST_F(RetrievalTest, FindsOtherFormsOfAWordByTheirStems) {
  commit("a", "The committees approve invoices|The weather is fine");
  commit("b", "Eine Rechnung liegt vor|Nichts davon");
  for (const auto& [language, other] :
       {std::pair("english", 0), std::pair("german", 1), std::pair("none", 0)}) {
    RetrievalOptions options;
    options.language = language;
    start(options);
    const auto found = search(ask("committee invoice", 1));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].score > 0, std::string(language) != "none") << language;
    EXPECT_EQ(search(ask("Rechnungen", 1))[0].score > 0, other == 1) << language;
    EXPECT_GT(search(ask("COMMITTEES", 1))[0].score, 0) << language;
    retrieval_->stop();
  }
}

TEST_F(RetrievalTest, GivesPositionsInCodePointsAndExactlyKPassages) {
  start();
  commit("a", "caf\xC3\xA9 one|t\xC3\xA9 two|three", R"({"lang":"fr"})");
  const auto found = search(ask("two", 3));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].chunk, 1);
  EXPECT_EQ(found[0].text, "t\xC3\xA9 two");
  EXPECT_EQ(found[0].start, 9u);
  EXPECT_EQ(found[0].end, 15u);
  EXPECT_EQ(found[0].metadata_json, R"({"lang":"fr"})");
  EXPECT_GT(found[0].score, 0);
  EXPECT_EQ(found[1].score, 0);
  EXPECT_EQ(search(ask("two", 2)).size(), 2u);
  EXPECT_EQ(search(ask("two", 9)).size(), 3u);
}

TEST_F(RetrievalTest, DocumentsAreFoundOnceWithTheirWholeText) {
  start();
  commit("a", "red|red red");
  commit("b", "blue");
  RetrieveRequest r = ask("red");
  r.unit = RetrieveUnit::kDocument;
  const auto found = search(r);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].text, "red|red red");
  EXPECT_EQ(found[0].chunk, 1);
  EXPECT_EQ(found[0].end, 11u);
}

TEST_F(RetrievalTest, APassageNamesTheVersionWhoseChunkItIs) {
  start();
  commit("a", "red|blue");
  EXPECT_EQ(search(ask("blue", 1)).at(0).content_hash, "sha256:red|blue");
  commit("a", "blue|red");
  const Passage now = search(ask("blue", 1)).at(0);
  EXPECT_EQ(now.content_hash, "sha256:blue|red");
  EXPECT_EQ(now.chunk, 0);
}

TEST_F(RetrievalTest, KeepsToIdsMetadataAndNamespace) {
  start();
  commit("a", "red one", R"({"year":2025,"kind":"x"})");
  commit("b", "red two", R"({"year":2024})");
  commit("c", "red three", R"({"year":2025})", "other");
  EXPECT_EQ(texts(ask("red", 9)).size(), 2u);
  EXPECT_EQ(texts(ask("red", 9), "other"), Texts{"red three"});
  EXPECT_TRUE(texts(ask("red", 9), "nobody").empty());
  RetrieveRequest r = ask("red", 9);
  r.metadata = {{"year", "2025"}};
  EXPECT_EQ(texts(r), Texts{"red one"});
  r.metadata.emplace_back("kind", "y");
  EXPECT_TRUE(texts(r).empty());
  r = ask("red", 9);
  r.document_ids = {"b", "c"};
  EXPECT_EQ(texts(r), Texts{"red two"});
}

TEST_F(RetrievalTest, PatchedMetadataCountsAtOnceAndUnreadyDocumentsNever) {
  start();
  commit("a", "red", R"({"year":1})");
  ASSERT_TRUE(store_
                  ->update_document("n", "a",
                                    [](DocumentManifest& m) {
                                      m.metadata_json = R"({"year":2})";
                                      return Status();
                                    })
                  .ok());
  RetrieveRequest r = ask("red");
  r.metadata = {{"year", "2"}};
  EXPECT_EQ(texts(r), Texts{"red"});
  ASSERT_TRUE(store_
                  ->update_document("n", "a",
                                    [](DocumentManifest& m) {
                                      m.status = DocumentStatus::kFailed;
                                      return Status();
                                    })
                  .ok());
  EXPECT_TRUE(texts(ask("red")).empty());
}

TEST_F(RetrievalTest, ExpiredDocumentsAreNotFoundAndOthersTakeTheirPlace) {
  std::atomic<std::int64_t> now{1'000'000};
  store_.reset();
  StoreOptions options;
  options.path = folder_.path().string();
  options.dram_bytes = 0;
  options.clock_ms = [&now] { return now.load(); };
  auto store = open_store(options);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  store_ = std::move(*store);
  start();
  commit("a", "red red");
  commit("b", "red and blue");
  ASSERT_TRUE(store_
                  ->update_document("n", "a",
                                    [](DocumentManifest& m) {
                                      m.expires_at_ms = 2'000'000;
                                      return Status();
                                    })
                  .ok());
  EXPECT_EQ(texts(ask("red", 1)), Texts{"red red"});
  now = 3'000'000;
  EXPECT_EQ(texts(ask("red", 1)), Texts{"red and blue"});
  retrieval_->stop();
  store_.reset();
  retrieval_.reset();
}

TEST_F(RetrievalTest, AFullIndexLeavesFurtherDocumentsOutAndSaysSo) {
  start({.max_index_bytes = 1, .max_index_disk_bytes = 0});
  commit("a", "red");
  commit("b", "blue");
  EXPECT_EQ(texts(ask("red", 9)).size(), 1u);
  EXPECT_EQ(retrieval_->stats().left_out, 1u);
  EXPECT_EQ(retrieval_->stats().documents, 1u);
}

TEST_F(RetrievalTest, PastItsMemoryTheIndexLiesOnDiskAndFindsTheSame) {
  start({.max_index_bytes = 20'000});
  const auto word = [](int i) { return "word" + std::to_string(i % 50); };
  for (int i = 0; i < 200; ++i)
    commit("d" + std::to_string(i), word(i) + " " + word(i / 2) + " common", R"({"n":1})");
  const auto find = [&](const std::string& query) {
    std::set<std::string> ids;
    const auto found = retrieval_->search("n", ask(query, 300));
    EXPECT_TRUE(found.ok());
    for (const Passage& p : *found) {
      if (p.score > 0) ids.insert(p.document_id);
    }
    return ids;
  };
  EXPECT_EQ(find("common").size(), 200u);
  EXPECT_EQ(find("word7").size(), 8u);
  RetrievalStats now = retrieval_->stats();
  EXPECT_EQ(now.left_out, 0u);
  EXPECT_EQ(now.documents, 200u);
  EXPECT_GT(now.disk_bytes, 0);
  EXPECT_LT(now.memory_bytes, 25'000);
  // What changes and goes on disk is found as it is now.
  commit("d7", "something else");
  ASSERT_TRUE(store_->delete_document("n", "d57").ok());
  EXPECT_EQ(find("word7").size(), 6u);
  EXPECT_EQ(find("something"), std::set<std::string>{"d7"});
  for (int i = 0; i < 150; ++i) {
    if (i != 57) {
      ASSERT_TRUE(store_->delete_document("n", "d" + std::to_string(i)).ok());
    }
  }
  EXPECT_EQ(find("common").size(), 50u);
  EXPECT_EQ(retrieval_->stats().documents, 50u);
}

/// Commits documents until one is left out, because nothing can be written. Then it can be.
class RefusedRetrievalTest : public RetrievalTest {
 protected:
  void fill_until_refused(std::chrono::milliseconds pause) {
    faulty_.other_options = store_->options();
    faulty_.other_options->path = "/does/not/exist";
    retrieval_ = create_retrieval({.max_index_bytes = 20'000, .refused_pause = pause}, faulty_,
                                  nullptr);
    retrieval_->start();
    while (retrieval_->stats().left_out == 0) {
      ASSERT_LT(documents_, 1000u);
      add();
    }
    faulty_.other_options.reset();
  }
  void add() {
    const std::string n = std::to_string(documents_++);
    commit("d" + n, "word" + n + " common");
    search(ask("common"));  // enters it
  }
  std::size_t documents_ = 0;
  test::FaultyStore faulty_{store_};
};

TEST_F(RefusedRetrievalTest, TheIndexIsNotWrittenAtEveryDocumentAfterARefusal) {
  fill_until_refused(std::chrono::hours(1));
  add();
  EXPECT_EQ(retrieval_->stats().left_out, 2u);
  EXPECT_EQ(retrieval_->stats().disk_bytes, 0);
  retrieval_->stop();
}

TEST_F(RefusedRetrievalTest, ThePauseAfterARefusalEndsAndEnters) {
  fill_until_refused(std::chrono::milliseconds(0));
  add();
  EXPECT_EQ(search(ask("common", 1000)).size(), documents_);
  EXPECT_EQ(retrieval_->stats().left_out, 0u);
  EXPECT_GT(retrieval_->stats().disk_bytes, 0);
  retrieval_->stop();
}

TEST_F(RetrievalTest, PastTheirMemoryManySmallNamespacesLieOnDisk) {
  start({.max_index_bytes = 100'000});
  const auto name = [](int i) { return "n" + std::to_string(i % 20); };
  for (int i = 0; i < 1000; ++i)
    commit("d" + std::to_string(i), "word" + std::to_string(i) + " in a common text", "{}",
           name(i));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(texts(ask("common", 100), name(i)).size(), 50u) << i;
  const RetrievalStats now = retrieval_->stats();
  EXPECT_EQ(now.left_out, 0u);
  EXPECT_EQ(now.documents, 1000u);
  EXPECT_GT(now.disk_bytes, 0);
  EXPECT_LT(now.memory_bytes, 120'000);
}

TEST_F(RetrievalTest, RefusesNonsenseAndAfterItsEnd) {
  start();
  EXPECT_EQ(retrieval_->search("n", ask("x", 0)).code(), Code::kInvalidArgument);
  retrieval_->stop();
  EXPECT_EQ(retrieval_->search("n", ask("x")).code(), Code::kUnavailable);
}

/// While documents change, each passage is the text of one version of its document. No result names
/// a document twice.
TEST_F(RetrievalTest, SearchesWhileDocumentsChange) {
  start();
  commit("stays", "red stays");
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (int i = 0; i < 60; ++i) {
      const std::string id = "d" + std::to_string(i % 5);
      if (i % 3 == 2)
        (void)store_->delete_document("n", id);
      else
        commit(id, "red " + id);
    }
    over = true;
  });
  do {
    RetrieveRequest r = ask("red", 20);
    r.unit = RetrieveUnit::kDocument;
    bool stays = false;
    std::set<std::string> seen;
    for (const auto& p : search(r)) {
      EXPECT_EQ(p.text, p.document_id == "stays" ? "red stays" : "red " + p.document_id);
      EXPECT_TRUE(seen.insert(p.document_id).second);
      stays = stays || p.document_id == "stays";
    }
    EXPECT_TRUE(stays);
  } while (!over);
  writer.join();
}

}  // namespace
}  // namespace quire
