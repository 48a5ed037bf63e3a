// A prompt holds the chunks that serve the question, within its limits.
#include "server/handlers/chunk_choice.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

class ChunkChoiceTest : public ::testing::Test {
 protected:
  /// Adds a document whose chunks have these numbers of tokens.
  void add(const std::string& id, const std::vector<std::size_t>& chunk_tokens) {
    QueryDocument d;
    d.id = id;
    d.first_context = contexts.size();
    d.num_contexts = chunk_tokens.size();
    for (std::size_t i = 0; i < chunk_tokens.size(); ++i) {
      QueryContext c;
      c.document_id = id;
      c.chunk = static_cast<std::int32_t>(i);
      c.token_ids.assign(chunk_tokens[i], next_token_++);  // no two texts are equal
      contexts.push_back(std::move(c));
    }
    documents.push_back(std::move(d));
  }
  /// Returns what stays, as "a:2 a:3 b:0".
  std::string keep(const std::vector<RankedChunk>& ranked) {
    keep_chunks(ranked, limits, contexts, documents);
    std::string out;
    std::size_t next = 0;
    for (const QueryDocument& d : documents) {
      EXPECT_EQ(d.first_context, next);
      next += d.num_contexts;
      EXPECT_GT(d.num_contexts, 0u);
      for (std::size_t i = d.first_context; i < next; ++i) {
        EXPECT_EQ(contexts.at(i).document_id, d.id);
        out += (out.empty() ? "" : " ") + d.id + ":" + std::to_string(contexts[i].chunk);
      }
    }
    EXPECT_EQ(next, contexts.size());
    return out;
  }
  ChunkLimits limits{.tokens = 1000, .neighbours = 0, .whole_document_tokens = 0};
  std::vector<QueryContext> contexts;
  std::vector<QueryDocument> documents;

 private:
  std::int32_t next_token_ = 5;
};

TEST_F(ChunkChoiceTest, FoundChunksStayInTheOrderOfTheText) {
  add("a", {100, 100, 100, 100});
  add("b", {100, 100});
  EXPECT_EQ(keep({{"b", 1}, {"a", 3}, {"a", 0}}), "a:0 a:3 b:1");
  EXPECT_EQ(documents[0].chunks, (std::vector<std::int32_t>{0, 3}));
  EXPECT_EQ(documents[0].all_chunks, 4u);
}

TEST_F(ChunkChoiceTest, ChunksOfAnotherVersionCountAsNotFound) {
  add("a", {100, 100, 100});
  documents[0].content_hash = "sha256:new";
  documents[0].chunking = "tokens 100";
  const std::string same = documents[0].content_hash, cut = documents[0].chunking;
  EXPECT_EQ(keep({{"a", 0, "sha256:old", cut}, {"a", 1, same, "tokens 50"}, {"a", 2, same, cut}}),
            "a:2");
}

TEST_F(ChunkChoiceTest, ChunksOfAnotherVersionGiveWayToAsManyOfThePrompts) {
  add("a", {100, 100, 100});
  add("b", {100, 100});
  documents[0].content_hash = "new";
  std::vector<RankedChunk> ranked = {{"a", 7, "old"}, {"b", 1}, {"a", 6, "old"}, {"c", 0, "old"}};
  std::vector<std::string> asked;
  const RankChunks rank = [&](const std::vector<std::string>& ids) {
    asked = ids;
    return std::vector<RankedChunk>{{"a", 2, "new"}, {"a", 0, "new"}, {"a", 1, "new"}};
  };
  replace_outdated(documents, rank, ranked);
  EXPECT_EQ(asked, std::vector<std::string>{"a"}) << "c is not in the prompt";
  EXPECT_EQ(keep(ranked), "a:0 a:2 b:1");
  asked.clear();
  replace_outdated(documents, rank, ranked);
  EXPECT_TRUE(asked.empty()) << "nothing has changed";
}

TEST_F(ChunkChoiceTest, TheBestFitFirstAndASmallerOneMayFollow) {
  add("a", {400, 400, 150, 400});
  limits.tokens = 600;
  EXPECT_EQ(keep({{"a", 3}, {"a", 0}, {"a", 2}, {"a", 1}}), "a:2 a:3");
}

TEST_F(ChunkChoiceTest, NeighboursComeAfterEverythingFound) {
  add("a", {100, 100, 100, 100, 100});
  add("b", {100});
  limits.neighbours = 1;
  limits.tokens = 400;
  // Both found chunks, then those beside the better one.
  EXPECT_EQ(keep({{"a", 2}, {"b", 0}}), "a:1 a:2 a:3 b:0");
}

TEST_F(ChunkChoiceTest, AShortDocumentStaysWhole) {
  add("a", {100, 100, 100});
  add("b", {400, 400});
  limits.whole_document_tokens = 300;
  EXPECT_EQ(keep({{"a", 1}, {"b", 1}}), "a:0 a:1 a:2 b:1");
  EXPECT_TRUE(documents[0].chunks.empty()) << "nothing of it is left out";
}

TEST_F(ChunkChoiceTest, DocumentsWithoutAFoundChunkGoAndInlineOnesStay) {
  add("a", {100, 100});
  add("", {200});
  add("b", {100});
  limits.tokens = 300;
  EXPECT_EQ(keep({{"b", 0}, {"gone", 3}, {"a", 7}}), ":0 b:0");
}

TEST_F(ChunkChoiceTest, WithoutAnyFoundChunkTheFirstStay) {
  add("a", {400, 400});
  add("b", {400});
  EXPECT_EQ(keep({}), "a:0 a:1");
}

TEST_F(ChunkChoiceTest, NoTextStaysTwiceUnlessItIsInline) {
  add("a", {100, 100});
  add("b", {100, 100, 100});
  add("", {100});
  add("", {100});
  contexts[2].token_ids = contexts[1].token_ids;  // b:0 is a copy of a:1
  contexts[6].token_ids = contexts[5].token_ids;
  limits.neighbours = 1;
  EXPECT_EQ(keep({{"a", 1}, {"b", 0}, {"b", 2}}), "a:0 a:1 b:1 b:2 :0 :0");
}

TEST_F(ChunkChoiceTest, AChunkThatNeverFitsIsLeftOut) {
  add("a", {5000});
  add("b", {100});
  EXPECT_EQ(keep({{"a", 0}, {"b", 0}}), "b:0");
}

}  // namespace
}  // namespace quire
