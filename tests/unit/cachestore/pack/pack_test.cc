// Packs are read back as they were written, refused when damaged, and move documents between stores
// with their KV.
#include "cachestore/pack/pack.h"

#include <gtest/gtest.h>

#include "cachestore/pack/pack_transfer.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

PackReader::Source source_of(const std::string& bytes, std::size_t step = SIZE_MAX) {
  return [bytes, step, at = std::size_t{0}](std::span<char> out) mutable -> Result<std::size_t> {
    const std::size_t n = std::min({out.size(), bytes.size() - at, step});
    std::memcpy(out.data(), bytes.data() + at, n);
    at += n;
    return n;
  };
}

Status read_all(const std::string& bytes, std::size_t step = SIZE_MAX) {
  PackReader reader(source_of(bytes, step));
  return check_pack(reader).status();
}

/// Returns a manifest as a store gives it: with the number of tokens of each chunk.
DocumentManifest stored_manifest() {
  DocumentManifest m = test::manifest_of("a", {1});
  for (auto& chunk : m.chunks)
    chunk.num_tokens = static_cast<std::uint32_t>(chunk.token_ids.size());
  return m;
}

std::string small_pack() {
  std::string out;
  PackWriter w([&](std::string_view bytes) {
    out += bytes;
    return true;
  });
  EXPECT_OK(w.header({1234, "m-test", "test"}));
  EXPECT_OK(w.document(stored_manifest(), test::text_of("a")));
  EXPECT_OK(w.segment({test::key_of(1), {1, 2, 1}, 20, 5, "m-test"}));
  EXPECT_OK(w.value(record::Part::kValue, 0, 0, test::random_bytes(10, 1)));
  EXPECT_OK(w.value(record::Part::kValue, 0, 1, test::random_bytes(10, 2)));
  EXPECT_OK(w.value(record::Part::kSketch, 0, 0, test::random_bytes(5, 3)));
  EXPECT_OK(w.end());
  return out;
}

TEST(Pack, ReadsWhatWasWritten) {
  PackReader reader(source_of(small_pack(), 7));
  std::vector<PackRecord> records;
  for (;;) {
    auto next = reader.next();
    ASSERT_OK(next);
    if (!*next) break;
    records.push_back(std::move(**next));
  }
  ASSERT_EQ(records.size(), 7u);
  EXPECT_EQ(std::get<PackHeader>(records[0]).fingerprint, "m-test");
  EXPECT_EQ(std::get<PackHeader>(records[0]).created_ms, 1234);
  EXPECT_EQ(std::get<PackDocument>(records[1]).text, test::text_of("a"));
  EXPECT_EQ(std::get<PackDocument>(records[1]).manifest.chunks.at(0).token_ids.size(), 20u);
  EXPECT_EQ(std::get<PackSegment>(records[2]).key, test::key_of(1));
  const auto& value = std::get<PackValue>(records[4]);
  EXPECT_EQ(value.group, 1u);
  EXPECT_TRUE(test::same(std::as_bytes(std::span(value.bytes.data(), value.bytes.size())),
                         test::random_bytes(10, 2)));
  EXPECT_EQ(std::get<PackEnd>(records[6]).values, 3u);
  const auto over = reader.next();
  ASSERT_OK(over);
  EXPECT_FALSE(*over) << "the end stays the end";
}

TEST(Pack, EveryFlippedBitIsFound) {
  const std::string good = small_pack();
  ASSERT_OK(read_all(good));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    EXPECT_FALSE(read_all(bad).ok()) << "byte " << i;
  }
}

TEST(Pack, EveryCutIsFound) {
  const std::string good = small_pack();
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_EQ(read_all(good.substr(0, n), 5).code(), Code::kCorruption) << n << " bytes";
  EXPECT_EQ(read_all(good + "x").code(), Code::kCorruption);
  EXPECT_EQ(read_all(good + good).code(), Code::kCorruption);
}

TEST(Pack, SaysWhatItIsNot) {
  EXPECT_NE(read_all("PK\x03\x04 a zip file").message().find("no pack"), std::string::npos);
  std::string newer = small_pack();
  newer[4] = 2;
  EXPECT_EQ(read_all(newer).code(), Code::kFailedPrecondition);
  PackReader failing([](std::span<char>) -> Result<std::size_t> { return Status::io("gone"); });
  EXPECT_EQ(failing.next().status().code(), Code::kIo);
}

TEST(Pack, RecordsOutOfOrderAreRefused) {
  const auto pack = [](auto&& fill) {
    std::string out;
    PackWriter w([&](std::string_view bytes) {
      out += bytes;
      return true;
    });
    fill(w);
    return out;
  };
  const PackSegment segment{test::key_of(1), {1, 1, 0}, 1, 0, "m"};
  EXPECT_FALSE(read_all(pack([&](PackWriter& w) {
                 (void)w.document(test::manifest_of("a", {}), "x");
               })).ok())
      << "no header";
  EXPECT_FALSE(read_all(pack([&](PackWriter& w) { (void)w.header({}), (void)w.header({}); })).ok())
      << "two headers";
  EXPECT_FALSE(read_all(pack([&](PackWriter& w) {
                 (void)w.header({}), (void)w.segment(segment), (void)w.end();
               })).ok())
      << "KV of no document";
  EXPECT_FALSE(read_all(pack([&](PackWriter& w) {
                 (void)w.header({}), (void)w.value(record::Part::kValue, 0, 0, {}), (void)w.end();
               })).ok())
      << "a value of no segment";
  EXPECT_FALSE(read_all(pack([&](PackWriter& w) {
                 (void)w.header({}), (void)w.document(stored_manifest(), test::text_of("a")),
                     (void)w.segment(segment), (void)w.value(record::Part::kValue, 1, 0, {}),
                     (void)w.end();
               })).ok())
      << "a value outside its segment";
  EXPECT_OK(read_all(pack([&](PackWriter& w) { (void)w.header({}), (void)w.end(); })));
}

class PackTransferTest : public ::testing::Test {
 protected:
  static std::unique_ptr<AdminStore> make_store(std::uint64_t dram_bytes = 1 << 20) {
    StoreOptions options;
    options.dram_bytes = dram_bytes;
    auto opened = open_store_on(
        options, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    return std::move(*opened);
  }
  static std::string pack_of(AdminStore& store, const std::vector<std::string>& ids) {
    std::string out;
    EXPECT_OK(
        export_documents(store, "default", ids, {1, "m-test", "test"}, [&](std::string_view bytes) {
          out += bytes;
          return true;
        }));
    return out;
  }
  /// A test key is made from a number, and the tokens of a test chunk begin with a hundred times
  /// that number.
  static ImportOptions options(const std::string& ns = "default",
                               const std::string& fingerprint = "m-test") {
    ImportOptions o;
    o.ns = o.tenant = ns;
    o.fingerprint = fingerprint;
    o.key_of = [](std::span<const std::int32_t> ids, const Digest&,
                  std::span<const std::int32_t> /*left_context*/) {
      return test::key_of(static_cast<std::uint64_t>(ids[0]) / 100);
    };
    return o;
  }
  static Result<ImportReport> import(AdminStore& store, const std::string& bytes,
                                     const ImportOptions& o) {
    PackReader reader(source_of(bytes, 1000));
    return import_pack(store, reader, o);
  }
};

TEST_F(PackTransferTest, DocumentsMoveWithTheirKv) {
  auto from = make_store(), to = make_store();
  ASSERT_OK(test::put_document(*from, "a", {1, 2}));
  ASSERT_OK(test::put_document(*from, "b", {2, 3}));
  const auto ids = ready_documents(*from, "default");
  ASSERT_OK(ids);
  EXPECT_EQ(*ids, (std::vector<std::string>{"a", "b"}));
  const auto report = import(*to, pack_of(*from, *ids), options("team"));
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, 2u);
  EXPECT_EQ(report->blocks, 9u) << "KV that two documents share is there once";
  EXPECT_EQ(report->skipped, 0u);
  EXPECT_TRUE(report->rejected.empty());
  for (const std::uint64_t key : {1, 2, 3}) {
    const auto handle = to->find_segment(test::key_of(key));
    ASSERT_TRUE(handle) << key;
    EXPECT_OK(test::check_segment(*to, *handle, key));
  }
  const auto text = to->get_text("team", "b");
  ASSERT_OK(text);
  EXPECT_EQ(*text, test::text_of("b"));
  EXPECT_EQ(to->get_document_head("default", "b").status().code(), Code::kNotFound);
}

TEST_F(PackTransferTest, ATitleThatChangedComesBack) {
  auto store = make_store();
  const auto titled = [](const char* title) {
    return [title](DocumentManifest& m) { m.title = title; };
  };
  ASSERT_OK(test::put_document(*store, "a", {1}, {}, false, titled("Then")));
  const std::string pack = pack_of(*store, {"a"});
  ASSERT_OK(test::put_document(*store, "a", {1}, {}, false, titled("Now")));
  const auto report = import(*store, pack, options());
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, 1u);
  const auto head = store->get_document_head("default", "a");
  ASSERT_OK(head);
  EXPECT_EQ(head->title, "Then");
}

TEST_F(PackTransferTest, WhatWasCutOrSaltedOtherwiseComesBack) {
  auto store = make_store();
  ASSERT_OK(test::put_document(*store, "a", {1}));
  const std::string pack = pack_of(*store, {"a"});
  const auto cut = [](DocumentManifest& m) { m.chunking = "tokens:64"; };
  const auto salted = [](DocumentManifest& m) { m.salt_digest = sha256("a salt"); };
  for (auto* const other : {+cut, +salted}) {
    ASSERT_OK(test::put_document(*store, "a", {2}, {}, false, other));
    const auto report = import(*store, pack, options());
    ASSERT_OK(report);
    EXPECT_EQ(report->documents, 1u);
    EXPECT_EQ(report->skipped, 0u);
    const auto head = store->get_document_head("default", "a");
    ASSERT_OK(head);
    EXPECT_EQ(head->chunking, "tokens:512");
    EXPECT_TRUE(head->salt_digest.is_zero());
    EXPECT_TRUE(store->peek_segment(test::key_of(1)));
  }
}

TEST_F(PackTransferTest, ADocumentWhoseKvSawOtherRelatedChunksComesBack) {
  // The same text is read behind one token, and in the other store behind two.
  const auto behind = [](const RelatedChunk& related) {
    return [related](DocumentManifest& m) {
      m.chunks[0].token_ids = test::manifest_of("a", {1}).chunks[0].token_ids;
      m.related = {related};
    };
  };
  ImportOptions o = options();
  o.key_of = [](std::span<const std::int32_t> ids, const Digest&,
                std::span<const std::int32_t> left_context) {
    return test::key_of(static_cast<std::uint64_t>(ids[0]) / 100 + left_context.size());
  };
  auto from = make_store(), to = make_store();
  ASSERT_OK(test::put_document(*from, "a", {2}, {}, false, behind({"b", "sha256:1", 0, {7}})));
  ASSERT_OK(test::put_document(*to, "a", {3}, {}, false, behind({"c", "sha256:2", 0, {8, 9}})));
  const std::string pack = pack_of(*from, {"a"});
  auto report = import(*to, pack, o);
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, 1u);
  EXPECT_EQ(report->skipped, 0u);
  EXPECT_EQ(report->blocks, 3u);
  const auto stored = to->get_document("default", "a");
  ASSERT_OK(stored);
  EXPECT_EQ(stored->chunks.at(0).key, test::key_of(2));
  ASSERT_EQ(stored->related.size(), 1u);
  EXPECT_EQ(stored->related[0].document_id, "b");
  EXPECT_TRUE(to->peek_segment(test::key_of(2)));
  report = import(*to, pack, o);
  ASSERT_OK(report);
  EXPECT_EQ(report->skipped, 1u) << "now it is the pack's";
  // Under another model no KV of the pack has to fit.
  report = import(*to, pack, options("default", "m-other"));
  ASSERT_OK(report);
  EXPECT_EQ(report->skipped, 1u);
}

TEST_F(PackTransferTest, WhatIsThereIsSkippedButItsLostKvComesBack) {
  auto store = make_store();
  ASSERT_OK(test::put_document(*store, "a", {1}));
  const std::string pack = pack_of(*store, {"a"});
  auto report = import(*store, pack, options());
  ASSERT_OK(report);
  EXPECT_EQ(report->skipped, 1u);
  EXPECT_EQ(report->blocks, 0u);
  ASSERT_OK(store->evict({}));
  EXPECT_FALSE(store->peek_segment(test::key_of(1)));
  report = import(*store, pack, options());
  ASSERT_OK(report);
  EXPECT_EQ(report->skipped, 1u);
  EXPECT_EQ(report->blocks, 3u);
  EXPECT_TRUE(store->peek_segment(test::key_of(1)));
}

TEST_F(PackTransferTest, DamageOfTheStoreIsNotBlamedOnThePack) {
  auto from = make_store();
  ASSERT_OK(test::put_document(*from, "a", {1}));
  const std::string pack = pack_of(*from, {"a"});
  const auto disk = std::make_shared<test::MemoryDisk>();
  disk->failure = Status::corruption("a table is damaged");
  auto to = open_store_on({}, std::make_unique<test::MemoryTier>(disk));
  ASSERT_OK(to);
  disk->fail_on = true;
  disk->fail_at = disk->calls.load();
  EXPECT_EQ(import(**to, pack, options()).code(), Code::kIo);
  disk->fail_at = -1;
  ASSERT_OK(import(**to, pack, options()));
  // What is there is skipped, but its KV is written again.
  ASSERT_OK((*to)->evict({}));
  disk->failure = Status::corruption("the record is damaged");
  PackReader reader(source_of(pack));
  ImportOptions o = options();
  // Asked before the KV's record is written.
  o.check_id = [&](std::string_view) {
    disk->fail_at = disk->calls.load() + 1;  // behind the look at the document
    return Status();
  };
  EXPECT_EQ(import_pack(**to, reader, o).code(), Code::kIo);
}

TEST_F(PackTransferTest, KvOfAnotherModelStaysBehind) {
  auto from = make_store(), to = make_store();
  ASSERT_OK(test::put_document(*from, "a", {1}));
  const auto report = import(*to, pack_of(*from, {"a"}), options("default", "m-other"));
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, 1u);
  EXPECT_EQ(report->stale, 1u);
  EXPECT_EQ(report->blocks, 0u);
  EXPECT_FALSE(to->peek_segment(test::key_of(1)));
  EXPECT_OK(to->get_text("default", "a"));
}

TEST_F(PackTransferTest, ADocumentOfAnotherModelNamesNoKvOfAnotherNamespace) {
  auto store = make_store();
  ASSERT_OK(test::put_document(*store, "a", {1}));
  ImportOptions o = options("team", "m-other");
  o.key_of = [](std::span<const std::int32_t> ids, const Digest&, std::span<const std::int32_t>) {
    return test::key_of(1000 + static_cast<std::uint64_t>(ids[0]) / 100);
  };
  const auto report = import(*store, pack_of(*store, {"a"}), o);
  ASSERT_OK(report);
  EXPECT_EQ(report->stale, 1u);
  EXPECT_EQ(report->blocks, 0u);
  const auto imported = store->get_document("team", "a");
  ASSERT_OK(imported);
  EXPECT_EQ(imported->chunks.at(0).key, test::key_of(1001));
  ASSERT_OK(store->delete_document("default", "a"));
  EXPECT_FALSE(store->peek_segment(test::key_of(1))) << "it goes with the namespace's own document";
}

TEST_F(PackTransferTest, IdsTheServiceRefusesAreRejectedOneByOne) {
  auto from = make_store(), to = make_store();
  ASSERT_OK(test::put_document(*from, "bad", {1}));
  ASSERT_OK(test::put_document(*from, "good", {2}));
  ImportOptions o = options();
  o.check_id = [](std::string_view id) {
    return id == "bad" ? Status::invalid("id", "not this one") : Status();
  };
  const auto report = import(*to, pack_of(*from, {"bad", "good"}), o);
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, 1u);
  ASSERT_EQ(report->rejected.size(), 1u);
  EXPECT_EQ(report->rejected[0].id, "bad");
  EXPECT_FALSE(to->peek_segment(test::key_of(1))) << "its KV goes with it";
}

TEST_F(PackTransferTest, ADocumentThatIsNotAdmittedIsRejectedAndTheOthersAreStored) {
  auto from = make_store(), to = make_store();
  for (const auto& [id, key] : {std::pair("a", 1), std::pair("b", 2), std::pair("c", 3)})
    ASSERT_OK(test::put_document(*from, id, {static_cast<std::uint64_t>(key)}));
  const std::string pack = pack_of(*from, {"a", "b", "c"});
  std::vector<std::string> asked;
  ImportOptions o = options("team");
  o.admit = [&](const DocumentManifest& document, std::uint64_t text_bytes) {
    asked.push_back(document.id);
    EXPECT_EQ(document.ns, "team");
    EXPECT_EQ(text_bytes, test::text_of(document.id).size());
    return document.id == "b" ? Status::exhausted("no room") : Status();
  };
  auto report = import(*to, pack, o);
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, 2u);
  ASSERT_EQ(report->rejected.size(), 1u);
  EXPECT_EQ(report->rejected[0].id, "b");
  EXPECT_EQ(report->rejected[0].reason, "no room");
  EXPECT_EQ(to->get_document_head("team", "b").code(), Code::kNotFound);
  EXPECT_FALSE(to->peek_segment(test::key_of(2))) << "its KV goes with it";
  EXPECT_TRUE(to->peek_segment(test::key_of(3)));
  EXPECT_EQ(asked, (std::vector<std::string>{"a", "b", "c"}));
  report = import(*to, pack, o);
  ASSERT_OK(report);
  EXPECT_EQ(report->skipped, 2u);
  EXPECT_EQ(asked.size(), 4u) << "what is there takes nothing more";
}

TEST_F(PackTransferTest, ADocumentIsStoredOnlyOnceItsCallerIsReady) {
  auto from = make_store(), to = make_store();
  ASSERT_OK(test::put_document(*from, "a", {1}));
  ASSERT_OK(test::put_document(*from, "b", {2}));
  const std::string pack = pack_of(*from, {"a", "b"});
  std::vector<std::string> asked;
  auto o = options();
  o.before_commit = [&](std::string_view id) {
    EXPECT_EQ(to->get_document_head("default", id).code(), Code::kNotFound);
    asked.emplace_back(id);
    return id == "b" ? Status::io("injected") : Status();
  };
  EXPECT_EQ(import(*to, pack, o).code(), Code::kIo);
  EXPECT_EQ(asked, (std::vector<std::string>{"a", "b"}));
  EXPECT_OK(to->get_document_head("default", "a"));
  EXPECT_EQ(to->get_document_head("default", "b").code(), Code::kNotFound);
}

TEST_F(PackTransferTest, UnknownIdsAreNamedBeforeAnythingIsWritten) {
  auto store = make_store();
  ASSERT_OK(test::put_document(*store, "a", {1}));
  bool wrote = false;
  const Status s = export_documents(*store, "default", {"a", "nobody"}, {},
                                    [&](std::string_view) { return wrote = true; });
  EXPECT_EQ(s.code(), Code::kNotFound);
  EXPECT_EQ(s.field(), "nobody");
  EXPECT_FALSE(wrote);
  EXPECT_EQ(
      export_documents(*store, "default", {"a"}, {}, [](std::string_view) { return false; }).code(),
      Code::kCancelled);
}

}  // namespace
}  // namespace quire
