// Documents can be read, listed, patched, deleted and expired.
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using namespace test;
using testing::ElementsAre;

class CatalogTest : public IngestTest {
 protected:
  void SetUp() override { open(); }
  std::vector<std::string> ids(const DocumentListOptions& o) {
    std::vector<std::string> out;
    const auto page = service_->documents().list("default", o);
    EXPECT_OK(page);
    for (const DocumentInfo& d : page->documents) out.push_back(d.id);
    return out;
  }
  /// Gives the chunks keys that are not those of this model, as after an import for another one.
  void misname(const std::string& id) {
    auto m = store_->get_document("default", id);
    ASSERT_OK(m);
    for (DocumentChunk& c : m->chunks) c.key = sha256("other " + c.key.hex());
    ASSERT_OK(store_->commit_document(*m, std::nullopt));
  }
};

TEST_F(CatalogTest, PagesThroughTenThousandDocumentsInBothOrders) {
  for (int i = 0; i < 10'000; ++i) {  // writes directly to the store, because this tests lists
    DocumentManifest m;
    m.ns = "default";
    char name[16];
    std::snprintf(name, sizeof name, "d%05d", i);
    m.id = name;
    m.status = DocumentStatus::kReady;
    m.metadata_json = i % 100 == 7 ? R"({"kind":"rare"})" : "{}";
    ASSERT_OK(store_->commit_document(m, std::string_view("x")));
  }
  for (const bool descending : {false, true}) {
    DocumentListOptions o;
    o.limit = 100;
    o.descending = descending;
    o.with_cache = false;
    std::set<std::string> seen;
    std::string last;
    while (true) {
      const auto page = service_->documents().list("default", o);
      ASSERT_OK(page);
      for (const DocumentInfo& d : page->documents) {
        ASSERT_TRUE(last.empty() || (descending ? d.id < last : d.id > last));
        last = d.id;
        ASSERT_TRUE(seen.insert(d.id).second);
      }
      if (!page->has_more) break;
      o.after = last;
    }
    EXPECT_EQ(seen.size(), 10'000u);
  }
  DocumentListOptions rare;
  rare.limit = 100;
  rare.filter.metadata = {{"kind", "rare"}};
  EXPECT_EQ(ids(rare).size(), 100u);
  EXPECT_FALSE(service_->documents().list("default", rare)->has_more);
  EXPECT_EQ(service_->documents().counts("default")->ready, 10'000u);
}

TEST_F(CatalogTest, ListsMixReadyAndWaitingDocuments) {
  for (const char* id : {"b", "d", "f"}) put(one(doc(id, std::string("text ") + id, R"({"n":1})")));
  engine_->close();
  std::vector<DocumentInput> batch;
  for (const char* id : {"a", "c", "e", "g"}) batch.push_back(doc(id, std::string("text ") + id));
  const auto job = service_->submit("default", std::move(batch), {});
  engine_->wait_for_one();
  DocumentListOptions o;
  o.descending = false;
  EXPECT_THAT(ids(o), ElementsAre("a", "b", "c", "d", "e", "f", "g"));
  o.limit = 2;
  std::vector<std::string> all;
  while (true) {
    const auto page = service_->documents().list("default", o);
    for (const DocumentInfo& d : page->documents) all.push_back(d.id);
    if (!page->has_more) break;
    o.after = all.back();
  }
  EXPECT_THAT(all, ElementsAre("a", "b", "c", "d", "e", "f", "g"));
  DocumentListOptions ready;
  ready.filter.status = DocumentStatus::kReady;
  EXPECT_THAT(ids(ready), ElementsAre("f", "d", "b"));
  ready.filter.status.reset();
  ready.filter.metadata = {{"n", "1"}};
  EXPECT_THAT(ids(ready), ElementsAre("f", "d", "b"));
  const auto counts = service_->documents().counts("default");
  EXPECT_EQ(counts->total, 7u);
  EXPECT_EQ(counts->in_progress, 4u);
  EXPECT_EQ(counts->ready, 3u);
  engine_->open();
  wait(job);
  EXPECT_EQ(service_->documents().counts("default")->ready, 7u);
  EXPECT_EQ(service_->documents().list("default", {.limit = 0}).status().field(), "limit");
}

TEST_F(CatalogTest, ABulkDeleteLeavesWhatDoesNotMatchAnyMore) {
  for (const char* id : {"a", "b", "c"}) put(one(doc(id, std::string("text ") + id, R"({"n":1})")));
  std::atomic<bool> first{true};
  faulty_->on_deleted([&] {
    if (!first.exchange(false)) return;
    DocumentPatch other, title;
    other.metadata_json = R"({"n":2})";
    EXPECT_OK(service_->documents().patch("default", "b", other));
    title.title = "still matches";
    EXPECT_OK(service_->documents().patch("default", "c", title));
  });
  BulkDelete request;
  request.filter.emplace();
  request.filter->metadata = {{"n", "1"}};
  const auto done = service_->documents().remove_many("default", request);
  ASSERT_OK(done);
  EXPECT_THAT(done->deleted, ElementsAre("a", "c"));
  EXPECT_TRUE(done->failed.empty());
  EXPECT_OK(service_->documents().get("default", "b"));
}

TEST_F(CatalogTest, ChunksAndBlocksAreOfTheVersionWhoseTextIsRead) {
  std::atomic<bool> replace{false};
  faulty_->on_read_text([&] {
    if (replace.exchange(false)) put(one(doc("a", "\xC3\xA9\xC3\xA9 short")));
  });
  put(one(doc("a", prose(700, 1))));
  replace = true;
  const auto chunks = service_->documents().chunks("default", "a");
  ASSERT_OK(chunks);
  ASSERT_EQ(chunks->size(), 1u);
  EXPECT_EQ(chunks->front().char_end, 8u);
  put(one(doc("a", prose(700, 1))));
  EXPECT_GT(service_->documents().chunks("default", "a")->size(), 1u);
  replace = true;
  const auto blocks = service_->documents().blocks("default", "a");
  ASSERT_OK(blocks);
  ASSERT_FALSE(blocks->empty());
  EXPECT_EQ(blocks->back().chunk, 0);
  EXPECT_EQ(blocks->back().char_end, 8u);
}

TEST_F(CatalogTest, PagesOverManyWaitingDocumentsMissNone) {
  const auto name = [](int i) { return "d" + std::to_string(100 + i); };
  for (int i = 0; i < 60; i += 3) put(one(doc(name(i), "text", R"({"n":1})")));
  engine_->close();
  std::vector<DocumentInput> batch;
  for (int i = 0; i < 60; ++i) {
    // Some of them are new versions of documents that are ready.
    if (i % 4 != 1)
      batch.push_back(doc(name(i), "other " + name(i), i % 2 ? R"({"n":1})" : R"({"n":2})"));
  }
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  for (const bool descending : {false, true}) {
    for (const bool filtered : {false, true}) {
      std::vector<std::string> expected;
      for (int i = 0; i < 60; ++i) {
        const bool ready = i % 3 == 0, waits = i % 4 != 1;
        if (ready ? true : waits && (!filtered || i % 2)) expected.push_back(name(i));
      }
      if (descending) std::reverse(expected.begin(), expected.end());
      for (const std::size_t limit : {1u, 2u, 7u, 100u}) {
        DocumentListOptions o;
        o.descending = descending;
        o.limit = limit;
        if (filtered) o.filter.metadata = {{"n", "1"}};
        std::vector<std::string> all;
        for (;;) {
          const auto page = service_->documents().list("default", o);
          ASSERT_OK(page);
          for (const DocumentInfo& d : page->documents) all.push_back(d.id);
          if (!page->has_more) break;
          ASSERT_EQ(page->documents.size(), limit);
          o.after = all.back();
        }
        EXPECT_EQ(all, expected) << descending << filtered << limit;
      }
    }
  }
  engine_->open();
  wait(job);
}

TEST_F(CatalogTest, BlocksTileTheTokensAndTheText) {
  const std::string text = "\xC3\x89t\xC3\xA9. " + prose(500, 4);
  put(one(doc("a", text, "", "Title")));
  const auto d = service_->documents().get("default", "a");
  const auto blocks = service_->documents().blocks("default", "a");
  const auto chunks = service_->documents().chunks("default", "a");
  ASSERT_OK(blocks);
  ASSERT_OK(chunks);
  EXPECT_EQ(blocks->size(), d->cache.blocks);
  std::uint64_t tokens = 0;
  std::set<std::string> names;
  for (const BlockInfo& b : *blocks) {
    tokens += b.token_end - b.token_begin;
    names.insert(b.block_id);
    ASSERT_TRUE(b.char_begin && b.char_end);
    EXPECT_LE(*b.char_begin, *b.char_end);
    const ChunkInfo& c = (*chunks)[static_cast<std::size_t>(b.chunk)];
    EXPECT_GE(*b.char_end, c.char_begin);
    EXPECT_LE(*b.char_end, c.char_end);
    if (b.token_end == c.tokens) {
      EXPECT_EQ(*b.char_end, c.char_end);
    }
  }
  EXPECT_EQ(tokens, d->tokens);
  EXPECT_EQ(names.size(), blocks->size());
  EXPECT_EQ(blocks->front().char_begin, 0u);
  EXPECT_EQ(blocks->front().block_id.substr(0, 2), "b-");
  EXPECT_EQ(chunks->back().char_end, [&] {
    std::uint64_t n = 0;
    for (char c : text) n += (c & 0xC0) != 0x80;
    return n;
  }());
  EXPECT_EQ(service_->documents().blocks("default", "none").code(), Code::kNotFound);
}

TEST_F(CatalogTest, PatchChangesWhatItNamesOnly) {
  put(one(doc("a", "text", R"({"x":1,"y":2})", "Old")));
  const auto hash = service_->documents().get("default", "a")->content_hash;
  DocumentPatch p;
  p.metadata_json = R"({"x":null,"z":3})";
  p.title = "New";
  p.pinned = true;
  p.ttl_seconds = 60;
  const auto d = service_->documents().patch("default", "a", p);
  ASSERT_OK(d);
  EXPECT_EQ(d->metadata_json, R"({"y":2,"z":3})");
  EXPECT_EQ(d->title, "New");
  EXPECT_EQ(d->content_hash, hash);
  EXPECT_TRUE(d->pinned);
  EXPECT_EQ(*d->expires_at_ms, d->updated_ms + 60'000);
  EXPECT_TRUE(service_->documents().blocks("default", "a")->front().char_begin)
      << "KV keeps the title it was made with";
  EXPECT_EQ(engine_->prefills(), 1);
  EXPECT_EQ(service_->documents().patch("default", "none", p).code(), Code::kNotFound);
  DocumentPatch guarded{.title = "Guarded"};
  guarded.condition.if_match = "other " + d->tag;
  const auto changed = service_->documents().patch("default", "a", guarded);
  ASSERT_OK(changed);
  EXPECT_NE(changed->tag, d->tag);
  EXPECT_EQ(service_->documents().patch("default", "a", guarded).status().field(), "If-Match");
  EXPECT_EQ(service_->documents().remove("default", "a", {d->tag, {}}).field(), "If-Match");
  EXPECT_EQ(service_->documents().remove("default", "a", {{}, "*"}).field(), "If-None-Match");
  EXPECT_EQ(service_->documents().patch("default", "a", {.metadata_json = "[]"}).status().field(),
            "metadata");
  EXPECT_EQ(service_->documents().patch("default", "a", {.title = "\xFF"}).status().field(),
            "title");
  DocumentPatch past;
  past.expires_at_ms = 1;
  EXPECT_EQ(service_->documents().patch("default", "a", past).status().field(), "expires_at");
  DocumentPatch off;
  off.ttl_seconds = std::optional<std::uint64_t>();
  EXPECT_FALSE(service_->documents().patch("default", "a", off)->expires_at_ms);
}

TEST_F(CatalogTest, APostBehindWhichAWarmUpWaitsKeepsADocumentFromBeingPatched) {
  put(one(doc("a", "text")));
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "another text")), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  const auto warm = service_->warm("default", "a");
  ASSERT_OK(warm);
  const DocumentPatch patch{.title = "Patched"};
  const auto refused = service_->documents().patch("default", "a", patch);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), testing::HasSubstr(job->id));
  engine_->open();
  wait(job);
  wait(warm);
  EXPECT_OK(service_->documents().patch("default", "a", patch));
}

TEST_F(CatalogTest, PatchTellsWhatADocumentWasReadBehindAsGetDoes) {
  put(one(doc("alone", "text")));
  BatchOptions options;
  options.chunking.lead_in = true;
  put(one(doc("behind", "another text")), options);
  for (const char* id : {"alone", "behind"}) {
    const auto before = service_->documents().get("default", id);
    ASSERT_OK(before);
    ASSERT_TRUE(before->read_behind);
    const auto changed = service_->documents().patch("default", id, {.title = "New"});
    ASSERT_OK(changed);
    EXPECT_EQ(changed->read_behind, before->read_behind) << id;
  }
}

TEST_F(CatalogTest, WithoutATtlThereIsNoEndHoweverItWasSet) {
  put(one(doc("a", "text")));
  DocumentPatch end, off;
  end.expires_at_ms = clock_ms_ + 5000;
  EXPECT_EQ(*service_->documents().patch("default", "a", end)->expires_at_ms, clock_ms_ + 5000);
  off.ttl_seconds = std::optional<std::uint64_t>();
  EXPECT_FALSE(service_->documents().patch("default", "a", off)->expires_at_ms);
  off.expires_at_ms = clock_ms_ + 7000;
  EXPECT_EQ(*service_->documents().patch("default", "a", off)->expires_at_ms, clock_ms_ + 7000)
      << "given beside, it counts";
}

TEST_F(CatalogTest, DocumentsExpireAfterCreationOrLastUse) {
  BatchOptions o;
  o.ttl_seconds = 100;
  put(one(doc("created", "text one")), o);
  o.ttl_anchor = TtlAnchor::kLastUsed;
  put(one(doc("used", "text two")), o);
  clock_ms_ += 90'000;
  const std::vector<std::string> both = {"created", "used"};
  EXPECT_EQ(service_->resolve("default", both, {})->documents.size(), 2u);
  clock_ms_ += 20'000;
  EXPECT_EQ(service_->documents().get("default", "created").code(), Code::kNotFound);
  EXPECT_OK(service_->documents().get("default", "used"));
  ASSERT_OK(service_->run_maintenance());
  EXPECT_EQ(service_->stats().documents_expired, 1);
  EXPECT_EQ(service_->documents().counts("default")->total, 1u);
  clock_ms_ += 100'000;
  ASSERT_OK(service_->run_maintenance());
  EXPECT_EQ(service_->documents().counts("default")->total, 0u);
}

TEST_F(CatalogTest, AJobThatAFullDiskCannotTakeKeepsNothingFromMakingRoom) {
  const Status full = Status::exhausted("the disk is full");
  BatchOptions o;
  o.ttl_seconds = 100;
  put(one(doc("short", "text one")), o);
  put(one(doc("old", "text two")));
  // Texts, job, segment and document are written, and the end of the job is not, nor what follows.
  faulty_->fail_at(4, full, 2);
  EXPECT_EQ(put(one(doc("new", "text three"))).status, JobStatus::kSucceeded);
  ASSERT_TRUE(faulty_->failed());
  clock_ms_ += 200'000;
  EXPECT_EQ(service_->run_maintenance().code(), Code::kResourceExhausted);
  EXPECT_EQ(service_->stats().documents_expired, 1);

  // The job can be saved neither before a deletion nor after it.
  faulty_->fail_at(0, full);
  faulty_->on_deleted([&] { faulty_->fail_at(0, full, 2); });
  EXPECT_OK(service_->documents().remove("default", "old"));
  EXPECT_EQ(service_->documents().get("default", "old").code(), Code::kNotFound);
  const Status undone = service_->documents().remove("default", "new");
  EXPECT_EQ(undone.code(), Code::kResourceExhausted) << "a crash would bring it back";
  EXPECT_THAT(undone.message(), testing::HasSubstr("is deleted"));
  EXPECT_EQ(service_->documents().get("default", "new").code(), Code::kNotFound);
  faulty_->on_deleted({});
  faulty_->fail_at(-1, Status());
  EXPECT_OK(service_->run_maintenance());
}

TEST_F(CatalogTest, APatchIsToldAsMadeThoughAnotherJobCannotBeSaved) {
  put(one(doc("old", "text one")));
  faulty_->fail_at(4, Status::exhausted("the disk is full"));
  EXPECT_EQ(put(one(doc("new", "text two"))).status, JobStatus::kSucceeded);
  ASSERT_TRUE(faulty_->failed());
  faulty_->fail_at(1, Status::exhausted("the disk is full"));  // behind the change itself
  DocumentPatch p;
  p.title = "Other";
  const auto changed = service_->documents().patch("default", "old", p);
  ASSERT_OK(changed);
  EXPECT_EQ(changed->title, "Other");
}

TEST_F(CatalogTest, ATtlStartsWhenItIsSet) {
  put(one(doc("patched", "text one")));
  put(one(doc("posted", "text two")));
  clock_ms_ += 90'000;
  DocumentPatch patch;
  patch.ttl_seconds = 60;
  const auto patched = service_->documents().patch("default", "patched", patch);
  ASSERT_OK(patched);
  EXPECT_EQ(*patched->expires_at_ms, clock_ms_ + 60'000);
  BatchOptions options;
  options.ttl_seconds = 60;
  for (int i = 0; i < 3; ++i) {  // the same text again, and again before it ends
    put(one(doc("posted", "text two")), options);
    const auto posted = service_->documents().get("default", "posted");
    ASSERT_OK(posted);
    EXPECT_EQ(*posted->expires_at_ms, clock_ms_ + 60'000);
    clock_ms_ += 50'000;
  }
  EXPECT_EQ(engine_->prefills(), 2);
  patch = {};
  patch.title = "Other";
  const auto titled = service_->documents().patch("default", "posted", patch);
  ASSERT_OK(titled);
  EXPECT_EQ(*titled->expires_at_ms, clock_ms_ + 10'000) << "a title starts no TTL again";
}

TEST_F(CatalogTest, UsesAreCountedUnlessOnlyPlanned) {
  put(one(doc("a", "text")));
  const std::vector<std::string> a = {"a"};
  (void)service_->resolve("default", a, {});
  ResolveOptions plan;
  plan.touch = false;
  (void)service_->resolve("default", a, plan);
  ASSERT_OK(store_->flush());
  const auto d = service_->documents().get("default", "a");
  EXPECT_EQ(d->hits, 1u);
  EXPECT_EQ(d->last_used_ms, clock_ms_.load());
}

TEST_F(CatalogTest, ResolveKeepsOrderKeysAndSalts) {
  put(one(doc("a", prose(300, 1))));
  BatchOptions salted;
  salted.cache_salt = "pepper and salt";
  put(one(doc("s", "salted text")), salted);
  const std::vector<std::string> asked = {"s", "a", "s"};
  const auto r = service_->resolve("default", asked, {});
  ASSERT_OK(r);
  ASSERT_EQ(r->documents.size(), 3u);
  EXPECT_EQ(r->documents[0].id, "s");
  EXPECT_TRUE(r->documents[0].other_salt);
  EXPECT_FALSE(r->documents[1].other_salt);
  EXPECT_EQ(r->documents[1].byte_ranges.size(), r->documents[1].contexts.size());
  EXPECT_EQ(*r->documents[1].contexts[0].key,
            engine_->names().context_key(r->documents[1].contexts[0].token_ids, "default", {}));
  ResolveOptions with;
  with.cache_salt = "pepper and salt";
  const auto same = service_->resolve("default", asked, with);
  EXPECT_FALSE(same->documents[0].other_salt);
  EXPECT_EQ(same->salt_digest, service_->salt_digest("pepper and salt"));
  EXPECT_EQ(*same->documents[0].contexts[0].key,
            engine_->names().context_key(same->documents[0].contexts[0].token_ids, "default",
                                         same->salt_digest));
  with.cache_salt = "x";
  EXPECT_EQ(service_->resolve("default", asked, with).status().field(), "cache_salt");
}

TEST_F(CatalogTest, NamespacesShareKvOnlyWhenTold) {
  put(one(doc("a", "shared words")));
  put(one(doc("a", "shared words")), {}, "team-b");
  EXPECT_EQ(engine_->prefills(), 2);
  service_->stop();
  options_.share_across_namespaces = true;
  make_service();
  put(one(doc("x", "other words")));
  const JobSnapshot job = put(one(doc("x", "other words")), {}, "team-b");
  EXPECT_EQ(engine_->prefills(), 3);
  EXPECT_EQ(job.usage.deduplicated_tokens, job.usage.tokens);
  ASSERT_OK(service_->documents().remove("default", "x"));
  EXPECT_EQ(service_->documents().get("team-b", "x")->cache.state, "resident")
      << "still referenced";
}

TEST_F(CatalogTest, ADocumentThatGetsOtherNamesKeepsNoKvOfADraftUnderOldOnes) {
  engine_->give_draft();
  BatchOptions o;
  o.chunking.max_tokens = 64;
  put(one(doc("a", prose(300, 1))), o);
  const auto before = store_->get_document("default", "a");
  ASSERT_OK(before);
  ASSERT_GT(before->chunks.size(), 1u);
  ASSERT_EQ(before->companions.size(), before->chunks.size());
  const std::vector<ContextKey> further{sha256("of a further model"), sha256("not computed yet")};
  ASSERT_OK(store_->add_companions(*before, further));
  {
    auto writer = store_->begin_segment(further[0], {1, 1, 0}, 64, "default", "m-00000002");
    ASSERT_OK(writer);
    ASSERT_OK((*writer)->put_value(0, 0, std::vector<std::byte>(16)));
    const auto segment = (*writer)->finish();
    ASSERT_OK(segment);
    ASSERT_OK(store_->commit_segments({&*segment, 1}));
  }
  service_->stop();
  options_.share_across_namespaces = true;
  make_service();
  EXPECT_EQ(wait(service_->warm("default", "a")).results[0].result, ItemResult::kWarmed);
  const auto after = store_->get_document("default", "a");
  ASSERT_OK(after);
  EXPECT_EQ(after->companions.size(), after->chunks.size() + further.size());
  for (const ContextKey& key : further) EXPECT_EQ(std::ranges::count(after->companions, key), 1);
  for (const ContextKey& key : before->companions) {
    EXPECT_EQ(std::ranges::count(after->companions, key), 0);
    EXPECT_FALSE(store_->peek_segment(key)) << "nothing finds it";
  }
  EXPECT_TRUE(store_->peek_segment(further[0]));
}

TEST_F(CatalogTest, BulkDeleteByIdsAndFilter) {
  std::vector<DocumentInput> batch;
  for (int i = 0; i < 6; ++i)
    batch.push_back(doc("d" + std::to_string(i), "text " + std::to_string(i),
                        i % 2 ? R"({"odd":true})" : "{}"));
  put(std::move(batch));
  BulkDelete dry;
  dry.filter = DocumentFilter{.status = {}, .metadata = {{"odd", "true"}}};
  dry.dry_run = true;
  EXPECT_THAT(service_->documents().remove_many("default", dry)->deleted,
              ElementsAre("d1", "d3", "d5"));
  EXPECT_EQ(service_->documents().counts("default")->total, 6u);
  dry.dry_run = false;
  EXPECT_EQ(service_->documents().remove_many("default", dry)->deleted.size(), 3u);
  BulkDelete named;
  named.ids = {"d0", "none", "d0"};
  const auto r = service_->documents().remove_many("default", named);
  EXPECT_THAT(r->deleted, ElementsAre("d0"));
  EXPECT_THAT(r->not_found, ElementsAre("none"));
  EXPECT_EQ(service_->documents().counts("default")->total, 2u);
  EXPECT_EQ(service_->documents().remove_many("default", {}).status().field(), "ids");
  BulkDelete everything;
  everything.filter.emplace();
  EXPECT_EQ(service_->documents().remove_many("default", everything).status().field(), "filter");
}

TEST_F(CatalogTest, LostKvIsShownAndComputedAgainByPostingOrWarming) {
  BatchOptions o;
  o.chunking.max_tokens = 64;
  put(one(doc("a", prose(300, 1))), o);
  const auto tokens = service_->documents().get("default", "a")->tokens;
  // A segment with damaged bytes is quarantined. A manifest without KV has the same effect here.
  auto m = store_->get_document("default", "a");
  ASSERT_OK(m);
  for (DocumentChunk& c : m->chunks) c.key = sha256("gone " + c.key.hex());
  ASSERT_OK(store_->commit_document(*m, std::nullopt));
  EXPECT_EQ(service_->documents().get("default", "a")->cache.state, "evicted");
  const JobSnapshot job = put(one(doc("a", prose(300, 1))), o);
  EXPECT_EQ(job.results[0].result, ItemResult::kUnchanged);
  EXPECT_EQ(job.usage.tokens, static_cast<std::int64_t>(tokens));
  EXPECT_GT(job.usage.cache_write_tokens, 0);
}

/// A document that was imported while another model was loaded has keys of no KV of this one.
TEST_F(CatalogTest, KvIsFoundAgainUnderKeysThatAreNotThoseOfTheModel) {
  BatchOptions o;
  o.chunking.max_tokens = 64;
  const auto document = [](const std::string& id) {
    return one(doc(id, prose(300, static_cast<std::uint64_t>(id[0])), "", "Title"));
  };
  const auto put_misnamed = [&](const std::string& id, KvPolicy kv) {
    o.kv = kv;
    put(document(id), o);
    misname(id);
  };
  const auto expect_named = [&](const std::string& id, bool cached) {
    const std::vector<std::string> ids = {id};
    const auto found = service_->resolve("default", ids, {});
    ASSERT_OK(found);
    ASSERT_GT(found->documents.at(0).contexts.size(), 1u);
    for (const QueryContext& c : found->documents[0].contexts) {
      EXPECT_EQ(c.key, engine_->names().context_key(c.token_ids, "default", {}, c.left_context));
      EXPECT_EQ(store_->find_segment(*c.key).has_value(), cached);
    }
  };
  put_misnamed("warmed", KvPolicy::kEager);
  EXPECT_EQ(wait(service_->warm("default", "warmed")).results[0].result, ItemResult::kWarmed);
  expect_named("warmed", true);
  EXPECT_EQ(service_->documents().get("default", "warmed")->cache.state, "resident");
  const auto version = service_->documents().get("default", "warmed")->version;
  wait(service_->warm("default", "warmed"));
  EXPECT_EQ(service_->documents().get("default", "warmed")->version, version);

  put_misnamed("lazy", KvPolicy::kLazy);
  EXPECT_EQ(put(document("lazy"), o).results[0].result, ItemResult::kUnchanged);
  expect_named("lazy", false);

  put_misnamed("posted", KvPolicy::kEager);
  EXPECT_EQ(put(document("posted"), o).results[0].result, ItemResult::kUnchanged);
  expect_named("posted", true);
}

TEST_F(CatalogTest, AChangeWhileKvGetsItsNamesStaysAndTheKvToo) {
  std::atomic<bool> changes{false};
  faulty_->before_commit = [&] {
    if (!changes.exchange(false)) return;
    EXPECT_OK(store_->update_document("default", "a", [](DocumentManifest& m) {
      m.title = "changed";
      m.pinned = true;
      m.expires_at_ms = 2'000'000'000'000;
      return Status();
    }));
  };
  const auto input = one(doc("a", prose(100, 1), "", "Title"));
  for (const bool warm : {true, false}) {
    put(input);
    misname("a");
    changes = true;
    const JobSnapshot job = warm ? wait(service_->warm("default", "a")) : put(input);
    EXPECT_EQ(job.results[0].result, warm ? ItemResult::kWarmed : ItemResult::kUnchanged);
    const auto now = service_->documents().get("default", "a");
    ASSERT_OK(now);
    EXPECT_EQ(now->cache.state, "resident");
    EXPECT_EQ(now->title, "changed");
    EXPECT_TRUE(now->pinned);
    EXPECT_EQ(now->expires_at_ms, 2'000'000'000'000);
    EXPECT_EQ(*service_->documents().content("default", "a"), prose(100, 1));
  }
}

TEST_F(CatalogTest, KvOfADocumentThatIsReplacedMeanwhileIsNotCalledWarmed) {
  std::atomic<bool> replaces{false};
  faulty_->before_commit = [&] {
    if (!replaces.exchange(false)) return;
    auto m = store_->get_document("default", "a");
    EXPECT_OK(m);
    m->content_hash = "sha256:other";
    EXPECT_OK(store_->commit_document(*m, std::nullopt));
  };
  const auto input = one(doc("a", prose(100, 1), "", "Title"));
  put(input);
  misname("a");
  replaces = true;
  const JobSnapshot warm = wait(service_->warm("default", "a"));
  ASSERT_TRUE(warm.results[0].error);
  EXPECT_EQ(warm.results[0].error->code, "precondition_failed");
  const auto replaced = service_->documents().get("default", "a");
  EXPECT_EQ(replaced->content_hash, "sha256:other");

  put(input);
  const auto hash = service_->documents().get("default", "a")->content_hash;
  misname("a");
  replaces = true;
  const auto post = service_->submit("default", input, {});
  ASSERT_OK(post);
  while (!service_->jobs().job("default", post->id)->finished()) {
    ASSERT_OK(service_->run_maintenance());
    std::this_thread::yield();
  }
  EXPECT_EQ(wait(post).results[0].result, ItemResult::kUpdated);
  const auto posted = service_->documents().get("default", "a");
  EXPECT_EQ(posted->content_hash, hash);
  EXPECT_EQ(posted->cache.state, "resident");
}

TEST_F(CatalogTest, PlacesStayWithTheirTextAndNewOnesCostNoPrefill) {
  BatchOptions o;
  o.chunking.max_tokens = 64;
  DocumentInput d = doc("a", prose(200, 1));
  const std::uint64_t half = d.text->size() / 2;
  d.marks = {{0, 1, "One"}, {half, 2, "Two"}};
  EXPECT_EQ(put(one(d), o).results[0].result, ItemResult::kCreated);
  const auto chunks = service_->documents().chunks("default", "a");
  ASSERT_OK(chunks);
  ASSERT_GE(chunks->size(), 3u);
  EXPECT_EQ(chunks->front().place, (TextPlace{1, 1, "One"}));
  EXPECT_EQ(chunks->back().place, (TextPlace{2, 2, "Two"}));
  DocumentPatch patch;
  patch.title = "other";
  ASSERT_OK(service_->documents().patch("default", "a", patch));
  EXPECT_EQ(*service_->documents().marks("default", "a"), d.marks);

  d.title = "";
  EXPECT_EQ(put(one(d), o).results[0].result, ItemResult::kUpdated) << "the title";
  EXPECT_EQ(put(one(d), o).results[0].result, ItemResult::kUnchanged);
  d.marks[1].page = 7;
  const JobSnapshot job = put(one(d), o);
  EXPECT_EQ(job.results[0].result, ItemResult::kUpdated);
  EXPECT_EQ(job.usage.cache_write_tokens, 0);
  EXPECT_EQ(service_->documents().marks("default", "a")->at(1).page, 7u);

  d.marks = {{d.text->size() + 1, 1, ""}};
  const JobSnapshot wrong = put(one(d), o);
  ASSERT_TRUE(wrong.results[0].error);
  EXPECT_EQ(wrong.results[0].error->param, "documents[0].marks[0].start");
}

TEST_F(CatalogTest, LazyDocumentsHaveNoKvUntilTheyAreWarmedOrPostedAgain) {
  BatchOptions o;
  o.chunking.max_tokens = 64;
  o.kv = KvPolicy::kLazy;
  const DocumentInput d = doc("a", prose(200, 1));
  const JobSnapshot job = put(one(d), o);
  EXPECT_EQ(job.results[0].result, ItemResult::kCreated);
  EXPECT_EQ(job.usage.cache_write_tokens + job.usage.deduplicated_tokens, 0);
  const auto state = [&] { return service_->documents().get("default", "a")->cache.state; };
  EXPECT_EQ(state(), "lazy");
  EXPECT_EQ(put(one(d), o).results[0].result, ItemResult::kUnchanged);
  EXPECT_EQ(state(), "lazy") << "posting it again computes nothing either";
  const auto lazy = store_->get_document("default", "a");
  ASSERT_OK(lazy);
  o.kv = KvPolicy::kEager;
  EXPECT_EQ(put(one(d), o).results[0].result, ItemResult::kUpdated);
  EXPECT_EQ(state(), "resident");
  const auto eager = store_->get_document("default", "a");
  ASSERT_OK(eager);
  for (std::size_t i = 0; i < eager->chunks.size(); ++i)
    EXPECT_EQ(lazy->chunks[i].key, eager->chunks[i].key) << "the KV that a query would store";

  o.kv = KvPolicy::kLazy;
  put(one(doc("b", prose(200, 2))), o);
  const auto warm = service_->warm("default", "b");
  ASSERT_OK(warm);
  wait(warm);
  EXPECT_EQ(service_->documents().get("default", "b")->cache.state, "resident");
}

TEST_F(CatalogTest, TextOnlyDocumentsNeverKeepKv) {
  BatchOptions o;
  put(one(doc("a", prose(200, 1))), o);
  o.kv = KvPolicy::kTextOnly;
  EXPECT_EQ(put(one(doc("a", prose(200, 1))), o).results[0].result, ItemResult::kUpdated);
  const auto info = service_->documents().get("default", "a");
  EXPECT_EQ(info->cache.state, "text_only");
  EXPECT_EQ(info->cache.bytes, 0u);
  const auto stored = store_->get_document("default", "a");
  ASSERT_OK(stored);
  for (const DocumentChunk& c : stored->chunks) EXPECT_TRUE(c.key.is_zero());
  const auto warm = service_->warm("default", "a");
  ASSERT_OK(warm);
  const JobSnapshot job = wait(warm);
  ASSERT_TRUE(job.results.at(0).error);
  EXPECT_EQ(job.results[0].error->code, "invalid_value");
  o.pinned = true;
  EXPECT_EQ(service_->submit("default", one(doc("b", "text")), o).status().field(), "pinned");
}

TEST_F(CatalogTest, SectionsOfMarkdownHaveTheirHeadings) {
  BatchOptions o;
  o.chunking.max_tokens = 64;
  o.chunking.strategy = ChunkStrategy::kMarkdown;
  put(one(doc("a", "# One\n" + prose(40, 1) + "\n\n## Two\n" + prose(40, 2))), o);
  const auto chunks = service_->documents().chunks("default", "a");
  ASSERT_OK(chunks);
  ASSERT_GE(chunks->size(), 2u);
  EXPECT_EQ(chunks->front().place.heading, "One");
  EXPECT_EQ(chunks->back().place, (TextPlace{0, 0, "One > Two"}));
}

TEST_F(CatalogTest, JobsAreListedByTimeStatusAndNamespace) {
  std::vector<std::string> made;
  for (int i = 0; i < 5; ++i)
    made.push_back(put(one(doc("d", i == 2 ? "" : "text " + std::to_string(i)))).id);
  put(one(doc("d", "x")), {}, "other");
  JobListOptions o;
  o.limit = 2;
  auto page = service_->jobs().list_jobs("default", o);
  ASSERT_OK(page);
  EXPECT_TRUE(page->has_more);
  EXPECT_EQ(page->jobs[0].id, made[4]);
  o.after = page->jobs[1].id;
  page = service_->jobs().list_jobs("default", o);
  EXPECT_EQ(page->jobs[0].id, made[2]);
  o = {};
  o.descending = false;
  EXPECT_EQ(service_->jobs().list_jobs("default", o)->jobs[0].id, made[0]);
  o.status = JobStatus::kFailed;
  page = service_->jobs().list_jobs("default", o);
  ASSERT_EQ(page->jobs.size(), 1u);
  EXPECT_EQ(page->jobs[0].id, made[2]);
  EXPECT_EQ(page->jobs[0].error->code, "empty_document");
  EXPECT_EQ(service_->jobs().job("other", made[0]).code(), Code::kNotFound);
}

}  // namespace
}  // namespace quire
