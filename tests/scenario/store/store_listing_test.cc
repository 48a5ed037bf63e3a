// Lists of documents by status and metadata are what a look at every document gives, and cost
// nothing for documents that do not match.
#include <gtest/gtest.h>

#include <random>

#include "cachestore/format/metadata.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

class StoreListing : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.path = "unused";
    options_.clock_ms = [this] { return now_ms_; };
    reopen();
  }
  void reopen() {
    store_.reset();
    auto opened = open_store_on(options_, std::make_unique<test::MemoryTier>(disk_));
    ASSERT_OK(opened);
    store_ = std::move(*opened);
  }
  static std::string id_of(std::uint64_t n) {
    std::string digits = std::to_string(n);
    return "d" + std::string(6 - digits.size(), '0') + digits;
  }
  DocumentManifest document(std::uint64_t n, const std::string& metadata) {
    DocumentManifest m = test::manifest_of(id_of(n), {1});
    m.chunks[0].key = {};
    m.metadata_json = metadata;
    return m;
  }
  void put(DocumentManifest m) {
    ASSERT_OK(store_->commit_document(std::move(m), test::text_of("a")));
  }

  /// Follows the pages of a list to its end.
  std::vector<std::string> all(ListOptions query) {
    std::vector<std::string> ids;
    for (;;) {
      const auto page = store_->list_documents("default", query);
      EXPECT_OK(page);
      if (!page.ok()) return ids;
      EXPECT_LE(page->documents.size(), query.limit);
      for (const auto& m : page->documents) ids.push_back(m.id);
      if (!page->has_more) return ids;
      EXPECT_EQ(page->documents.size(), query.limit);
      query.after = ids.back();
    }
  }
  /// The same list by a look at every document.
  std::vector<std::string> expected(const ListOptions& query) {
    ListOptions every;
    every.limit = 1'000'000;
    every.descending = query.descending;
    every.filter = [&](const DocumentManifest& m) {
      return (!query.status || m.status == *query.status) &&
             metadata_matches(m.metadata_json, query.metadata);
    };
    std::vector<std::string> ids;
    const auto list = store_->list_documents("default", every);
    for (const auto& m : list->documents) ids.push_back(m.id);
    return ids;
  }

  std::shared_ptr<test::MemoryDisk> disk_ = std::make_shared<test::MemoryDisk>();
  std::int64_t now_ms_ = 1'000'000;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

MetadataCondition condition(const std::string& key, std::vector<std::string> any_of,
                            std::vector<std::string> none_of = {},
                            std::optional<std::string> at_least = {}) {
  MetadataCondition c;
  c.key = key;
  c.any_of = std::move(any_of);
  c.none_of = std::move(none_of);
  c.at_least = std::move(at_least);
  return c;
}

const std::vector<MetadataFilter> kFilters = {
    {condition("lang", {"de", "fr"})},
    {condition("lang", {"de", "fr"}), condition("year", {"2020", "2021"})},
    {condition("lang", {}, {"de"})},
    {condition("year", {}, {}, "2020.5")},
    {condition("half", {"1", "0.5"}), condition("lang", {}, {"en", "fr"})},
    {{"list", "1"}, {"lang", "de"}},
    {{"lang", "de"}},
    {{"lang", "de"}, {"year", "2020"}},
    {{"year", "2020.0"}},
    {{"year", "2.02e3"}},
    {{"year", "text"}},
    {{"draft", "true"}},
    {{"draft", "null"}},
    {{"draft", "true"}, {"lang", "fr"}, {"year", "2021"}},
    {{"half", "0.5"}},
    {{"half", "-0"}},
    {{"nothing", "here"}},
    {{"list", "[1]"}},
    {{"", ""}},
};

std::string random_metadata(std::mt19937_64& rng) {
  static const std::vector<std::string> kLanguages = {"\"de\"", "\"en\"", "\"fr\""},
                                        kYears = {"2020", "2021", "\"2020\"", "2020.0", "\"text\""},
                                        kDrafts = {"true", "false", "null", "\"true\""},
                                        kHalves = {"0.5", "5e-1", "0", "-0.0", "[1]"};
  const auto one = [&](const auto& of) { return of[rng() % of.size()]; };
  std::string out = "{\"list\":[1]";
  if (rng() % 8) out += ",\"lang\":" + one(kLanguages);
  if (rng() % 8) out += ",\"year\":" + one(kYears);
  if (rng() % 2) out += ",\"draft\":" + one(kDrafts);
  if (rng() % 2) out += ",\"half\":" + one(kHalves);
  return out + "}";
}

TEST_F(StoreListing, AListByIndexIsThatOfALookAtEveryDocument) {
  std::mt19937_64 rng(3);
  constexpr std::uint64_t kDocuments = 300;
  for (int step = 0; step < 1500; ++step) {
    const std::uint64_t n = rng() % kDocuments;
    switch (step < 400 ? 0 : rng() % 6) {
      case 0:
      case 1: {
        DocumentManifest m = document(n, random_metadata(rng));
        if (rng() % 5 == 0) m.status = DocumentStatus::kFailed;
        if (rng() % 9 == 0) m.ttl_seconds = 1 + rng() % 20;
        put(std::move(m));
        break;
      }
      case 2:
        (void)store_->delete_document("default", id_of(n));  // it may not exist
        break;
      case 3: {
        const std::string metadata = random_metadata(rng);
        (void)store_->update_document("default", id_of(n), [&](DocumentManifest& m) {
          m.metadata_json = metadata;
          if (metadata.size() % 4 == 0) m.status = DocumentStatus::kReady;
          return Status();
        });
        break;
      }
      case 4:
        now_ms_ += 500;
        if (rng() % 4 == 0) {
          ASSERT_OK(store_->expire(now_ms_));
        }
        break;
      default:
        if (rng() % 20 == 0) reopen();
    }
    if (step % 10 != 0) continue;
    for (ListOptions query; const MetadataFilter& filter : kFilters) {
      query.metadata = filter;
      query.descending = rng() % 2;
      query.limit = 1 + rng() % 40;
      if (rng() % 3 == 0)
        query.status = rng() % 2 ? DocumentStatus::kReady : DocumentStatus::kFailed;
      ASSERT_EQ(all(query), expected(query)) << step;
      query.status.reset();
    }
    const auto n_by_index = store_->namespace_stats("default");
    ASSERT_OK(n_by_index);
    ListOptions query;
    ASSERT_EQ(n_by_index->documents, expected(query).size());
    query.status = DocumentStatus::kReady;
    ASSERT_EQ(n_by_index->ready, expected(query).size());
    ASSERT_EQ(all(query), expected(query));
    query.status = DocumentStatus::kFailed;
    ASSERT_EQ(n_by_index->failed, expected(query).size());
  }
  // Nothing of the index is left with the last document.
  for (const std::string& id : expected({})) ASSERT_OK(store_->delete_document("default", id));
  now_ms_ += 1'000'000;
  ASSERT_OK(store_->expire(now_ms_));
  for (const auto& [key, value] : disk_->records)
    EXPECT_FALSE(key.first == Family::kCatalog && key.second[0] == kTermKind);
}

TEST_F(StoreListing, DocumentsThatDoNotMatchCostNothing) {
  // Ten documents match, at any number of others.
  const auto cost = [&](const ListOptions& query, std::size_t matches) {
    const std::uint64_t before = disk_->looked_at;
    EXPECT_EQ(all(query).size(), matches);
    return disk_->looked_at - before;
  };
  std::vector<std::uint64_t> costs;
  ListOptions rare, failed, both;
  rare.metadata = {{"rare", "yes"}};
  failed.status = DocumentStatus::kFailed;
  both.metadata = {{"lang", "en"}, {"rare", "yes"}};
  both.status = DocumentStatus::kReady;
  std::uint64_t n = 0;
  for (const std::uint64_t size : {1'000u, 12'000u}) {
    for (; n < size; ++n) {
      DocumentManifest m = document(
          n, n % 100 == 7 && n < 1000 ? R"({"lang":"en","rare":"yes"})" : R"({"lang":"en"})");
      if (n % 100 == 9 && n < 1000) m.status = DocumentStatus::kFailed;
      put(std::move(m));
    }
    for (const bool descending : {false, true}) {
      rare.descending = failed.descending = both.descending = descending;
      costs.push_back(cost(rare, 10));
      costs.push_back(cost(failed, 10));
      costs.push_back(cost(both, 10));
    }
    // A page of many matches costs a page.
    ListOptions many;
    many.metadata = {{"lang", "en"}};
    const std::uint64_t before = disk_->looked_at;
    ASSERT_OK(store_->list_documents("default", many));
    costs.push_back(disk_->looked_at - before);
    const std::uint64_t counted = disk_->looked_at;
    ASSERT_OK(store_->namespace_stats("default"));
    costs.push_back(disk_->looked_at - counted);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_LE(costs[i + 8], costs[i] + 12) << i;  // pages that are read ahead may end elsewhere
    EXPECT_LE(costs[i], 150u) << i;
  }
}

TEST_F(StoreListing, AStoreWithoutAnIndexGetsOne) {
  std::mt19937_64 rng(5);
  for (std::uint64_t n = 0; n < 2500; ++n) put(document(n, random_metadata(rng)));
  ListOptions query;
  query.metadata = {{"lang", "de"}};
  query.limit = 100;
  const auto ids = all(query);
  EXPECT_GT(ids.size(), 500u);
  const auto forget = [&] {
    store_.reset();
    std::lock_guard lock(disk_->mu);
    std::erase_if(disk_->records, [](const auto& record) {
      const std::string& key = record.first.second;
      return record.first.first == Family::kCatalog &&
             (key[0] == kTermKind || key[0] == kIndexKind);
    });
  };
  forget();
  options_.read_only = true;  // it looks at every document, and writes nothing
  reopen();
  EXPECT_EQ(all(query), ids);
  options_.read_only = false;
  reopen();
  EXPECT_EQ(all(query), ids);
  const std::uint64_t before = disk_->looked_at;
  query.metadata = {{"lang", "none"}};
  EXPECT_TRUE(all(query).empty());
  EXPECT_LE(disk_->looked_at - before, 4u);
  // The index was not finished: the next opening makes it again.
  forget();
  disk_->calls = 0;
  disk_->fail_at = 8;
  disk_->fail_on = true;
  EXPECT_FALSE(open_store_on(options_, std::make_unique<test::MemoryTier>(disk_)).ok());
  disk_->fail_at = -1;
  disk_->fail_on = false;
  reopen();
  query.metadata = {{"lang", "de"}};
  EXPECT_EQ(all(query), ids);
  // An index of an earlier program has other terms.
  forget();
  disk_->records[{Family::kCatalog, std::string(1, kIndexKind)}] = record::encode_opaque("1");
  reopen();
  EXPECT_EQ(all(query), ids);
}

TEST_F(StoreListing, ADamagedDocumentIsLeftOut) {
  for (std::uint64_t n = 0; n < 20; ++n) put(document(n, R"({"a":1})"));
  {
    std::lock_guard lock(disk_->mu);
    disk_->records.at({Family::kCatalog, catalog_key(kHeadKind, "default", id_of(7))})[20] ^= 1;
  }
  ListOptions query;
  query.metadata = {{"a", "1"}};
  EXPECT_EQ(all(query).size(), 19u);
  // Its terms are not known when it is posted again, and what they find is checked.
  put(document(7, R"({"a":2})"));
  EXPECT_EQ(all(query).size(), 19u);
  query.metadata = {{"a", "2"}};
  EXPECT_EQ(all(query), std::vector{id_of(7)});
}

}  // namespace
}  // namespace quire
