// Stores over a real PostgreSQL server. Skipped where Debian's package `postgresql` is not
// installed.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "cachestore/catalog/postgres_catalog.h"
#include "tests/support/harness/cutting_proxy.h"
#include "tests/support/harness/postgres_process.h"
#include "tests/support/harness/test_store.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using test::MemoryDisk;
using test::MemoryTier;
using test::PostgresProcess;
using testing::soon;

CatalogOptions options_for(const std::string& url) {
  CatalogOptions o;
  o.url = url;
  o.poll = std::chrono::milliseconds(200);
  return o;
}

struct Replica {
  explicit Replica(const std::string& url) { status = open(url); }
  Status open(const std::string& url) {
    store.reset();
    StoreOptions options;
    options.catalog = options_for(url);
    QUIRE_ASSIGN_OR_RETURN(auto catalog, open_shared_catalog(options.catalog));
    QUIRE_ASSIGN_OR_RETURN(
        store, open_store_on(options, std::make_unique<MemoryTier>(disk), {}, std::move(catalog)));
    return {};
  }
  std::uint64_t version(const std::string& id) {
    const auto head = store->get_document_head("default", id);
    return head.ok() ? head->version : 0;
  }
  bool has(const std::string& id, std::uint64_t at_version) {
    return soon([&] { return version(id) == at_version; });
  }
  Status post(const std::string& id, std::uint64_t key = 1) {
    return store->commit_document(test::manifest_of(id, {key}), test::text_of(id)).status();
  }
  Result<DocumentManifest> edit(const std::string& id,
                                const std::function<void(DocumentManifest&)>& change,
                                CommitOptions condition = {}) {
    return store->update_document(
        "default", id,
        [&](DocumentManifest& m) {
          change(m);
          return Status();
        },
        condition);
  }

  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
  Status status;
  std::unique_ptr<AdminStore> store;
};

class StorePostgres : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::postgres_programs().empty())
      GTEST_SKIP() << "there is no PostgreSQL server: install Debian's package postgresql";
    server = std::make_unique<PostgresProcess>();
  }
  std::unique_ptr<PostgresProcess> server;
};

/// Runs statements over a connection of its own.
class Session {
 public:
  explicit Session(const PostgresProcess& server) : connection_(server.connect()) {}
  Status operator()(std::string_view sql) {
    QUIRE_RETURN_IF_ERROR(connection_.status());
    std::vector<PostgresRows> rows;
    const PostgresStatement statement{{}, sql, {}};
    return (*connection_)->run({&statement, 1}, Clock::now() + std::chrono::seconds(10), &rows);
  }

 private:
  Result<std::unique_ptr<PostgresConnection>> connection_;
};

TEST_F(StorePostgres, ReplicasSeeEachOthersPostsPatchesPinsTtlsAndDeletes) {
  Replica a(server->url()), b(server->url());
  ASSERT_OK(a.status);
  ASSERT_OK(b.status);
  DocumentManifest m = test::manifest_of("d", {1, 2});
  m.title = "Größe \n 文";
  m.marks = {{3, 1, "A heading"}};
  const auto posted = a.store->commit_document(m, test::text_of("d"));
  ASSERT_OK(posted);
  ASSERT_TRUE(b.has("d", 1));
  EXPECT_EQ(b.store->get_document("default", "d").value_or({}), *posted);
  EXPECT_EQ(b.store->get_text("default", "d").value_or(""), test::text_of("d"));
  ASSERT_OK(b.edit("d", [](DocumentManifest& d) {
    d.title = "by b";
    d.metadata_json = R"({"a":[1,2]})";
    d.pinned = true;
    d.ttl_seconds = 5000;
    d.ttl_anchor = TtlAnchor::kLastUsed;
  }));
  ASSERT_TRUE(a.has("d", 2));
  const auto at_a = a.store->get_document("default", "d");
  ASSERT_OK(at_a);
  EXPECT_EQ(at_a->title, "by b");
  EXPECT_EQ(at_a->metadata_json, R"({"a":[1,2]})");
  EXPECT_TRUE(at_a->pinned);
  EXPECT_EQ(at_a->ttl_seconds, 5000u);
  EXPECT_EQ(at_a->ttl_anchor, TtlAnchor::kLastUsed);
  EXPECT_EQ(at_a->chunks, posted->chunks);
  const std::string another = "another text of the document";
  ASSERT_OK(a.store->commit_document(test::manifest_of("d", {3}, another.size()), another));
  ASSERT_TRUE(b.has("d", 3));
  EXPECT_EQ(b.store->get_text("default", "d").value_or(""), another);
  ASSERT_OK(b.store->delete_document("default", "d"));
  ASSERT_TRUE(a.has("d", 0));
  EXPECT_EQ(server->run("SELECT count(*) FROM quire_documents").value().at(0).number(0, 0), 0u);
}

TEST_F(StorePostgres, LongTextsAndBytesOfEveryKindPass) {
  Replica a(server->url()), b(server->url());
  std::string text(8u << 20, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  DocumentManifest m = test::manifest_of("d", {1});
  m.chunks[0].byte_end = text.size();
  m.chunks[0].token_ids.assign(300'000, 123'456);
  ASSERT_OK(a.store->commit_document(m, text));
  ASSERT_TRUE(b.has("d", 1));
  EXPECT_EQ(b.store->get_text("default", "d").value_or("") == text, true);
  EXPECT_EQ(b.store->get_document("default", "d")->chunks[0].token_ids.size(), 300'000u);
}

TEST_F(StorePostgres, OfTwoWritersOfOneVersionExactlyOneWins) {
  Replica a(server->url()), b(server->url());
  ASSERT_OK(a.post("d"));
  ASSERT_TRUE(b.has("d", 1));
  for (std::uint64_t version = 1; version < 20; ++version) {
    CommitOptions condition;
    condition.expected_version = version;
    auto other = std::async(std::launch::async, [&] {
      return b.edit(
          "d", [](DocumentManifest& m) { m.title = "b"; }, condition);
    });
    const auto at_a = a.edit(
        "d", [](DocumentManifest& m) { m.title = "a"; }, condition);
    const auto at_b = other.get();
    ASSERT_NE(at_a.ok(), at_b.ok()) << at_a.status().to_string() << at_b.status().to_string();
    EXPECT_EQ((at_a.ok() ? at_b : at_a).code(), Code::kFailedPrecondition);
    ASSERT_TRUE(a.has("d", version + 1) && b.has("d", version + 1));
    EXPECT_EQ(b.store->get_document_head("default", "d")->title, at_a.ok() ? "a" : "b");
  }
}

/// Returns an id whose changes are in this part of the log.
std::string id_in(std::uint32_t shard, int n) {
  for (int i = 0;; ++i) {
    std::string id = "x" + std::to_string(i);
    if (catalog_shard("default", id) == shard && n-- == 0) return id;
  }
}

TEST_F(StorePostgres, AChangeThatIsCommittedLateIsNotSkipped) {
  Replica a(server->url()), b(server->url());
  const std::string first = id_in(3, 0), second = id_in(3, 1), elsewhere = id_in(4, 0);
  // A transaction that has begun to change a document of part 3, and does not end yet.
  auto slow = server->connect();
  ASSERT_OK(slow);
  std::vector<PostgresRows> rows;
  const std::string number = "SELECT number FROM quire_shards WHERE shard = 3 FOR UPDATE";
  const auto send = [&](std::string_view sql) {
    const PostgresStatement statement{{}, sql, {}};
    return (*slow)->run({&statement, 1}, Clock::now() + std::chrono::seconds(10), &rows);
  };
  ASSERT_OK(send("BEGIN"));
  ASSERT_OK(send(number));
  auto late = std::async(std::launch::async, [&] { return a.post(second); });
  // Parts do not wait for each other.
  ASSERT_OK(a.post(elsewhere));
  EXPECT_TRUE(b.has(elsewhere, 1));
  EXPECT_EQ(late.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout)
      << "it would get a number that is seen before the one of the first";
  // The first now makes its change as a replica would.
  const DocumentManifest m = [&] {
    DocumentManifest d = test::manifest_of(first, {1});
    d.version = 1;
    d.created_ms = d.updated_ms = 1;
    for (auto& c : d.chunks) {
      c.num_tokens = static_cast<std::uint32_t>(c.token_ids.size());
      d.num_tokens += c.num_tokens;
    }
    return d;
  }();
  const std::string head = record::encode_head(m), tokens = record::encode_tokens(m),
                    text = test::text_of(first);
  const PostgresStatement steps[] = {
      {{}, "UPDATE quire_shards SET number = number + 1 WHERE shard = 3", {}},
      {{},
       "INSERT INTO quire_documents (ns, id, revision, body, version, head, tokens, text) SELECT "
       "'default'::bytea, $1::bytea, number, number, 1, $2::bytea, $3::bytea, $4::bytea FROM "
       "quire_shards WHERE shard = 3",
       {first, head, tokens, text}},
      {{},
       "INSERT INTO quire_changes (shard, number, ns, id, writer) SELECT 3, number, "
       "'default'::bytea, $1::bytea, 'test' FROM quire_shards WHERE shard = 3",
       {first}},
      {{}, "COMMIT", {}}};
  ASSERT_OK((*slow)->run(steps, Clock::now() + std::chrono::seconds(10), &rows));
  EXPECT_OK(late.get());
  EXPECT_TRUE(b.has(first, 1) && b.has(second, 1));
  EXPECT_EQ(b.store->catalog_stats().whole_reads, 1u) << "of the first start alone";
}

TEST_F(StorePostgres, ChangesOfManyThreadsAndReplicasAllArrive) {
  Replica a(server->url()), b(server->url()), c(server->url());
  constexpr int kThreads = 6, kEach = 40;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Replica& r = t % 2 == 0 ? a : b;
      for (int i = 0; i < kEach; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        EXPECT_OK(r.post(id));
        if (i % 3 == 0) {
          EXPECT_OK(r.edit(id, [](DocumentManifest& m) { m.pinned = true; }));
        }
        if (i % 5 == 0) {
          EXPECT_OK(r.store->delete_document("default", id));
        }
      }
    });
  for (auto& t : threads) t.join();
  for (Replica* r : {&a, &b, &c})
    EXPECT_TRUE(soon([&] { return r->store->catalog_stats().behind == 0; }));
  for (int t = 0; t < kThreads; ++t)
    for (int i = 0; i < kEach; ++i)
      EXPECT_TRUE(c.has(std::to_string(t) + "-" + std::to_string(i), i % 5 == 0   ? 0
                                                                     : i % 3 == 0 ? 2
                                                                                  : 1));
  EXPECT_EQ(c.store->catalog_stats().whole_reads, 1u);
}

TEST_F(StorePostgres, WhatWasAcknowledgedSurvivesAServerThatIsKilled) {
  Replica a(server->url()), b(server->url());
  std::atomic<bool> stop{false};
  std::mutex mu;
  std::map<std::string, std::uint64_t> acknowledged;  // guarded by mu; 0: deleted
  std::map<std::string, bool> in_doubt;               // guarded by mu
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Replica& r = t % 2 == 0 ? a : b;
      for (int i = 0; !stop; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        const Status s = r.post(id);
        EXPECT_TRUE(s.ok() || catalog_is_away(s)) << s.to_string();
        if (!s.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::uint64_t version = 1;
        const bool remove = s.ok() && i % 4 == 0;
        Status removed;
        if (remove) removed = r.store->delete_document("default", id);
        EXPECT_TRUE(removed.ok() || catalog_is_away(removed)) << removed.to_string();
        if (remove && removed.ok()) version = 0;
        const std::lock_guard lock(mu);
        if (s.ok() && removed.ok())
          acknowledged[id] = version;
        else
          in_doubt[id] = true;
      }
    });
  for (int round = 0; round < 4; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    server->kill();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server->start();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  stop = true;
  for (auto& t : threads) t.join();
  EXPECT_GT(acknowledged.size(), 20u);
  Replica c(server->url());
  ASSERT_OK(c.status);
  for (Replica* r : {&a, &b, &c}) {
    EXPECT_TRUE(soon([&] {
      const CatalogStats s = r->store->catalog_stats();
      return s.up && s.behind == 0;
    }));
    for (const auto& [id, version] : acknowledged) EXPECT_TRUE(r->has(id, version)) << id;
    // What was not acknowledged is the same everywhere.
    for (const auto& [id, doubt] : in_doubt) EXPECT_TRUE(r->has(id, c.version(id))) << id;
  }
  RecordProperty("acknowledged", static_cast<int>(acknowledged.size()));
  RecordProperty("in_doubt", static_cast<int>(in_doubt.size()));
}

/// With its end: the begin of a transaction has the word COMMITTED.
constexpr std::string_view kCommit("COMMIT\0", 7);

TEST_F(StorePostgres, ACommitWhoseAnswerIsLostIsLookedUp) {
  test::CuttingProxy proxy(server->port());
  Replica a(server->url_at(proxy.port())), b(server->url());
  ASSERT_OK(a.post("d"));
  for (int i = 0; i < 5; ++i) {
    const std::string id = "e" + std::to_string(i);
    proxy.lose_answer(kCommit);
    EXPECT_OK(a.post(id)) << "the commit was made";
    EXPECT_TRUE(proxy.has_cut());
    EXPECT_TRUE(b.has(id, 1));
    proxy.lose_answer(kCommit);
    EXPECT_OK(a.store->delete_document("default", id));
    EXPECT_TRUE(proxy.has_cut());
    EXPECT_TRUE(b.has(id, 0));
  }
}

TEST_F(StorePostgres, ACommitThatIsLostItselfIsNotReportedAsMade) {
  test::CuttingProxy proxy(server->port());
  Replica a(server->url_at(proxy.port())), b(server->url());
  ASSERT_OK(a.post("d"));
  for (int i = 0; i < 5; ++i) {
    proxy.lose_message(kCommit);
    const auto edited = a.edit("d", [](DocumentManifest& m) { m.title = "lost"; });
    EXPECT_TRUE(proxy.has_cut());
    EXPECT_TRUE(catalog_is_away(edited.status())) << edited.status().to_string();
    EXPECT_NE(edited.status().message().find("was not made"), std::string::npos);
    EXPECT_EQ(a.version("d"), 1u);
  }
  EXPECT_OK(a.edit("d", [](DocumentManifest& m) { m.title = "made"; }));
  EXPECT_TRUE(b.has("d", 2));
}

TEST_F(StorePostgres, AConnectionThatWasLostWhileItWasIdleIsMadeAgainUnnoticed) {
  Replica a(server->url());
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(a.post("d" + std::to_string(i)));
    ASSERT_OK(
        server->run("SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE "
                    "application_name = 'quire' AND pid <> pg_backend_pid()"));
  }
  ASSERT_OK(a.post("last"));
}

TEST_F(StorePostgres, AConnectionThatIsLostWhileItIsMadeIsMadeOnceMoreUnnoticed) {
  test::CuttingProxy proxy(server->port());
  Replica a(server->url_at(proxy.port()));
  ASSERT_OK(a.post("first"));
  // The connection that listens is made, and nothing else connects meanwhile. Without one the
  // statement fails, as it divides by zero.
  ASSERT_TRUE(soon([&] {
    return server
        ->run(
            "SELECT 1 / count(*) FROM pg_stat_activity WHERE application_name = 'quire' AND "
            "query LIKE 'LISTEN%' AND state = 'idle'")
        .ok();
  }));
  proxy.lose_message("client_min_messages");  // every new connection sends it
  ASSERT_OK(
      server->run("SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE "
                  "application_name = 'quire' AND pid <> pg_backend_pid()"));
  ASSERT_OK(a.post("last"));
  EXPECT_TRUE(soon([&] { return proxy.has_cut(); }));
}

TEST_F(StorePostgres, ALocalStoreThatIsLostIsBuiltFromTheCatalog) {
  Replica a(server->url());
  for (std::uint64_t i = 0; i < 60; ++i) ASSERT_OK(a.post("d" + std::to_string(i), i));
  ASSERT_OK(a.store->delete_document("default", "d7"));
  a.store.reset();
  a.disk = std::make_shared<MemoryDisk>();
  ASSERT_OK(a.open(server->url()));
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::string id = "d" + std::to_string(i);
    const auto d = a.store->get_document("default", id);
    if (i == 7) {
      EXPECT_EQ(d.code(), Code::kNotFound);
      continue;
    }
    ASSERT_OK(d);
    EXPECT_EQ(d->chunks[0].key, test::key_of(i));
    EXPECT_EQ(a.store->get_text("default", id).value_or(""), test::text_of(id));
  }
}

TEST_F(StorePostgres, WhileTheServerIsAwayWritesFailQuicklyAndReadsGoOn) {
  Replica a(server->url());
  ASSERT_OK(a.post("d"));
  server->kill();
  ASSERT_TRUE(soon([&] { return !a.store->catalog_stats().up; }));
  EXPECT_OK(a.store->get_document("default", "d"));
  const auto begun = Clock::now();
  const Status s = a.post("e");
  EXPECT_TRUE(catalog_is_away(s));
  EXPECT_EQ(s.to_string().find(PostgresProcess::kPassword), std::string::npos) << s.to_string();
  EXPECT_LT(ms_between(begun, Clock::now()), 2000);
  EXPECT_EQ(a.store->catalog_stats().reason.find(PostgresProcess::kPassword), std::string::npos);
  server->start();
  EXPECT_TRUE(soon([&] { return a.store->catalog_stats().up; }));
  EXPECT_OK(a.post("e"));
}

TEST_F(StorePostgres, TablesOfANewerProgramAndWrongPasswordsAreRefusedByName) {
  {
    Replica a(server->url());
    ASSERT_OK(a.status);
  }
  ASSERT_OK(server->run("INSERT INTO quire_migrations (version) VALUES (99)"));
  const Replica b(server->url());
  EXPECT_EQ(b.status.code(), Code::kFailedPrecondition);
  EXPECT_NE(b.status.message().find("version 99"), std::string::npos) << b.status.message();
  std::string wrong = server->url();
  wrong.replace(wrong.find(PostgresProcess::kPassword), 6, "wr0ng1");
  const Replica c(wrong);
  EXPECT_TRUE(catalog_is_away(c.status));
  EXPECT_NE(c.status.message().find("password"), std::string::npos) << c.status.message();
  EXPECT_EQ(c.status.message().find("wr0ng1"), std::string::npos);
}

TEST_F(StorePostgres, ReplicasThatStartAtOnceMakeTheTablesOnce) {
  std::vector<std::future<Status>> all;
  for (int i = 0; i < 6; ++i)
    all.push_back(std::async(std::launch::async, [&] { return Replica(server->url()).status; }));
  for (auto& each : all) EXPECT_OK(each.get());
  EXPECT_EQ(server->run("SELECT count(*) FROM quire_catalog").value().at(0).number(0, 0), 1u);
  EXPECT_EQ(server->run("SELECT count(*) FROM quire_shards").value().at(0).number(0, 0),
            kCatalogShards);
}

TEST_F(StorePostgres, ALostChangeIsNoticedThoughAnotherHasItsNumber) {
  Replica a(server->url()), b(server->url());
  for (const char* id : {"d", "e", "f"}) ASSERT_OK(a.post(id));
  ASSERT_TRUE(b.has("f", 1));
  EXPECT_TRUE(b.store->catalog_stats().up);
  Session send(*server);
  ASSERT_OK(send("UPDATE quire_changes SET writer = 'another'"));
  for (Replica* r : {&a, &b}) {
    EXPECT_TRUE(soon([&] { return !r->store->catalog_stats().up; }));
    const std::string reason = r->store->catalog_stats().reason;
    EXPECT_NE(reason.find("lacks changes"), reason.npos) << reason;
  }
  // The same of a change that this process has made and not read back.
  auto catalog = open_shared_catalog(options_for(server->url()));
  ASSERT_OK(catalog);
  CatalogPut p;
  p.ns = "default";
  p.id = "g";
  p.head = "head";
  p.tokens = "tokens";
  p.text = "text";
  ASSERT_OK((*catalog)->put(p, 0));
  EXPECT_FALSE((*catalog)->changes({}, 100)->lost);
  ASSERT_OK(send("UPDATE quire_changes SET writer = 'yet another'"));
  const auto found = (*catalog)->changes({}, 100);
  ASSERT_OK(found);
  EXPECT_TRUE(found->lost);
  ASSERT_EQ(found->changes.size(), 4u);
  EXPECT_FALSE((*catalog)->changes(found->end, 100)->lost) << "nobody stands before it any more";
}

TEST_F(StorePostgres, AChangeIsAnnouncedAndNotOnlyPolledFor) {
  StoreOptions options;
  options.catalog = options_for(server->url());
  options.catalog.poll = std::chrono::minutes(10);
  Replica a(server->url());
  auto catalog = open_shared_catalog(options.catalog);
  ASSERT_OK(catalog);
  auto b = open_store_on(options, std::make_unique<MemoryTier>(std::make_shared<MemoryDisk>()), {},
                         std::move(*catalog));
  ASSERT_OK(b);
  for (int i = 0; i < 5; ++i) {
    const std::string id = "d" + std::to_string(i);
    ASSERT_OK(a.post(id));
    EXPECT_TRUE(soon([&] { return (*b)->get_document_head("default", id).ok(); })) << i;
  }
}

struct Jobs {
  explicit Jobs(const std::string& url, std::chrono::milliseconds lease = std::chrono::hours(1)) {
    CatalogOptions options = options_for(url);
    options.job_lease = lease;
    auto opened = open_shared_catalog(options);
    EXPECT_OK(opened);
    if (opened.ok()) catalog = std::move(*opened);
  }
  SharedJobs* operator->() const { return &catalog->jobs(); }
  SharedJob make(const std::string& id, std::span<const SharedJobPart> parts = {}) const {
    SharedJob job;
    job.id = id;
    job.ns = "default";
    job.record = "record of " + id;
    EXPECT_OK(catalog->jobs().add(job, parts));
    return job;
  }
  std::vector<std::string> own(std::size_t claim = 0) const {
    std::vector<std::string> ids;
    const auto jobs = catalog->jobs().renew(claim, {});
    EXPECT_OK(jobs);
    for (const OwnJob& job : jobs.value_or({})) ids.push_back(job.id);
    return ids;
  }
  Result<std::uint64_t> put(const std::string& document, const JobFence& fence) const {
    CatalogPut p;
    p.ns = "default";
    p.id = document;
    p.version = 1;
    p.head = "head";
    p.tokens = "tokens";
    p.text = "text";
    p.fence = fence;
    return catalog->put(p, 0);
  }
  std::unique_ptr<SharedCatalog> catalog;
};

using Names = std::vector<std::string>;

TEST_F(StorePostgres, JobsAreReadListedAndEndedByTheReplicaThatHasThem) {
  const Jobs a(server->url()), b(server->url());
  const std::string text(3u << 20, 'x'), odd("\0;'\n", 4);
  const SharedJobPart parts[] = {{"input/1", odd}, {"text/1", text}, {"text/2", ""}};
  SharedJob job = a.make("job_b", parts);
  a.make("job_a");
  b.make("job_c");
  EXPECT_EQ(b->get("job_b")->record, job.record);
  EXPECT_EQ(b->get("job_x").code(), Code::kNotFound);
  const auto first = b->parts("job_b", "", 2);
  ASSERT_OK(first);
  ASSERT_EQ(first->size(), 2u);
  EXPECT_EQ((*first)[0].value, odd);
  EXPECT_EQ((*first)[1].value, text);
  EXPECT_EQ(b->parts("job_b", "text/1", 2)->at(0).name, "text/2");
  SharedJobList options;
  options.limit = 2;
  const auto ids = [&](const char* ns = "default") {
    Names out;
    const auto jobs = b->list(ns, options);
    for (const SharedJob& j : jobs.value_or({})) out.push_back(j.id);
    return out;
  };
  EXPECT_EQ(ids(), (Names{"job_c", "job_b"}));
  options.after = "job_b";
  EXPECT_EQ(ids(), Names{"job_a"});
  options.after = "";
  options.descending = false;
  EXPECT_EQ(ids(), (Names{"job_a", "job_b"}));
  EXPECT_EQ(ids("another"), Names{});
  job.status = 2;
  job.record = "ended";
  job.ended = true;
  EXPECT_TRUE(is_job_taken_over(b->save(job))) << "it is a's";
  ASSERT_OK(a->save(job));
  ASSERT_OK(a->save(job)) << "as after a lost answer";
  EXPECT_TRUE(b->get("job_b")->ended);
  EXPECT_TRUE(a->parts("job_b", "", 9)->empty());
  options.status = 2;
  EXPECT_EQ(ids(), Names{"job_b"});
  EXPECT_EQ(a.own(), Names{"job_a"});
  ASSERT_OK(b->cancel("another", "job_a"));
  EXPECT_FALSE(a->renew(0, {})->at(0).cancel);
  ASSERT_OK(b->cancel("default", "job_a"));
  EXPECT_TRUE(a->renew(0, {})->at(0).cancel);
  ASSERT_OK(a->purge(3'600'000));
  EXPECT_OK(a->get("job_b"));
  ASSERT_OK(a->purge(0));
  EXPECT_EQ(a->get("job_b").code(), Code::kNotFound);
  EXPECT_OK(a->get("job_a")) << "it has not ended";
}

TEST_F(StorePostgres, JobsOfAReplicaThatIsNotHeardOfAreTakenOnceByTheOthers) {
  const Jobs gone(server->url(), std::chrono::milliseconds(300));
  for (int i = 0; i < 40; ++i) gone.make("job_" + std::to_string(10 + i));
  const Jobs a(server->url()), b(server->url());
  EXPECT_EQ(a.own(100), Names{}) << "it was heard of a moment ago";
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const Names but_one = {"job_11", "job_12"};
  const auto taken = a->renew(2, but_one);
  ASSERT_OK(taken);
  ASSERT_EQ(taken->size(), 2u);
  EXPECT_EQ(taken->at(0).id, "job_10");
  EXPECT_EQ(taken->at(1).id, "job_13");
  std::atomic<bool> go{false};
  const auto claim = [&](const Jobs& jobs) {
    while (!go) std::this_thread::yield();
    for (int i = 0; i < 8; ++i) (void)jobs->renew(5, {});
  };
  std::thread other([&] { claim(b); });
  go = true;
  claim(a);
  other.join();
  Names all = a.own(), of_b = b.own();
  EXPECT_FALSE(all.empty());
  all.insert(all.end(), of_b.begin(), of_b.end());
  std::ranges::sort(all);
  EXPECT_EQ(all.size(), 40u);
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(gone.own(100), Names{}) << "it is back, and has none";
}

TEST_F(StorePostgres, AJobThatTakesLongToAddKeepsNoSignOfLifeWaiting) {
  const Jobs a(server->url());
  a.make("job_1");
  Session send(*server);
  // Its part does not get through, as where the network is slow.
  ASSERT_OK(send("BEGIN"));
  ASSERT_OK(send("INSERT INTO quire_job_parts VALUES ('job_2', 'text/1', '')"));
  const SharedJobPart parts[] = {{"text/1", "text"}};
  auto added = std::async(std::launch::async, [&] { a.make("job_2", parts); });
  ASSERT_EQ(added.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  auto own = std::async(std::launch::async, [&] { return a.own(); });
  EXPECT_EQ(own.wait_for(std::chrono::seconds(2)), std::future_status::ready);
  ASSERT_OK(send("ROLLBACK"));
  added.get();
  EXPECT_EQ(own.get(), Names{"job_1"});
  EXPECT_EQ(a.own(), (Names{"job_1", "job_2"}));
}

TEST_F(StorePostgres, ASignOfLifeAloneKeepsTheJobs) {
  const Jobs a(server->url()), b(server->url());
  a.make("job_1");
  Session send(*server);
  ASSERT_OK(send("UPDATE quire_replicas SET until = now() - interval '1 hour'"));
  ASSERT_OK(a->beat());
  EXPECT_EQ(b.own(100), Names{});
  EXPECT_EQ(a.own(), Names{"job_1"});
}

TEST_F(StorePostgres, AChangeForAJobNeedsTheJob) {
  const Jobs a(server->url()), b(server->url());
  a.make("job_1");
  ASSERT_OK(a.put("d", {"job_1", 0, "created"}));
  EXPECT_EQ(b->items("job_1")->at(0).mark, "created");
  EXPECT_TRUE(is_job_taken_over(b.put("e", {"job_1", 1, "created"}).status()));
  EXPECT_TRUE(is_job_taken_over(b.put("e", {"job_none", 1, "created"}).status()));
  EXPECT_EQ(a.put("d", {"job_1", 2, "created"}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(b->items("job_1")->size(), 1u) << "the mark goes with the document";
  ASSERT_OK(b->succeed(a->replica()));
  EXPECT_TRUE(is_job_taken_over(a.put("e", {"job_1", 1, "created"}).status()));
  ASSERT_OK(b.put("e", {"job_1", 1, "created"}));
  EXPECT_EQ(b.own(), Names{"job_1"});
  ASSERT_OK(b->leave());
  EXPECT_EQ(a.own(1), Names{"job_1"}) << "at once";
  ASSERT_OK(a->release("job_1"));
  EXPECT_EQ(a.own(), Names{});
  EXPECT_EQ(b.own(1), Names{"job_1"});
}

TEST_F(StorePostgres, AttemptsAreCountedUntilAnItemIsDoneAndNotForThoseWhoLeave) {
  const Jobs a(server->url()), b(server->url()), c(server->url()), d(server->url()),
      e(server->url(), std::chrono::milliseconds(1)), f(server->url());
  const auto attempts = [](const Jobs& jobs, std::size_t claim = 0) {
    const auto own = jobs->renew(claim, {});
    EXPECT_OK(own);
    return own.ok() && own->size() == 1 ? own->at(0).attempts : 99;
  };
  a.make("job_1");
  EXPECT_EQ(attempts(a), 0u);
  ASSERT_OK(a->begin("job_1"));
  EXPECT_TRUE(is_job_taken_over(b->begin("job_1")));
  ASSERT_OK(b->succeed(a->replica()));
  EXPECT_EQ(attempts(b), 1u);
  ASSERT_OK(c->succeed(b->replica()));
  EXPECT_EQ(attempts(c), 1u) << "it had not begun the job";
  ASSERT_OK(c->begin("job_1"));
  ASSERT_OK(c->leave());
  EXPECT_EQ(attempts(d, 1), 1u) << "it has stopped, not died";
  ASSERT_OK(d->begin("job_1"));
  ASSERT_OK(d.put("d", {"job_1", 0, "created"}));
  ASSERT_OK(e->succeed(d->replica()));
  EXPECT_EQ(attempts(e), 1u) << "the last one has brought the job forward";
  ASSERT_OK(e->begin("job_1"));
  EXPECT_TRUE(soon([&] { return attempts(f, 1) == 2; })) << "it is not heard of any more";
}

TEST_F(StorePostgres, ChangesOfEarlierJobsDoNotReplaceThoseOfLaterOnes) {
  const Jobs a(server->url()), b(server->url());
  a.make("job_9");  // the order is not that of names
  b.make("job_1");
  SharedJob same;
  same.id = "job_9";
  EXPECT_EQ(b->add(same, {}).code(), Code::kFailedPrecondition) << "names are given once";
  EXPECT_OK(a->add(same, {}));
  const auto put = [](const Jobs& jobs, const JobFence& fence, std::uint64_t expected) {
    CatalogPut p;
    p.ns = "default";
    p.id = "d";
    p.head = "head of " + fence.job;
    p.tokens = "tokens";
    p.text = "text";
    p.fence = fence;
    return jobs.catalog->put(p, expected);
  };
  const auto later = put(b, {"job_1", 0, "m"}, 0);
  ASSERT_OK(later);
  EXPECT_TRUE(is_change_overtaken(put(a, {"job_9", 0, "m"}, *later).status()));
  EXPECT_TRUE(is_change_overtaken(put(a, {"job_9", 0, "m"}, 0).status()));
  EXPECT_TRUE(is_change_overtaken(a.catalog->confirm("default", "d", *later, {"job_9", 0, "m"})));
  EXPECT_OK(b.catalog->confirm("default", "d", *later, {"job_1", 1, "m"}));
  const auto another = b.catalog->confirm("default", "d", *later + 1, {"job_1", 1, "m"});
  EXPECT_EQ(another.code(), Code::kFailedPrecondition) << "it is not as it was read";
  EXPECT_TRUE(is_job_taken_over(a.catalog->confirm("default", "d", *later, {"job_1", 1, "m"})));
  a.make("job_0");
  ASSERT_OK(a.catalog->confirm("default", "d", *later, {"job_0", 0, "m"}));
  EXPECT_TRUE(is_change_overtaken(put(b, {"job_1", 2, "m"}, *later).status()));
  // A deletion is later than all jobs before it, and the end of a TTL than none from behind the
  // document.
  a.make("job_5");
  const auto gone = a.catalog->remove("default", "d", *later, /*expired=*/true);
  ASSERT_OK(gone);
  const auto again = put(a, {"job_5", 0, "m"}, 0);
  ASSERT_OK(again);
  b.make("job_6");
  ASSERT_OK(a.catalog->remove("default", "d", *again, /*expired=*/false));
  EXPECT_TRUE(is_change_overtaken(put(b, {"job_6", 0, "m"}, 0).status()));
  b.make("job_7");
  ASSERT_OK(a.catalog->bar("default", "d"));
  EXPECT_TRUE(is_change_overtaken(put(b, {"job_7", 0, "m"}, 0).status()));
  b.make("job_8");
  EXPECT_OK(put(b, {"job_8", 0, "m"}, 0));
}

TEST_F(StorePostgres, TheEndOfATtlBarsJobsFromBeforeTheDocument) {
  const Jobs a(server->url()), b(server->url());
  const auto deletions = [&] {
    return server->run("SELECT count(*) FROM quire_deletions").value().at(0).number(0, 0);
  };
  a.make("job_1");
  b.make("job_2");
  b.make("job_3");
  const auto made = b.put("d", {"job_2", 0, "m"});
  ASSERT_OK(made);
  ASSERT_OK(a.catalog->remove("default", "d", *made, /*expired=*/true));
  EXPECT_TRUE(is_change_overtaken(a.put("d", {"job_1", 0, "m"}).status()));
  EXPECT_EQ(deletions(), 1u);
  EXPECT_OK(b.put("d", {"job_3", 0, "m"}));
  // Most documents run out when nobody works on anything from before them.
  for (const auto& [jobs, id] : {std::pair{&a, "job_1"}, {&b, "job_2"}}) {
    SharedJob job = *(*jobs)->get(id);
    job.ended = true;
    ASSERT_OK((*jobs)->save(job));
  }
  const auto another = b.put("e", {"job_3", 1, "m"});
  ASSERT_OK(another);
  ASSERT_OK(a.catalog->remove("default", "e", *another, /*expired=*/true));
  EXPECT_EQ(deletions(), 1u);
}

TEST_F(StorePostgres, KvThatIsMadeAnewKeepsNoEarlierJobFromReplacingTheDocument) {
  const Jobs a(server->url()), b(server->url());
  a.make("job_1");
  const auto made = a.put("d", {"job_1", 0, "m"});
  ASSERT_OK(made);
  a.make("job_2");
  b.make("job_3");
  const auto put = [](const Jobs& jobs, const JobFence& fence, std::uint64_t expected) {
    CatalogPut p;
    p.ns = "default";
    p.id = "d";
    p.head = "head";
    p.tokens = "tokens";
    p.fence = fence;
    return jobs.catalog->put(p, expected);
  };
  JobFence warm{"job_3", 0, "m"};
  warm.says_nothing_new = true;
  const auto warmed = put(b, warm, *made);
  ASSERT_OK(warmed);
  const auto posted = put(a, {"job_2", 0, "m"}, *warmed);
  ASSERT_OK(posted);
  a.make("job_4");
  ASSERT_OK(put(a, {"job_4", 0, "m"}, *posted));
  EXPECT_TRUE(is_change_overtaken(put(b, warm, *posted + 1).status()));
}

TEST_F(StorePostgres, ADeletionIsKeptWhileItBarsAJobHoweverOldItIs) {
  const Jobs a(server->url());
  a.make("job_1");
  ASSERT_OK(a.catalog->bar("default", "d"));
  Session send(*server);
  ASSERT_OK(send("UPDATE quire_deletions SET at = now() - interval '8 days'"));
  ASSERT_OK(a.catalog->trim());
  EXPECT_TRUE(is_change_overtaken(a.put("d", {"job_1", 0, "m"}).status()));
  SharedJob ended = *a->get("job_1");
  ended.ended = true;
  ASSERT_OK(a->save(ended));
  ASSERT_OK(a.catalog->trim());
  EXPECT_EQ(server->run("SELECT count(*) FROM quire_deletions").value().at(0).number(0, 0), 0u);
}

TEST_F(StorePostgres, ADocumentThatIsBeingMadeIsNotBarredButFound) {
  const Jobs a(server->url());
  a.make("job_1");
  // A change that has seen that nothing bars the document, and does not end yet.
  Session send(*server);
  const std::string lock = "SELECT number FROM quire_shards WHERE shard = " +
                           std::to_string(catalog_shard("default", "d")) + " FOR UPDATE";
  ASSERT_OK(send("BEGIN"));
  ASSERT_OK(send(lock));
  auto barred = std::async(std::launch::async, [&] { return a.catalog->bar("default", "d"); });
  EXPECT_EQ(barred.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  ASSERT_OK(
      send("INSERT INTO quire_documents (ns, id, revision, body, version, head, tokens, text) "
           "VALUES ('default'::bytea, 'd'::bytea, 1, 1, 1, '', '', '')"));
  ASSERT_OK(send("COMMIT"));
  EXPECT_EQ(barred.get().code(), Code::kFailedPrecondition);
  ASSERT_OK(send("DELETE FROM quire_documents"));
  EXPECT_OK(a.put("d", {"job_1", 0, "m"})) << "and it was not barred";
}

TEST_F(StorePostgres, ARoleWithAnotherIsolationMeetsChangesOfOthersAsEver) {
  Session send(*server);
  ASSERT_OK(send("ALTER ROLE quire SET default_transaction_isolation = 'serializable'"));
  const Jobs a(server->url());
  ASSERT_OK(a.catalog->records().put("r", "first", 0));
  ASSERT_OK(send("BEGIN"));
  ASSERT_OK(send("UPDATE quire_records SET revision = 2, value = 'second', writer = 'test'"));
  auto late = std::async(std::launch::async,
                         [&] { return a.catalog->records().put("r", "third", 1); });
  EXPECT_EQ(late.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  ASSERT_OK(send("COMMIT"));
  EXPECT_EQ(late.get().code(), Code::kFailedPrecondition) << "another was first, and no more";
  EXPECT_EQ(a.catalog->records().get("r")->value, "second");
}

TEST_F(StorePostgres, TablesOfTheFirstVersionAreRenewed) {
  {
    Replica a(server->url());
    ASSERT_OK(a.status);
    ASSERT_OK(a.post("d"));
  }
  for (const char* table : {"quire_jobs", "quire_replicas", "quire_job_parts", "quire_job_items",
                            "quire_deletions", "quire_records", "quire_replies"})
    ASSERT_OK(server->run("DROP TABLE " + std::string(table)));
  ASSERT_OK(server->run("ALTER TABLE quire_documents DROP COLUMN job"));
  ASSERT_OK(server->run("DROP SEQUENCE quire_order"));
  ASSERT_OK(server->run("DELETE FROM quire_migrations WHERE version > 1"));
  Replica b(server->url());
  ASSERT_OK(b.status);
  EXPECT_TRUE(b.has("d", 1));
  const Jobs jobs(server->url());
  jobs.make("job_1");
  EXPECT_EQ(jobs.own(), Names{"job_1"});
}

}  // namespace
}  // namespace quire
