// Services that have their documents from one PostgreSQL database. Skipped where Debian's package
// `postgresql` is not installed.
#include <array>
#include <atomic>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "tests/support/harness/postgres_process.h"
#include "tests/support/service_process.h"
#include "tests/support/soon.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

int status_of(const ServiceProcess& service, const std::string& method, const std::string& target,
              const std::string& body = {}) {
  return service.call(method, target, body).status;
}

double metric(const ServiceProcess& service, const std::string& series) {
  const std::string text = service.call("GET", "/metrics").body;
  const std::size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

std::string document(const std::string& id, const std::string& text) {
  return R"({"id":")" + id + R"(","text":)" + quoted(text) + "}";
}

class Catalog : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::postgres_programs().empty())
      GTEST_SKIP() << "there is no PostgreSQL server: install Debian's package postgresql";
    database = std::make_unique<test::PostgresProcess>();
    flags = {"--catalog.url=" + database->url(), "--catalog.poll_ms=200"};
    a.start(folder.path() / "a", flags);
    b.start(folder.path() / "b", flags);
  }
  /// Returns the ids that a search at this service finds, best first.
  static std::vector<std::string> search(const ServiceProcess& service, const std::string& words) {
    const auto found = service.json("POST", "/v1/retrieve", R"({"query":")" + words + "\"}");
    std::vector<std::string> out;
    for (const auto& hit : at(found, "data").as_array()) out.push_back(text_at(hit, "document_id"));
    return out;
  }
  static json::value ask(const ServiceProcess& service, const std::string& id) {
    int status = 0;
    const auto r = service.json("POST", "/v1/query",
                                R"({"query":"Who keeps the lighthouse?","document_ids":[")" + id +
                                    R"("],"max_tokens":16,"cache":{"strategy":"exact"}})",
                                {}, &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
    return r;
  }

  TempFolder folder;
  std::unique_ptr<test::PostgresProcess> database;
  std::vector<std::string> flags;
  ServiceProcess a, b;
  const std::string text = "The lighthouse of Skerryvore is kept by Morag Beaton. " +
                           sample_text(1, 300);
};

TEST_F(Catalog, ADocumentPostedAtOneIsFoundAskedChangedAndDeletedAtTheOther) {
  ASSERT_EQ(status_of(a, "POST", "/v1/documents?wait=true", document("d", text)), 200);
  ASSERT_EQ(status_of(a, "POST", "/v1/documents?wait=true", document("e", sample_text(2, 300))),
            200);
  ASSERT_TRUE(soon([&] {
    return status_of(b, "GET", "/v1/documents/d") == 200 &&
           status_of(b, "GET", "/v1/documents/e") == 200;
  }));
  EXPECT_EQ(b.call("GET", "/v1/documents/d/content").body, text);
  ASSERT_TRUE(soon([&] { return !search(b, "lighthouse Skerryvore").empty(); }));
  EXPECT_EQ(search(b, "lighthouse Skerryvore").at(0), "d");
  const auto there = ask(b, "d"), here = ask(a, "d");
  EXPECT_EQ(text_at(there, "documents.0.id"), "d");
  EXPECT_EQ(text_at(there, "answer"), text_at(here, "answer"));
  EXPECT_EQ(text_at(there, "documents.0.content_hash"), text_at(here, "documents.0.content_hash"));
  EXPECT_TRUE(soon([&] {
    return text_at(b.json("GET", "/v1/documents/d"), "cache.state") == "resident";
  })) << "computed at its first use, and kept";

  ASSERT_EQ(status_of(b, "PATCH", "/v1/documents/d", R"({"title":"Lights","pinned":true})"), 200);
  ASSERT_TRUE(soon([&] { return text_at(a.json("GET", "/v1/documents/d"), "title") == "Lights"; }));
  EXPECT_EQ(at(a.json("GET", "/v1/documents/d"), "pinned"), json::value(true));

  ASSERT_EQ(status_of(b, "DELETE", "/v1/documents/d"), 200);
  ASSERT_TRUE(soon([&] { return status_of(a, "GET", "/v1/documents/d") == 404; }));
  EXPECT_TRUE(soon([&] { return search(a, "lighthouse Skerryvore").empty(); }));
  EXPECT_EQ(
      status_of(a, "POST", "/v1/query", R"({"query":"Who?","document_ids":["d"],"max_tokens":4})"),
      404);
  EXPECT_EQ(text_at(a.json("GET", "/healthz"), "checks.catalog"), "ok");
  // What configs/prometheus/quire-rules.yml asks for.
  EXPECT_EQ(metric(a, "quire_catalog_up"), 1);
  EXPECT_TRUE(soon([&] { return metric(a, "quire_catalog_behind_changes") == 0; }));
  EXPECT_EQ(metric(b, "quire_catalog_written_total"), 2);
}

TEST_F(Catalog, WhileTheDatabaseIsAwayQuestionsGoOnAndChangesAreRefused) {
  ASSERT_EQ(status_of(a, "POST", "/v1/documents?wait=true", document("d", text)), 200);
  ASSERT_TRUE(soon([&] { return status_of(b, "GET", "/v1/documents/d") == 200; }));
  EXPECT_FALSE(b.call("GET", "/v1/documents/d").header("x-quire-catalog"));
  database->kill();
  ASSERT_TRUE(soon([&] { return metric(b, "quire_catalog_up") == 0; }));
  const auto asked = b.call("POST", "/v1/query",
                            R"({"query":"Who?","document_ids":["d"],"max_tokens":8})");
  EXPECT_EQ(asked.status, 200) << asked.body;
  EXPECT_EQ(asked.header("x-quire-catalog").value_or(""), "away");
  EXPECT_EQ(status_of(b, "GET", "/readyz"), 200);
  const std::string state = text_at(b.json("GET", "/healthz"), "checks.catalog");
  EXPECT_TRUE(state.starts_with("away since 20")) << state;
  const std::vector<std::array<std::string, 3>> changes = {
      {"POST", "/v1/documents", document("new", text)},
      {"PUT", "/v1/documents/new", R"({"text":"new"})"},
      {"PATCH", "/v1/documents/d", R"({"title":"x"})"},
      {"DELETE", "/v1/documents/d", ""},
      {"POST", "/v1/documents/delete", R"({"ids":["d"]})"},
      {"POST", "/v1/documents/delete", R"({"filter":{"status":"ready"}})"},
      {"POST", "/v1/documents/d/warm", ""},
      {"DELETE", "/v1/files/d", ""},
      {"POST", "/v1/vector_stores", R"({"name":"Lights"})"},
      {"POST", "/v1/admin/cache/pin", R"({"document_ids":["d"]})"},
      {"POST", "/v1/admin/cache/unpin", R"({"document_ids":["d"]})"}};
  for (const auto& [method, target, body] : changes) {
    const auto refused = b.call(method, target, body);
    EXPECT_EQ(refused.status, 503) << method << " " << target << refused.body;
    EXPECT_TRUE(refused.header("retry-after")) << method << " " << target;
    EXPECT_NE(refused.body.find("storage_unavailable"), std::string::npos) << refused.body;
    EXPECT_EQ(refused.body.find(test::PostgresProcess::kPassword), std::string::npos);
  }
  EXPECT_EQ(b.log().find(test::PostgresProcess::kPassword), std::string::npos);
  database->start();
  ASSERT_TRUE(soon([&] {
    return status_of(b, "POST", "/v1/documents?wait=true", document("new", text)) == 200;
  }));
  EXPECT_TRUE(soon([&] { return status_of(a, "GET", "/v1/documents/new") == 200; }));
  EXPECT_TRUE(soon([&] { return metric(a, "quire_catalog_up") == 1; }));
  EXPECT_EQ(status_of(b, "GET", "/v1/documents/d"), 200) << "it was not deleted";
}

/// Two services over a primary and its standby, which has what was acknowledged.
class Failover : public Catalog {
 protected:
  void SetUp() override {
    if (test::postgres_programs().empty())
      GTEST_SKIP() << "there is no PostgreSQL server: install Debian's package postgresql";
    database = std::make_unique<test::PostgresProcess>();
    standby = std::make_unique<test::PostgresProcess>(database.get());
    database->wait_for_standby();
    const std::string host = "127.0.0.1:";
    std::string url = database->url();
    url.insert(url.rfind('/'), "," + host + std::to_string(standby->port()));
    flags = {"--catalog.url=" + url, "--catalog.poll_ms=200", "--catalog.timeout_ms=2000"};
    a.start(folder.path() / "a", flags);
    b.start(folder.path() / "b", flags);
  }
  /// The primary is gone as `lose` does it, while a client writes; then the standby takes over.
  void lose_primary(const std::function<void()>& lose) {
    ASSERT_EQ(status_of(a, "POST", "/v1/documents?wait=true", document("d", text)), 200);
    ASSERT_TRUE(soon([&] { return status_of(b, "GET", "/v1/documents/d") == 200; }));
    std::vector<std::string> acknowledged = {"d"};
    std::atomic<int> posted = 0;
    std::atomic<bool> over = false;
    std::thread writer([&] {
      for (; !over; ++posted) {
        const std::string id = "w" + std::to_string(posted);
        if (status_of(a, "POST", "/v1/documents?wait=true",
                      document(id, sample_text(100 + posted % 50, 40))) == 200)
          acknowledged.push_back(id);
        if (posted > 200) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    });
    const bool written = soon([&] { return posted >= 20; });
    lose();
    const bool away = soon([&] { return metric(b, "quire_catalog_up") == 0; });
    EXPECT_EQ(status_of(b, "GET", "/v1/documents/d"), 200);
    EXPECT_OK(standby->promote());
    const bool back = soon(
        [&] { return metric(a, "quire_catalog_up") == 1 && metric(b, "quire_catalog_up") == 1; });
    over = true;
    writer.join();
    ASSERT_TRUE(written && away && back) << written << away << back;
    EXPECT_GE(acknowledged.size(), 20u);
    for (const std::string& id : acknowledged) {
      EXPECT_TRUE(soon([&] { return status_of(b, "GET", "/v1/documents/" + id) == 200; })) << id;
      const auto rows = standby->run("SELECT 1 FROM quire_documents WHERE id = '" + id + "'");
      ASSERT_OK(rows.status());
      EXPECT_EQ(rows->at(0).size(), 1) << id << " was acknowledged";
    }
    // Both services write to the new primary and follow each other there.
    ASSERT_EQ(status_of(b, "PATCH", "/v1/documents/d", R"({"title":"Lights"})"), 200);
    EXPECT_TRUE(
        soon([&] { return text_at(a.json("GET", "/v1/documents/d"), "title") == "Lights"; }));
    EXPECT_EQ(status_of(a, "DELETE", "/v1/documents/d"), 200);
    EXPECT_TRUE(soon([&] { return status_of(b, "GET", "/v1/documents/d") == 404; }));
  }
  std::unique_ptr<test::PostgresProcess> standby;
};

TEST_F(Failover, AfterThePrimaryDiedTheStandbyHasAllThatWasAcknowledged) {
  lose_primary([this] { database->kill(); });
}

TEST_F(Failover, APrimaryThatSaysNothingIsLeftForTheStandby) {
  lose_primary([this] { database->pause(); });
}

TEST_F(Catalog, AJobThatWasTakenIsCommittedOnceTheDatabaseIsBack) {
  const auto taken = a.json("POST", "/v1/documents", document("d", sample_text(7, 12'000)));
  const std::string job = text_at(taken, "job_id");
  ASSERT_FALSE(job.empty()) << json::serialize(taken);
  database->kill();
  ASSERT_TRUE(soon([&] { return metric(a, "quire_catalog_up") == 0; }));
  ASSERT_NE(status_of(b, "GET", "/v1/documents/d"), 200) << "it was too quick to be interrupted";
  database->start();
  ASSERT_TRUE(soon([&] {
    return text_at(a.json("GET", "/v1/jobs/" + job), "status") == "succeeded";
  })) << json::serialize(a.json("GET", "/v1/jobs/" + job));
  EXPECT_TRUE(soon([&] { return status_of(b, "GET", "/v1/documents/d") == 200; }));
  EXPECT_EQ(int_at(b.json("GET", "/v1/documents/d"), "version"), 1);
}

TEST_F(Catalog, ARequestThatIsRepeatedAtAnotherServiceIsCarriedOutOnce) {
  const std::vector<std::string> key = {"Idempotency-Key: once"};
  const std::string body = document("d", text), other = document("d", text + " More.");
  const auto first = a.call("POST", "/v1/documents?wait=true", body, key);
  ASSERT_EQ(first.status, 200) << first.body;
  const auto again = b.call("POST", "/v1/documents?wait=true", body, key);
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body, first.body);
  EXPECT_EQ(again.header("idempotency-replayed").value_or(""), "true");
  EXPECT_EQ(b.call("POST", "/v1/documents?wait=true", other, key).status, 422);
  // It outlives the service that replied, whatever ended it.
  a.kill();
  a.start(folder.path() / "a", flags);
  EXPECT_EQ(a.call("POST", "/v1/documents?wait=true", body, key).body, first.body);
  database->kill();
  ASSERT_TRUE(soon([&] { return metric(b, "quire_catalog_up") == 0; }));
  EXPECT_EQ(b.call("POST", "/v1/documents", other, {"Idempotency-Key: new"}).status, 503);
  EXPECT_EQ(b.call("POST", "/v1/documents?wait=true", body, key).body, first.body)
      << "what it has told once it knows";
  database->start();
  ASSERT_TRUE(soon([&] { return metric(b, "quire_catalog_up") == 1; }));
  EXPECT_EQ(b.call("POST", "/v1/documents?wait=true", other, {"Idempotency-Key: new"}).status, 200);
}

TEST_F(Catalog, AQuestionWaitsForADocumentThatAnotherServiceReads) {
  std::string batch;
  for (int i = 0; i < 30; ++i)
    batch += (i > 0 ? "," : "") + document("w" + std::to_string(i), sample_text(i, 400));
  const auto job = a.json("POST", "/v1/documents", "{\"documents\":[" + batch + "]}");
  int status = 0;
  const auto waits = b.json("GET", "/v1/documents/w29", {}, {}, &status);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(text_at(waits, "job_id"), text_at(job, "job_id"));
  const auto answer = b.call("POST", "/v1/query",
                             R"({"query":"Who?","document_ids":["w29"],"max_tokens":4,)"
                             R"("on_not_ready":"wait","timeout_ms":60000})");
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST_F(Catalog, AVectorStoreIsThereAtEveryService) {
  const auto made = a.json("POST", "/v1/vector_stores", R"({"name":"Lights"})");
  const std::string path = "/v1/vector_stores/" + text_at(made, "id");
  EXPECT_EQ(text_at(b.json("GET", path), "name"), "Lights");
  ASSERT_EQ(status_of(a, "POST", "/v1/documents?wait=true", document("d", text)), 200);
  ASSERT_TRUE(soon([&] { return status_of(b, "GET", "/v1/documents/d") == 200; }));
  ASSERT_EQ(status_of(b, "POST", path + "/files", R"({"file_id":"d"})"), 200);
  EXPECT_TRUE(soon([&] { return int_at(a.json("GET", path), "file_counts.completed") == 1; }));
  ASSERT_EQ(status_of(b, "POST", path, R"({"name":"Lamps"})"), 200);
  EXPECT_EQ(text_at(a.json("GET", path), "name"), "Lamps");
  ASSERT_EQ(status_of(a, "DELETE", path), 200);
  EXPECT_EQ(status_of(b, "GET", path), 404);
  // While the database is away, nobody knows whether another service has made one.
  const auto later = a.json("POST", "/v1/vector_stores", R"({"name":"Later"})");
  database->kill();
  ASSERT_TRUE(soon([&] { return metric(b, "quire_catalog_up") == 0; }));
  EXPECT_EQ(status_of(b, "GET", "/v1/vector_stores/" + text_at(later, "id")), 503);
  EXPECT_EQ(status_of(a, "GET", "/v1/vector_stores/" + text_at(later, "id")), 200);
}

TEST_F(Catalog, AServiceThatLostItsFolderHasAllDocumentsAgainBeforeItIsReady) {
  for (unsigned i = 0; i < 5; ++i)
    ASSERT_EQ(status_of(a, "POST", "/v1/documents?wait=true",
                        document("d" + std::to_string(i), sample_text(i, 200))),
              200);
  ServiceProcess c;
  c.start(folder.path() / "c", flags);
  EXPECT_EQ(at(c.json("GET", "/v1/documents"), "data").as_array().size(), 5u);
  EXPECT_EQ(text_at(ask(c, "d3"), "answer"), text_at(ask(a, "d3"), "answer"));
}

/// Posts documents that take this service a while, and returns the job.
std::string begin_job(const ServiceProcess& service, unsigned documents) {
  std::string body = R"({"documents":[)";
  for (unsigned i = 0; i < documents; ++i)
    body += (i > 0 ? "," : "") + document("d" + std::to_string(i), sample_text(i, 3000));
  int status = 0;
  const auto taken = service.json("POST", "/v1/documents", body + "]}", {}, &status);
  EXPECT_EQ(status, 202) << json::serialize(taken);
  return text_at(taken, "job_id");
}

std::int64_t completed(const ServiceProcess& service, const std::string& job) {
  int status = 0;
  const auto now = service.json("GET", "/v1/jobs/" + job, {}, {}, &status);
  return status == 200 ? int_at(now, "counts.completed") : -1;
}

TEST_F(Catalog, AKilledServicesJobGoesOnAtAnotherAndItComesBackWithoutIt) {
  a.stop();
  b.stop();
  flags.emplace_back("--catalog.job_lease_ms=2000");
  a.start(folder.path() / "a", flags);
  b.start(folder.path() / "b", flags);
  const std::string job = begin_job(a, 12);
  ASSERT_FALSE(job.empty());
  ASSERT_TRUE(soon([&] { return status_of(b, "GET", "/v1/documents/d0") == 200; }));
  a.kill();
  ASSERT_LT(at(b.json("GET", "/v1/documents?limit=100"), "data").as_array().size(), 12u)
      << "it was too quick to be interrupted";
  ASSERT_TRUE(soon([&] {
    return text_at(b.json("GET", "/v1/jobs/" + job), "status") == "succeeded";
  })) << json::serialize(b.json("GET", "/v1/jobs/" + job));
  const auto end = b.json("GET", "/v1/jobs/" + job);
  EXPECT_EQ(int_at(end, "counts.completed"), 12);
  for (const auto& item : at(end, "results").as_array())
    EXPECT_EQ(text_at(item, "result"), "created") << json::serialize(item);
  EXPECT_EQ(at(b.json("GET", "/v1/documents?limit=100"), "data").as_array().size(), 12u);
  ASSERT_EQ(status_of(b, "DELETE", "/v1/documents/d11"), 200);
  a.start(folder.path() / "a", flags);
  EXPECT_EQ(text_at(a.json("GET", "/v1/jobs/" + job), "status"), "succeeded");
  ASSERT_TRUE(soon([&] { return status_of(a, "GET", "/v1/documents/d11") == 404; }));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(status_of(b, "GET", "/v1/documents/d11"), 404) << "it was not posted again";
  for (unsigned i = 0; i < 11; ++i)
    EXPECT_EQ(int_at(a.json("GET", "/v1/documents/d" + std::to_string(i)), "version"), 1) << i;
}

TEST_F(Catalog, AFileBatchIsToldOfEverywhereAndGoesOnWhereItsServiceDies) {
  const auto made = a.json("POST", "/v1/vector_stores", R"({"name":"Lights"})");
  const std::string store = "/v1/vector_stores/" + text_at(made, "id");
  ASSERT_EQ(status_of(a, "POST", "/v1/documents?wait=true", document("ready", text)), 200);
  ASSERT_FALSE(begin_job(a, 8).empty());
  int status = 0;
  const auto batch = b.json("POST", store + "/file_batches", R"({"file_ids":["ready","d6","d7"]})",
                            {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(batch);
  const std::string path = store + "/file_batches/" + text_at(batch, "id");
  const auto now = [&] { return a.json("GET", path); };
  EXPECT_TRUE(soon([&] { return int_at(now(), "file_counts.completed") >= 1; }));
  ASSERT_EQ(text_at(now(), "status"), "in_progress") << "it was too quick to be interrupted";
  b.kill();
  EXPECT_TRUE(soon([&] { return text_at(now(), "status") == "completed"; }))
      << json::serialize(now());
  EXPECT_EQ(int_at(now(), "file_counts.completed"), 3);
  EXPECT_EQ(int_at(a.json("GET", store), "file_counts.completed"), 3);
  b.start(folder.path() / "b", flags);
  EXPECT_EQ(text_at(b.json("GET", path), "status"), "completed");
}

TEST_F(Catalog, JobsAreSeenListedAndCancelledAnywhere) {
  const std::string job = begin_job(a, 30);
  ASSERT_TRUE(soon([&] { return completed(b, job) >= 0; }));
  const auto jobs = b.json("GET", "/v1/jobs");
  ASSERT_EQ(at(jobs, "data").as_array().size(), 1u) << json::serialize(jobs);
  EXPECT_EQ(text_at(jobs, "data.0.id"), job);
  int status = 0;
  const auto cancelled = b.json("POST", "/v1/jobs/" + job + "/cancel", {}, {}, &status);
  EXPECT_EQ(status, 200) << json::serialize(cancelled);
  EXPECT_EQ(text_at(cancelled, "status"), "cancelled") << json::serialize(cancelled);
  EXPECT_EQ(text_at(a.json("GET", "/v1/jobs/" + job), "status"), "cancelled");
  const auto events = b.call("GET", "/v1/jobs/" + job + "/events");
  EXPECT_NE(events.body.find("event: done"), std::string::npos) << events.body;
  EXPECT_EQ(status_of(b, "GET", "/v1/jobs/job_00000000000000000000000000"), 404);
}

}  // namespace
}  // namespace quire::testing
