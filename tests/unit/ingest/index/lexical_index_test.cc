#include "ingest/index/lexical_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/words.h"
#include "cachestore/format/metadata.h"

namespace quire {
namespace {

using Unit = LexicalIndex::Unit;

IndexedDocument document(const std::string& id, const std::vector<std::string>& chunks,
                         std::uint64_t version = 1, const std::string& metadata = "{}") {
  IndexedDocument d;
  d.id = id;
  d.version = version;
  d.metadata_json = metadata;
  for (const auto& c : chunks) d.chunks.push_back(split_words(c));
  return d;
}

std::vector<std::pair<std::string, std::int32_t>> names(const std::vector<ChunkHit>& hits) {
  std::vector<std::pair<std::string, std::int32_t>> out;
  for (const auto& h : hits) out.emplace_back(h.id, h.chunk);
  return out;
}
using Names = std::vector<std::pair<std::string, std::int32_t>>;

/// Computes the formula of the header from the texts.
double bm25(const std::vector<std::vector<std::string>>& chunks,
            const std::vector<std::string>& query, std::size_t chunk) {
  const Bm25 p;
  double words = 0;
  for (const auto& c : chunks) words += static_cast<double>(c.size());
  const double n = static_cast<double>(chunks.size()), average = words / n;
  double sum = 0;
  for (const auto& q : query) {
    double have = 0;
    for (const auto& c : chunks) have += std::count(c.begin(), c.end(), q) > 0;
    const double f = static_cast<double>(std::count(chunks[chunk].begin(), chunks[chunk].end(), q));
    sum += std::log(1 + (n - have + 0.5) / (have + 0.5)) * f * (p.k1 + 1) /
           (f + p.k1 * (1 - p.b + p.b * static_cast<double>(chunks[chunk].size()) / average));
  }
  return sum;
}

TEST(LexicalIndex, ScoresAreThoseOfTheFormula) {
  const std::vector<std::string> texts = {"the mayor of alba is brun", "alba alba alba",
                                          "the river",
                                          "a mayor and a mayor and a long list of other things"};
  LexicalIndex index;
  std::vector<std::vector<std::string>> chunks;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    index.put(document("d" + std::to_string(i), {texts[i]}));
    chunks.push_back(split_words(texts[i]));
  }
  const auto query = split_words("Who is the mayor of Alba, Alba?");
  const auto hits = *index.search(query, 10, Unit::kChunk);
  ASSERT_EQ(hits.size(), 4u);
  for (const auto& h : hits)
    EXPECT_NEAR(h.score, bm25(chunks, query, static_cast<std::size_t>(h.id[1] - '0')), 1e-9)
        << h.id;
  EXPECT_EQ(hits[0].id, "d0");
  for (std::size_t i = 1; i < hits.size(); ++i) EXPECT_GE(hits[i - 1].score, hits[i].score);
}

TEST(LexicalIndex, TiesGoByIdThenChunkAndUnmatchedChunksComeLast) {
  LexicalIndex index;
  index.put(document("b", {"red", "blue"}));
  index.put(document("a", {"blue", "red"}));
  index.put(document("c", {""}));
  EXPECT_EQ(names(*index.search({"red"}, 10, Unit::kChunk)),
            (Names{{"a", 1}, {"b", 0}, {"a", 0}, {"b", 1}, {"c", 0}}));
  EXPECT_EQ(names(*index.search({"red"}, 3, Unit::kChunk)), (Names{{"a", 1}, {"b", 0}, {"a", 0}}));
  EXPECT_EQ(names(*index.search({"red"}, 10, Unit::kBestChunkOfDocument)),
            (Names{{"a", 1}, {"b", 0}, {"c", 0}}));
  EXPECT_EQ(names(*index.search({}, 2, Unit::kChunk)), (Names{{"a", 0}, {"a", 1}}));
}

TEST(LexicalIndex, FiltersLeaveStatisticsAlone) {
  LexicalIndex index;
  index.put(document("a", {"red fish"}, 1, R"({"year":1})"));
  index.put(document("b", {"red bird"}, 1, R"({"year":2})"));
  const auto all = *index.search({"red"}, 10, Unit::kChunk);
  const auto one = *index.search(
      {"red"}, 10, Unit::kChunk,
      [](const std::string&, const std::string& metadata) { return metadata == R"({"year":2})"; });
  ASSERT_EQ(names(one), (Names{{"b", 0}}));
  EXPECT_EQ(one[0].score, all[1].score);
}

/// After any history the index gives the same results as a new one over the remaining documents.
TEST(LexicalIndex, UpdatesAndRemovalsLeaveNothingBehind) {
  std::mt19937 rng(11);
  const auto text = [&rng] {
    std::string out;
    const auto n = rng() % 12;
    for (std::uint32_t i = 0; i < n; ++i) out += "w" + std::to_string(rng() % 40) + " ";
    return out;
  };
  LexicalIndex index;
  std::map<std::string, IndexedDocument> left;
  for (std::uint64_t step = 1; step <= 6000; ++step) {
    const std::string id = "d" + std::to_string(rng() % 60);
    if (rng() % 3 == 0) {
      EXPECT_EQ(index.remove(id), left.erase(id) == 1);
      continue;
    }
    std::vector<std::string> chunks;
    for (std::uint32_t c = 0; c < 1 + rng() % 3; ++c) chunks.push_back(text());
    left[id] = document(id, chunks, step);
    index.put(left[id]);
  }
  LexicalIndex fresh;
  for (const auto& [id, d] : left) fresh.put(d);
  EXPECT_EQ(index.num_documents(), fresh.num_documents());
  EXPECT_EQ(index.num_chunks(), fresh.num_chunks());
  for (const auto& [id, d] : left) EXPECT_EQ(index.version(id), d.version);
  for (int w = 0; w < 40; ++w) {
    const std::vector<std::string> query = {"w" + std::to_string(w), "w7"};
    const auto a = *index.search(query, 1000, Unit::kChunk),
               b = *fresh.search(query, 1000, Unit::kChunk);
    ASSERT_EQ(names(a), names(b)) << w;
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i].score, b[i].score, 1e-9);
  }
  // Counted memory does not grow either.
  EXPECT_LE(index.memory_bytes(), 2 * fresh.memory_bytes());
  for (const auto& [id, d] : left) index.remove(id);
  EXPECT_EQ(index.num_chunks(), 0u);
  EXPECT_TRUE(index.search({"w1"}, 5, Unit::kChunk)->empty());
}

/// Searches both indexes; every hit, version and score must be equal.
void expect_equal(const LexicalIndex& a, const LexicalIndex& b, std::mt19937_64& rng) {
  std::vector<std::string> query;
  for (std::size_t i = rng() % 4; i < 4; ++i) query.push_back("w" + std::to_string(rng() % 40));
  const std::size_t limit = 1 + rng() % 30;
  const Unit unit = rng() % 2 ? Unit::kChunk : Unit::kBestChunkOfDocument;
  LexicalIndex::Filter filter;
  if (rng() % 2)
    filter = [](const std::string& id, const std::string& metadata) {
      return id.back() % 3 != 0 && metadata != "{}";
    };
  const auto left = a.search(query, limit, unit, filter),
             right = b.search(query, limit, unit, filter);
  ASSERT_TRUE(left.ok() && right.ok());
  ASSERT_EQ(names(*left), names(*right));
  for (std::size_t i = 0; i < left->size(); ++i) {
    EXPECT_EQ((*left)[i].score, (*right)[i].score);
    EXPECT_EQ((*left)[i].version, (*right)[i].version);
  }
}

TEST(LexicalIndex, OnDiskItFindsWhatItFindsInMemory) {
  std::mt19937_64 rng(11);
  LexicalIndex memory, disk;
  std::map<std::string, IndexedDocument> documents;
  int spills = 0, dropped = 0;
  for (int step = 0; step < 3000; ++step) {
    const std::string id = "d" + std::to_string(rng() % 150);
    if (rng() % 5 < 3 || step < 100) {
      std::vector<std::string> chunks(rng() % 4);
      for (std::string& chunk : chunks) {
        for (std::size_t n = rng() % 12; n > 0; --n)
          chunk += "w" + std::to_string(rng() % 40) + " ";
      }
      documents[id] = document(id, chunks, rng() | 1, rng() % 2 ? "{}" : R"({"a":1})");
      memory.put(documents[id]);
      disk.put(documents[id]);
    } else {
      const bool there = documents.erase(id) > 0;
      EXPECT_EQ(memory.remove(id), there);
      EXPECT_EQ(disk.remove(id), there);
    }
    if (rng() % 60 == 0) {
      ASSERT_TRUE(disk.spill(::testing::TempDir()).ok());
      EXPECT_EQ(disk.spillable_bytes(), 0);
      EXPECT_GT(disk.disk_bytes(), 0);
      ++spills;
    }
    if (rng() % 20 == 0) {
      for (const std::string& again : disk.drop_sparse_files()) {
        disk.put(documents.at(again));
        ++dropped;
      }
    }
    ASSERT_EQ(memory.num_documents(), disk.num_documents());
    ASSERT_EQ(memory.num_chunks(), disk.num_chunks());
    ASSERT_EQ(memory.version(id), disk.version(id));
    expect_equal(memory, disk, rng);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(spills, 20);
  EXPECT_GT(dropped, 20);
}

TEST(LexicalIndex, AFolderThatCannotBeWrittenLeavesItUnchanged) {
  LexicalIndex index;
  index.put(document("a", {"red"}));
  EXPECT_FALSE(index.spill("/does/not/exist").ok());
  EXPECT_EQ(names(*index.search({"red"}, 10, Unit::kChunk)), (Names{{"a", 0}}));
  EXPECT_GT(index.spillable_bytes(), 0);
}

TEST(LexicalIndex, OnDiskAFilterOnMetadataReadsOnlyWhatMayPassIt) {
  LexicalIndex index;
  for (int i = 0; i < 1000; ++i) {
    const std::string n = std::to_string(i);
    index.put(document("d" + n, {"w" + std::to_string(i % 7) + " common"}, 1,
                       R"({"lang":")" + std::string(i % 2 ? "en" : "de") + R"(","tags":[)" +
                           std::to_string(i % 50) + R"(,"t"],"n":)" + n + "}"));
    if (i == 400 || i == 900) {
      ASSERT_TRUE(index.spill(::testing::TempDir()).ok());
    }
  }
  ASSERT_TRUE(index.remove("d3"));
  const auto condition = [](const std::string& key, std::vector<std::string> any_of) {
    MetadataCondition c;
    c.key = key;
    c.any_of = std::move(any_of);
    return c;
  };
  struct Case {
    MetadataFilter metadata;
    std::size_t most;  // of 901 documents on disk, how many are looked at
  };
  const std::vector<Case> cases = {
      {{condition("n", {"3", "17", "450.0", "950"})}, 2},
      {{condition("tags", {"7"})}, 18},
      {{condition("tags", {"7"}), condition("lang", {"en"})}, 18},
      {{condition("tags", {"7"}), condition("lang", {"de"})}, 0},
      {{condition("lang", {"fr"})}, 0},
      {{condition("tags", {"t"})}, 900},
  };
  for (const Case& c : cases) {
    LexicalIndex::Terms terms;
    for (const MetadataCondition& one : c.metadata) terms.push_back(filter_terms(one));
    std::size_t looked_at = 0;
    const LexicalIndex::Filter filter = [&](const std::string& id, const std::string& metadata) {
      looked_at += std::stoi(id.substr(1)) <= 900;
      return metadata_matches(metadata, c.metadata);
    };
    for (const Unit unit : {Unit::kChunk, Unit::kBestChunkOfDocument}) {
      for (const std::vector<std::string>& query :
           {std::vector<std::string>{"w3", "common"}, {"nothing"}}) {
        const auto all = *index.search(query, 1000, unit, filter);
        looked_at = 0;
        const auto some = *index.search(query, 1000, unit, filter, nullptr, terms);
        EXPECT_EQ(names(some), names(all));
        EXPECT_LE(looked_at, c.most);
      }
    }
  }
}

TEST(LexicalIndex, NamedDocumentsAreThoseThatAFilterOfTheirIdsLeaves) {
  LexicalIndex index;
  for (int i = 0; i < 300; ++i) {
    const std::string word = "w" + std::to_string(i % 7);
    index.put(document("d" + std::to_string(i), {word + " common", "common text", word + " end"}));
    if (i == 150) {
      ASSERT_TRUE(index.spill(::testing::TempDir()).ok());
    }
  }
  ASSERT_TRUE(index.remove("d9"));
  // Few are looked up in the file, many are read; some are not there.
  LexicalIndex::Ids few = {"d2", "d9", "d44", "d207", "nobody"}, many;
  for (int i = 0; i < 300; i += 2) many.insert("d" + std::to_string(i));
  for (const LexicalIndex::Ids& only : {few, many}) {
    const LexicalIndex::Filter is_named = [&](const std::string& id, const std::string&) {
      return only.contains(id);
    };
    for (const Unit unit : {Unit::kChunk, Unit::kBestChunkOfDocument}) {
      for (const std::size_t limit : {1u, 4u, 1000u}) {
        for (const std::vector<std::string>& query :
             {std::vector<std::string>{"w2", "end"}, {"common"}, {"nothing"}}) {
          const auto a = *index.search(query, limit, unit, {}, &only),
                     b = *index.search(query, limit, unit, is_named);
          EXPECT_EQ(names(a), names(b)) << limit << query[0];
          for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].score, b[i].score);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
