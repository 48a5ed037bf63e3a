// Several turns of one conversation under each retriever: later turns reuse what earlier ones
// computed, and their answers do not change.
#include <gtest/gtest.h>

#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"

namespace quire::testing {
namespace {

constexpr int kTurns = 3;

class ConversationTest : public ::testing::Test {
 protected:
  /// A service with the same three documents.
  struct Side {
    explicit Side(const ConversationTest& test, std::int64_t prefix_cache_bytes)
        : store(open_test_store(folder.path() / "store")) {
      engine = make_test_engine(test.model_.path(), *store, [&](EngineOptions& o) {
        o.prefix_cache_bytes = prefix_cache_bytes;
        o.retrieval_head_path = test.head_.path();
      });
      std::mt19937 rng(29);
      for (const std::size_t n : {120u, 33u, 90u}) {
        Doc d{"d" + std::to_string(docs.size()), random_ids(rng, n), std::nullopt};
        d.key = ingest(*engine, *store, d.id, d.ids);
        docs.push_back(d);
      }
    }
    ~Side() { engine->stop(std::chrono::milliseconds(0)); }

    /// Runs a conversation, in which each question follows the last answer. It is over the
    /// documents or over a long opening without any.
    std::vector<Outcome> talk(bool over_documents, const std::string& retriever) {
      std::mt19937 rng(31);
      std::vector<Outcome> turns;
      std::vector<std::int32_t> said;
      if (!over_documents) said = random_ids(rng, 240);
      auto options = options_of(retriever, small_budget());
      // The states of tokens are not kept with pages.
      if (retriever == "specontext") options["decode_head"] = "embed";
      for (int turn = 0; turn < kTurns; ++turn) {
        const auto question = random_ids(rng, 21);
        said.insert(said.end(), question.begin(), question.end());
        QueryRequest r = make_request(*engine, over_documents ? docs : std::vector<Doc>(), said,
                                      over_documents ? "reuse" : "auto");
        r.cache.decode = retriever;
        r.cache.options = PlugOptions(options);
        r.sampling.max_tokens = 20;
        turns.push_back(run_query(*engine, std::move(r)));
        said.insert(said.end(), turns.back().ids.begin(), turns.back().ids.end());
      }
      return turns;
    }

    TempFolder folder;
    std::unique_ptr<Store> store;
    std::unique_ptr<Engine> engine;
    std::vector<Doc> docs;
  };

  RandomModelFolder model_;
  HeadFolder head_;
};

TEST_F(ConversationTest, LaterTurnsGoOnOverWhatIsThere) {
  Side keeping(*this, -1), forgetting(*this, 0);
  for (const bool over_documents : {true, false}) {
    for (const std::string& name : retrievers().names()) {
      const auto kept = keeping.talk(over_documents, name),
                 anew = forgetting.talk(over_documents, name);
      for (int turn = 0; turn < kTurns; ++turn) {
        const auto &a = kept[static_cast<std::size_t>(turn)],
                   &b = anew[static_cast<std::size_t>(turn)];
        const std::string what = name + (over_documents ? " over documents" : "") + " turn " +
                                 std::to_string(turn);
        ASSERT_TRUE(a.status.ok()) << what << a.status.to_string();
        ASSERT_TRUE(b.status.ok()) << what << b.status.to_string();
        EXPECT_EQ(a.ids, b.ids) << what;
        EXPECT_EQ(a.stats.retrieve.sparse_steps, b.stats.retrieve.sparse_steps) << what;
        EXPECT_EQ(a.stats.retrieve.pages_wanted, b.stats.retrieve.pages_wanted) << what;
        EXPECT_EQ(a.stats.retrieve.rows_wanted, b.stats.retrieve.rows_wanted) << what;
        EXPECT_EQ(a.stats.retrieve.rows_scored, b.stats.retrieve.rows_scored) << what;
        EXPECT_EQ(b.stats.shared_tokens, 0) << what;
        if (name != "dense") {
          EXPECT_GT(a.stats.retrieve.sparse_steps, 0) << what;
        }
        if (turn > 0 && !over_documents) {
          EXPECT_GT(a.stats.shared_tokens, 0) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
