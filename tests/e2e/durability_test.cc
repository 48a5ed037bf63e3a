// The service survives a restart, a kill and a flipped byte.
#include <algorithm>
#include <boost/json/serialize.hpp>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "cachestore/disk/write_ledger.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

json::value ask(const ServiceProcess& service, const std::string& ids,
                const std::string& strategy = "reuse") {
  int status = 0;
  const auto r = service.json("POST", "/v1/query",
                              R"({"query":"What was built by the guild?","document_ids":)" + ids +
                                  R"(,"max_tokens":12,"cache":{"strategy":")" + strategy + "\"}}",
                              {}, &status);
  EXPECT_EQ(status, 200) << json::serialize(r);
  return r;
}

void post(const ServiceProcess& service, const std::string& id, unsigned seed, int words = 300) {
  const auto r = service.call(
      "POST", "/v1/documents?wait=true",
      R"({"id":")" + id + R"(","text":)" + quoted(sample_text(seed, words)) + "}");
  ASSERT_EQ(r.status, 200) << r.body;
}

TEST(Durability, AfterARestartTheSameQueryIsAnsweredFromDisk) {
  TempFolder folder;
  json::value before;
  {
    ServiceProcess service;
    service.start(folder.path() / "store");
    post(service, "a", 1);
    post(service, "b", 2);
    before = ask(service, R"(["a","b"])");
    EXPECT_EQ(service.stop(), 0);
  }
  ServiceProcess service;
  service.start(folder.path() / "store");
  const auto after = ask(service, R"(["a","b"])");
  EXPECT_EQ(text_at(after, "answer"), text_at(before, "answer"));
  EXPECT_GT(int_at(after, "cache.tiers.disk.blocks"), 0) << json::serialize(at(after, "cache"));
  EXPECT_GT(int_at(after, "cache.tiers.disk.bytes"), 0);
  EXPECT_EQ(int_at(after, "cache.tiers.dram.blocks"), 0);
  EXPECT_TRUE(at(after, "cache.misses").as_array().empty());
  const auto again = ask(service, R"(["b","a"])");
  EXPECT_GT(int_at(again, "cache.tiers.dram.blocks"), 0) << json::serialize(at(again, "cache"));
  EXPECT_EQ(service.stop(), 0);
}

/// Asks in a conversation and returns how many tokens of the prompt were known.
std::int64_t chat_cached(const ServiceProcess& service, const std::string& system) {
  int status = 0;
  const auto r = service.json("POST", "/v1/chat/completions",
                              R"({"messages":[{"role":"user","content":)" + quoted(system) +
                                  R"(}],"max_tokens":4,"temperature":0})",
                              {}, &status);
  EXPECT_EQ(status, 200) << json::serialize(r);
  return int_at(r, "usage.prompt_tokens_details.cached_tokens");
}

double kept_prompt_bytes(const ServiceProcess& service) {
  const std::string metrics = service.call("GET", "/metrics").body;
  const std::string name = "quire_memory_bytes{pool=\"prompt_file\"}";
  const std::size_t at = metrics.find(name);
  return at == std::string::npos ? 0 : std::stod(metrics.substr(at + name.size()));
}

TEST(Durability, AConversationIsKnownAfterAKillAndAfterAStop) {
  TempFolder folder;
  const std::string first = sample_text(3, 200), second = sample_text(4, 200);
  std::int64_t known = 0;
  {
    ServiceProcess service;
    service.start(folder.path() / "store");
    EXPECT_EQ(chat_cached(service, first), 0);
    known = chat_cached(service, first);
    EXPECT_GT(known, 100);
    // Pages are written while the engine is idle.
    double bytes = kept_prompt_bytes(service);
    for (int unchanged = 0; unchanged < 30;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const double now = kept_prompt_bytes(service);
      unchanged = now == bytes && now > 4096 ? unchanged + 1 : 0;
      bytes = now;
    }
    service.kill();
  }
  {
    ServiceProcess service;
    service.start(folder.path() / "store");
    EXPECT_EQ(chat_cached(service, first), known);
    EXPECT_EQ(chat_cached(service, second), 0);
    EXPECT_EQ(service.stop(), 0);
  }
  ServiceProcess service;
  service.start(folder.path() / "store", {"--disk.max_bytes=1GiB"});
  EXPECT_EQ(chat_cached(service, first), known);
  EXPECT_GT(chat_cached(service, second), 100);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Durability, AKillInAnIngestLosesNothingAcknowledged) {
  TempFolder folder;
  std::mt19937 random(7);
  std::vector<std::string> acknowledged;
  for (int round = 0; round < 4; ++round) {
    ServiceProcess service;
    service.start(folder.path() / "store");
    for (const auto& id : acknowledged)
      EXPECT_EQ(service.call("GET", "/v1/documents/" + id + "/content").body.substr(0, 7),
                "Report ")
          << id;
    const std::string base = "r" + std::to_string(round) + "-";
    post(service, base + "sync", 100 + static_cast<unsigned>(round));
    acknowledged.push_back(base + "sync");
    std::string documents;
    for (int i = 0; i < 10; ++i)
      documents += std::string(i ? "," : "") + R"({"id":")" + base + std::to_string(i) +
                   R"(","text":)" +
                   quoted(sample_text(static_cast<unsigned>(1000 + round * 10 + i), 200)) + "}";
    const auto r = service.call("POST", "/v1/documents", R"({"documents":[)" + documents + "]}");
    ASSERT_EQ(r.status, 202) << r.body;
    // A 202 acknowledges the documents.
    for (int i = 0; i < 10; ++i) acknowledged.push_back(base + std::to_string(i));
    for (unsigned n = random() % 60; n > 0; --n) (void)service.call("GET", "/livez");
    service.kill();
  }
  ServiceProcess service;
  service.start(folder.path() / "store");
  for (const auto& id : acknowledged) {
    const auto r = service.call(
        "POST", "/v1/query",
        R"({"query":"q","document_ids":[")" + id + R"("],"max_tokens":1,"timeout_ms":60000})");
    EXPECT_EQ(r.status, 200) << id << r.body;
  }
  EXPECT_EQ(service.stop(), 0);
  const auto verify = run_process(
      {QUIRE_BINARY, "store", "verify", "--path", (folder.path() / "store").string()});
  EXPECT_EQ(verify.exit_code, 0) << verify.out << verify.err;
}

TEST(Durability, AKillUnderLoadLosesNothingAcknowledgedAndJobsGoOn) {
  TempFolder folder;
  std::vector<std::string> acknowledged;
  std::string job;
  json::value before;
  {
    ServiceProcess service;
    service.start(folder.path() / "store");
    post(service, "a", 1);
    post(service, "b", 2);
    acknowledged = {"a", "b"};
    before = ask(service, R"(["a","b"])");
    // At the moment of the kill, queries stream, documents are written and a job runs.
    std::vector<std::unique_ptr<LoopbackClient>> streams;
    const std::string body =
        R"({"query":"q","document_ids":["a"],"max_tokens":1500,"temperature":2,"seed":3,)"
        R"("stream":true,"timeout_ms":600000})";
    for (int i = 0; i < 8; ++i) {
      streams.push_back(std::make_unique<LoopbackClient>(service.port()));
      ASSERT_TRUE(
          streams.back()->send("POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                               "application/json\r\nContent-Length: " +
                               std::to_string(body.size()) + "\r\n\r\n" + body));
    }
    EXPECT_NE(streams[0]->read_until("event: plan").find("event: plan"), std::string::npos);
    std::string documents;
    for (int i = 0; i < 30; ++i) {
      const std::string id = "job-" + std::to_string(i);
      documents += std::string(i ? "," : "") + R"({"id":")" + id + R"(","text":)" +
                   quoted(sample_text(static_cast<unsigned>(500 + i), 300)) + "}";
      acknowledged.push_back(id);
    }
    const auto r = service.call("POST", "/v1/documents", R"({"documents":[)" + documents + "]}");
    ASSERT_EQ(r.status, 202) << r.body;
    job = text_at(parse(r.body), "job_id");
    const auto late = service.call("POST", "/v1/documents",
                                   R"({"id":"late","text":)" + quoted(sample_text(3, 300)) + "}");
    ASSERT_EQ(late.status, 202) << late.body;  // not waited for: it queues behind the whole job
    acknowledged.push_back("late");
    service.kill();
  }
  ServiceProcess service;
  service.start(folder.path() / "store");
  const auto after = ask(service, R"(["a","b"])");
  EXPECT_EQ(text_at(after, "answer"), text_at(before, "answer"));
  EXPECT_GT(int_at(after, "cache.tiers.disk.blocks"), 0) << json::serialize(at(after, "cache"));
  EXPECT_TRUE(at(after, "cache.misses").as_array().empty());
  for (const auto& id : acknowledged)
    EXPECT_EQ(service.call("GET", "/v1/documents/" + id + "/content").body.substr(0, 7), "Report ")
        << id;
  LoopbackClient events(service.port(), 600);
  ASSERT_TRUE(events.send("GET /v1/jobs/" + job + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_NE(events.read_until("event: done").find("event: done"), std::string::npos);
  const auto finished = service.json("GET", "/v1/jobs/" + job);
  EXPECT_EQ(text_at(finished, "status"), "succeeded") << json::serialize(finished);
  EXPECT_EQ(int_at(finished, "counts.completed"), 30);
  EXPECT_EQ(int_at(service.json("POST", "/v1/admin/cache/verify"), "bad"), 0);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Durability, AFlippedByteIsAMissAndTheAnswerStaysRight) {
  TempFolder folder;
  json::value before;
  {
    ServiceProcess service;
    service.start(folder.path() / "store");
    post(service, "a", 5, 400);
    before = ask(service, R"(["a"])");
    EXPECT_EQ(service.stop(), 0);
  }
  fs::path largest;
  std::uintmax_t size = 0;
  for (const auto& f : fs::recursive_directory_iterator(folder.path() / "store"))
    if (f.is_regular_file() && f.path().extension() == ".extent" && f.file_size() > size) {
      size = f.file_size();
      largest = f.path();
    }
  ASSERT_FALSE(largest.empty());
  {
    std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(size / 3));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(size / 3));
    file.put(byte);
  }
  ServiceProcess service;
  service.start(folder.path() / "store");
  const auto after = ask(service, R"(["a"])");
  EXPECT_EQ(text_at(after, "answer"), text_at(before, "answer"));
  ASSERT_FALSE(at(after, "cache.misses").as_array().empty()) << json::serialize(at(after, "cache"));
  EXPECT_EQ(text_at(after, "cache.misses.0.reason"), "corrupt");
  EXPECT_NE(
      service.call("GET", "/metrics").body.find("quire_integrity_failures_total{tier=\"disk\"} 1"),
      std::string::npos);
  json::value healed = ask(service, R"(["a"])");
  // The block is stored after the answer, so the miss may last a few requests.
  for (int i = 0; i < 50 && !at(healed, "cache.misses").as_array().empty(); ++i)
    healed = ask(service, R"(["a"])");
  EXPECT_EQ(text_at(healed, "answer"), text_at(before, "answer"));
  EXPECT_TRUE(at(healed, "cache.misses").as_array().empty())
      << json::serialize(at(healed, "cache"));
  EXPECT_EQ(service.stop(), 0);
}

/// Leaves the ledger of a store as it is after the log lost so many acknowledged writes.
void lose_writes(const fs::path& store, std::uint64_t count) {
  WriteLedger ledger;
  ASSERT_TRUE(ledger.open((store / "LEDGER").string()).ok());
  std::uint64_t last = 0;
  for (const auto& entry : ledger.entries()) last = std::max(last, entry.number);
  ASSERT_GT(last, 0u);
  for (std::uint64_t i = 1; i <= count; ++i)
    ledger.add(last + i, /*families=*/1, 1'800'000'000'000 + static_cast<std::int64_t>(i));
}

/// Leaves a store whose service was killed, and whose log lacks `count` acknowledged writes.
void begin_with_lost_writes(const fs::path& store, std::uint64_t count) {
  ServiceProcess service;
  service.start(store);
  post(service, "a", 1, 20);
  service.kill();
  lose_writes(store, count);
}

TEST(Durability, LostWritesAreToldUntilAStartHasBeenReady) {
  TempFolder folder;
  const fs::path store = folder.path() / "store";
  begin_with_lost_writes(store, 3);
  // Commands say so and leave it to the service, also those that only read.
  for (const char* command : {"gc", "stats", "verify", "repair"}) {
    const auto said = run_process({QUIRE_BINARY, "store", command, "-p", store.string()});
    EXPECT_NE(said.err.find("the store has lost 3 acknowledged writes, from 2027-01-15T08:00:00"),
              std::string::npos)
        << command << ": " << said.err;
  }
  const std::string metric = "\nquire_store_lost_writes ";
  ServiceProcess service;
  service.start(store);
  EXPECT_NE(service.log().find("lost"), std::string::npos);
  EXPECT_NE(service.log().find(R"("writes":3)"), std::string::npos) << service.log();
  EXPECT_EQ(text_at(service.json("GET", "/healthz"), "checks.lost_writes"),
            "3 acknowledged writes, from 2027-01-15T08:00:00.001Z to 2027-01-15T08:00:00.003Z");
  EXPECT_NE(service.call("GET", "/metrics").body.find(metric + "3\n"), std::string::npos);
  EXPECT_EQ(service.call("GET", "/v1/documents/a").status, 200);
  EXPECT_EQ(service.stop(), 0);
  // The service was ready and has told it.
  service.start(store);
  EXPECT_TRUE(at(service.json("GET", "/healthz"), "checks.lost_writes").is_null());
  EXPECT_NE(service.call("GET", "/metrics").body.find(metric + "0\n"), std::string::npos);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Durability, LostWritesAreInTheLogAndTheMetricOfTheStartThatFindsThem) {
  TempFolder folder;
  const fs::path store = folder.path() / "store";
  begin_with_lost_writes(store, 2);
  ServiceProcess service;
  service.start(store);
  EXPECT_NE(service.log().find("acknowledged writes are lost"), std::string::npos);
  EXPECT_NE(service.log().find(R"("writes":2)"), std::string::npos) << service.log();
  EXPECT_EQ(text_at(service.json("GET", "/healthz"), "checks.lost_writes"),
            "2 acknowledged writes, from 2027-01-15T08:00:00.001Z to 2027-01-15T08:00:00.002Z");
  EXPECT_NE(service.call("GET", "/metrics").body.find("\nquire_store_lost_writes 2\n"),
            std::string::npos);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Durability, AReplyToAnIdempotencyKeyIsGivenAgainAfterARestart) {
  TempFolder folder;
  const std::string body = R"({"id":"once","if_exists":"error","text":"Once only."})";
  std::string first;
  {
    ServiceProcess service;
    service.start(folder.path() / "store");
    const auto r = service.call("POST", "/v1/documents?wait=true", body, {"Idempotency-Key: k"});
    EXPECT_EQ(r.status, 200) << r.body;
    first = r.body;
    EXPECT_EQ(service.stop(), 0);
  }
  ServiceProcess service;
  service.start(folder.path() / "store");
  const auto again = service.call("POST", "/v1/documents?wait=true", body, {"Idempotency-Key: k"});
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.header("idempotency-replayed"), "true");
  EXPECT_EQ(again.body, first);
  EXPECT_EQ(service.call("POST", "/v1/documents?wait=true", body).status, 409)
      << "without the key it is a new request";
  EXPECT_EQ(service.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
