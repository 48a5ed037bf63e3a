#include "cachestore/disk/rocksdb_gaps.h"

#include <gtest/gtest.h>
#include <rocksdb/write_batch.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/format/catalog_keys.h"
#include "cachestore/format/record.h"
#include "tests/support/harness/test_store.h"

namespace quire::rocksdb_internal {
namespace {

using Documents = std::set<std::pair<std::string, std::string>>;

/// A log that is written change by change.
struct Log {
  std::uint64_t next = 1;
  std::vector<std::string> records;

  void add(const std::function<void(::rocksdb::WriteBatch&)>& fill) {
    ::rocksdb::WriteBatch batch;
    fill(batch);
    std::string bytes = batch.Data();
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(next >> 8 * i);
    next += static_cast<std::uint64_t>(batch.Count());
    records.push_back(std::move(bytes));
  }
  void put_head(const DocumentManifest& m) {
    add([&](auto& batch) {
      (void)batch.Put(catalog_key(kHeadKind, m.ns, m.id), record::encode_head(m));
    });
  }
  void put_whole(const DocumentManifest& m) {
    add([&](auto& batch) {
      (void)batch.Put(catalog_key(kTokensKind, m.ns, m.id), record::encode_tokens(m));
      (void)batch.Put(catalog_key(kHeadKind, m.ns, m.id), record::encode_head(m));
    });
  }
  void remove(const DocumentManifest& m) {
    add([&](auto& batch) { (void)batch.Delete(catalog_key(kHeadKind, m.ns, m.id)); });
  }
  void lose() { next += 5; }
};

DocumentManifest document(const std::string& id, std::string_view text_name) {
  DocumentManifest m = test::manifest_of(id, {1});
  m.status = DocumentStatus::kReady;
  m.text_name = text_name;
  for (DocumentChunk& c : m.chunks) c.num_tokens = static_cast<std::uint32_t>(c.token_ids.size());
  return m;
}

Documents unsure(const Log& log) {
  DocumentsOverGaps documents;
  documents.add(log.records);
  return documents.unsure();
}

TEST(DocumentsOverGaps, WithoutAGapAllAreSure) {
  Log log;
  log.put_whole(document("a", "one"));
  log.put_head(document("a", "one"));
  log.put_head(document("b", "of a table"));
  DocumentsOverGaps documents;
  documents.add(log.records);
  EXPECT_EQ(documents.missing(), 0u);
  EXPECT_EQ(documents.unsure(), Documents());
}

TEST(DocumentsOverGaps, AHeadAloneBehindAGapIsSureIfItIsOfTheSameText) {
  Log log;
  log.put_whole(document("same", "one"));
  log.put_whole(document("other", "one"));
  log.put_whole(document("whole", "one"));
  log.put_whole(document("gone", "one"));
  log.put_whole(document("untouched", "one"));
  log.lose();
  log.put_head(document("same", "one"));
  log.put_head(document("other", "two"));
  log.put_whole(document("whole", "two"));
  log.put_head(document("whole", "two"));
  log.put_head(document("gone", "two"));
  log.remove(document("gone", "two"));
  log.put_head(document("of a table", "one"));
  DocumentsOverGaps documents;
  documents.add(log.records);
  EXPECT_EQ(documents.missing(), 5u);
  const std::string ns = document("a", "").ns;
  EXPECT_EQ(documents.unsure(), (Documents{{ns, "other"}, {ns, "of a table"}}));
}

TEST(DocumentsOverGaps, AHeadAloneIsUnsureWhereTheFirstChangesAreMissing) {
  Log log;
  log.next = 8;
  log.put_head(document("a", "one"));
  DocumentsOverGaps behind_tables(8), behind_a_gap(5);
  behind_tables.add(log.records);
  EXPECT_EQ(behind_tables.missing(), 0u);
  EXPECT_EQ(behind_tables.unsure(), Documents());
  behind_a_gap.add(log.records);
  EXPECT_EQ(behind_a_gap.missing(), 3u);
  EXPECT_EQ(behind_a_gap.unsure().size(), 1u);
}

TEST(DocumentsOverGaps, ADocumentStaysUnsureUntilItIsWrittenWhole) {
  Log log;
  log.put_whole(document("a", "one"));
  log.lose();
  log.put_head(document("a", "two"));
  log.put_head(document("a", "two"));
  EXPECT_EQ(unsure(log).size(), 1u);
  log.lose();
  log.put_head(document("a", "two"));
  EXPECT_EQ(unsure(log).size(), 1u);
  log.put_whole(document("a", "three"));
  EXPECT_EQ(unsure(log), Documents());
}

TEST(LogBatches, AreBroughtIntoTheirOrder) {
  Log log;
  for (const char* id : {"a", "b", "c", "d"}) log.put_whole(document(id, "one"));
  EXPECT_TRUE(follow_one_another(log.records));
  const std::vector<std::string> right = log.records;
  std::vector<std::string> records{right[0], right[2], "no batch", right[2], right[1], right[3]};
  EXPECT_FALSE(follow_one_another(records));
  put_in_order(&records);
  EXPECT_EQ(records, right);
  // One of an older log would hide what is newer.
  records = {right[1], right[2], right[0], right[3]};
  put_in_order(&records);
  EXPECT_EQ(records, (std::vector<std::string>{right[1], right[2], right[3]}));
}

}  // namespace
}  // namespace quire::rocksdb_internal
