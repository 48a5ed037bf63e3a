// Start, stop, drain, disconnect, keys and namespaces of the real service work.
#include <signal.h>

#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "cachestore/format/key.h"
#include "server/http/http_client.h"
#include "server/support/second_signal.h"
#include "tests/support/service_process.h"
#include "tests/support/soon.h"
#include "tests/unit/server/http/test_certificate.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

std::string http_post(const std::string& target, const std::string& body) {
  return "POST " + target +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(StoreFiles, OnlyTheServicesUserCanReadThem) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  ASSERT_EQ(
      service.call("POST", "/v1/documents?wait=true", R"({"id":"d","text":"A text."})").status,
      200);
  namespace fs = std::filesystem;
  int files = 0;
  for (const auto& e : fs::recursive_directory_iterator(folder.path() / "store")) {
    const auto others = fs::perms::group_all | fs::perms::others_all;
    EXPECT_EQ(e.status().permissions() & others, fs::perms::none) << e.path();
    ++files;
  }
  EXPECT_GT(files, 8);
  EXPECT_EQ(service.stop(), 0);
}

/// Asks for an answer of 400 tokens and returns once it streams.
void begin_long_answer(LoopbackClient& c) {
  ASSERT_TRUE(c.send(http_post(
      "/v1/query",
      R"({"query":"q","max_tokens":400,"temperature":1.5,"seed":3,"stream":true,"stop":[]})")));
  ASSERT_NE(c.read_until("event: ").find("event: plan"), std::string::npos);
}

TEST(Lifecycle, TermLetsARunningAnswerFinish) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  LoopbackClient c(service.port());
  ASSERT_NO_FATAL_FAILURE(begin_long_answer(c));
  service.signal(SIGTERM);
  const std::string rest = c.read_until("event: done");
  EXPECT_NE(rest.find("event: done"), std::string::npos) << rest;
  EXPECT_EQ(service.wait(), 0);
  EXPECT_NE(service.log().find("\"all_requests_finished\":\"true\""), std::string::npos);
}

TEST(Lifecycle, DrainingRefusesNewWorkOnOpenConnections) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store", {"--server.drain_seconds=60"});
  LoopbackClient busy(service.port());
  ASSERT_TRUE(busy.send(
      http_post(
          "/v1/query",
          R"({"query":"q","max_tokens":1500,"temperature":2,"top_p":1,"seed":3,"stream":true})") +
      http_post("/v1/query", R"({"query":"second"})")));
  ASSERT_NE(busy.read_until("event: ").find("event: plan"), std::string::npos);
  service.signal(SIGTERM);
  (void)busy.read_until("event: done");
  EXPECT_EQ(service.wait(), 0);
}

TEST(Lifecycle, AStopDoesNotWaitForTheEventsOfAJob) {
  TempFolder folder;
  std::ofstream(folder.path() / "long.txt") << sample_text(1, 400'000);
  ServiceProcess service;
  service.start(folder.path() / "store", {"--server.drain_seconds=300"});
  auto ingest = std::async(std::launch::async, [&] {
    return run_process({QUIRE_BINARY, "ingest", "--server",
                        "http://127.0.0.1:" + std::to_string(service.port()),
                        (folder.path() / "long.txt").string()});
  });
  std::string job;
  EXPECT_TRUE(soon([&] {
    const auto jobs = service.json("GET", "/v1/jobs?status=running");
    if (at(jobs, "data").as_array().empty()) return false;
    job = text_at(jobs, "data.0.id");
    return true;
  }));
  LoopbackClient watcher(service.port());
  EXPECT_TRUE(watcher.send("GET /v1/jobs/" + job + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_NE(watcher.read_until("event: progress").find("event: progress"), std::string::npos);
  service.signal(SIGTERM);
  const std::string rest = watcher.read_until("the job goes on");
  EXPECT_NE(rest.find("event: error"), std::string::npos) << rest;
  EXPECT_EQ(service.wait(), 0);
  EXPECT_NE(service.log().find("\"all_requests_finished\":\"true\""), std::string::npos);
  const ProcessResult told = ingest.get();
  EXPECT_EQ(told.exit_code, 1) << told.out;
  EXPECT_NE(told.err.find("the same command goes on from there"), std::string::npos) << told.err;
}

TEST(Lifecycle, AStopDoesNotWaitForAPostThatWaits) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store", {"--server.drain_seconds=300"});
  LoopbackClient client(service.port());
  ASSERT_TRUE(
      client.send(http_post("/v1/documents?wait=true",
                            R"({"id":"long","text":)" + quoted(sample_text(1, 400'000)) + "}")));
  EXPECT_TRUE(soon([&] {
    return !at(service.json("GET", "/v1/jobs?status=running"), "data").as_array().empty();
  }));
  service.signal(SIGTERM);
  const auto reply = client.read_response();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 202) << reply->body;
  EXPECT_NE(reply->header("location").value_or("").find("/v1/jobs/"), std::string::npos);
  EXPECT_EQ(service.wait(), 0);
  EXPECT_NE(service.log().find("\"all_requests_finished\":\"true\""), std::string::npos);
}

TEST(Lifecycle, ASecondSignalEndsTheWaiting) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store",
                {"--server.drain_seconds=3600", "--server.body_timeout_seconds=3600"});
  LoopbackClient stuck(service.port());
  ASSERT_TRUE(
      stuck.send("POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                 "application/json\r\nContent-Length: 100\r\n\r\n{"));
  EXPECT_EQ(service.call("GET", "/livez").status, 200);
  service.signal(SIGTERM);
  ASSERT_TRUE(service.wait_for_log("\"draining\""));
  // Before, it would count as the first one sent twice.
  std::this_thread::sleep_for(SecondSignal::kSame);
  service.signal(SIGTERM);
  EXPECT_EQ(service.wait(), 0);
}

TEST(Lifecycle, ASignalThatIsSentTwiceLetsARunningAnswerFinish) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  LoopbackClient c(service.port());
  ASSERT_NO_FATAL_FAILURE(begin_long_answer(c));
  service.signal(SIGTERM);
  ASSERT_TRUE(service.wait_for_log("\"draining\""));
  service.signal(SIGTERM);
  const std::string rest = c.read_until("event: done");
  EXPECT_NE(rest.find("event: done"), std::string::npos) << rest;
  EXPECT_EQ(service.wait(), 0);
  EXPECT_NE(service.log().find("\"all_requests_finished\":\"true\""), std::string::npos);
}

TEST(Lifecycle, AMemoryTierThatDoesNotFitIsTold) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store", {"--cache.dram_bytes=10TiB"});
  EXPECT_EQ(service.stop(), 0);
  EXPECT_NE(service.log().find("cache.dram_bytes is more than the memory that is free"),
            std::string::npos);
  service.start(folder.path() / "store", {"--cache.dram_bytes=1MiB"});
  EXPECT_EQ(service.stop(), 0);
  EXPECT_EQ(service.log().find("cache.dram_bytes is more than"), std::string::npos);
}

TEST(Lifecycle, AClientThatLeavesStopsTheGeneration) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  {
    LoopbackClient c(service.port());
    ASSERT_TRUE(c.send(http_post(
        "/v1/query", R"({"query":"q","max_tokens":1900,"temperature":2,"seed":5,"stream":true})")));
    ASSERT_NE(c.read_until("event: plan").find("event: plan"), std::string::npos);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool idle = false;
  while (!idle && std::chrono::steady_clock::now() < end)
    idle = service.call("GET", "/metrics").body.find("\nquire_queries_running 0\n") !=
           std::string::npos;
  EXPECT_TRUE(idle);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Lifecycle, RefusesWhatIsNotSafeOrNotThere) {
  TempFolder folder;
  const std::string store = "--disk.path=" + (folder.path() / "store").string();
  auto r = run_process({QUIRE_BINARY, "serve", "--server.host=0.0.0.0", store});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("auth.keys_file"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "serve", "--server.prot=1"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("did you mean 'server.port'"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "serve", "--disk.path=/nonexistent/deep/store", "--server.port=0",
                   "--log.level=off"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("/nonexistent"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "serve", "--model.path=/nonexistent", "--server.port=0", store,
                   "--log.level=off"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("model.path"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "serve", "--check-config", "--prompt.citation=[{page]"});
  EXPECT_EQ(r.exit_code, 1) << r.out;
  EXPECT_NE(r.err.find("prompt.citation"), std::string::npos) << r.err;
  const std::string model = std::string("--model.path=") + QUIRE_SOURCE_DIR + "/models/demo";
  for (const std::string flag :
       {"model.prompt_format=foo", "prompt.document=abc", "retrieve.encoder=/nonexistent",
        "log.audit=/nonexistent/audit.jsonl", "backup.path=./data/backups", "disk.max_bytes=50"}) {
    r = run_process({QUIRE_BINARY, "serve", "--check-config", model, "--" + flag});
    EXPECT_EQ(r.exit_code, 1) << flag << r.out;
    EXPECT_NE(r.err.find(flag.substr(0, flag.find('='))), std::string::npos) << r.err;
  }
  for (const char* url : {"rediss://h?ca=/nonexistent.pem", "s3://bucket"}) {
    r = run_process({QUIRE_BINARY, "serve", "--check-config", std::string("--remote.url=") + url});
    EXPECT_EQ(r.exit_code, 1) << r.out;
    EXPECT_NE(r.err.find("remote.url"), std::string::npos) << r.err;
  }
  for (const std::string flag : {"--check-config", "--server.port=0"}) {
    r = run_process({"/usr/bin/env", "QUIRE_READER=/nonexistent/quire-reader", QUIRE_BINARY,
                     "serve", flag, model, store, "--log.level=off"});
    EXPECT_EQ(r.exit_code, 1) << flag << r.out;
    EXPECT_NE(r.err.find("QUIRE_READER names /nonexistent/quire-reader"), std::string::npos)
        << r.err;
  }
  r = run_process({QUIRE_BINARY, "serve", "--print-config", "--server.port=1234"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_NE(r.out.find("port = 1234"), std::string::npos);
}

TEST(Lifecycle, TheShippedConfigurationsAreValid) {
  for (const auto* name : {"quire.toml", "small-cpu.toml"}) {
    const auto r = run_process(
        {QUIRE_BINARY, "serve", "--config", std::string(QUIRE_SOURCE_DIR) + "/configs/" + name,
         "--check-config", std::string("--model.path=") + QUIRE_SOURCE_DIR + "/models/demo"});
    EXPECT_EQ(r.exit_code, 0) << name << r.err;
  }
  const auto two = run_process(
      {QUIRE_BINARY, "serve", "--check-config",
       std::string("--model.path=") + QUIRE_SOURCE_DIR + "/models/demo",
       std::string("--model.further=big=") + QUIRE_SOURCE_DIR + "/configs/further-model.toml"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  const auto r = run_process(
      {QUIRE_BINARY, "serve", "--config", std::string(QUIRE_SOURCE_DIR) + "/configs/replica.toml",
       "--check-config",
       std::string("--auth.keys_file=") + QUIRE_SOURCE_DIR + "/configs/keys.example.toml",
       std::string("--model.path=") + QUIRE_SOURCE_DIR + "/models/demo"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

TEST(Lifecycle, AStartTakesTheModelsCardOnce) {
  namespace fs = std::filesystem;
  TempFolder folder;
  const fs::path model = folder.path() / "model";
  fs::create_directory(model);
  for (const auto& e : fs::directory_iterator(fs::path(QUIRE_SOURCE_DIR) / "models" / "demo"))
    fs::create_symlink(e.path(), model / e.path().filename());
  std::ofstream(model / "quire-card.json")
      << R"({"format":"quire-model-card-1","models":[{"fingerprint_sha256":")"
      << std::string(64, '0') << R"(","selection_heads":"1 words 1.0"}]})";
  const std::string path = "--model.path=" + model.string();
  const std::string taken = "took the model's card into the store";
  for (const auto& [flag, times] : {std::pair{"--policy.model_card=false", 0}, {"", 1}, {"", 0}}) {
    ServiceProcess service;
    service.start(folder.path() / "store", *flag == '\0' ? std::vector<std::string>{path}
                                                         : std::vector<std::string>{path, flag});
    EXPECT_EQ(service.stop(), 0);
    EXPECT_EQ(service.log().find(taken) != std::string::npos, times == 1) << service.log();
  }
}

TEST(Lifecycle, ASecondServiceOnTheSameStoreIsRefused) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  const auto r = run_process({QUIRE_BINARY, "serve", "--server.port=0",
                              "--disk.path=" + (folder.path() / "store").string(),
                              "--log.level=off"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("store"), std::string::npos) << r.err;
  const auto verify = run_process(
      {QUIRE_BINARY, "store", "verify", "--path", (folder.path() / "store").string()});
  EXPECT_EQ(verify.exit_code, 1) << verify.out;
  EXPECT_EQ(service.stop(), 0);
}

TEST(Lifecycle, NamespacesNeverMeet) {
  TempFolder folder;
  {
    std::ofstream keys(folder.path() / "keys.toml");
    for (const std::string ns : {"team-a", "team-b"})
      keys << "[[keys]]\nname = \"" << ns << "\"\nsha256 = \"" << sha256("key-" + ns).hex()
           << "\"\nscopes = [\"read\", \"write\", \"query\"]\nnamespaces = [\"" << ns << "\"]\n";
  }
  ServiceProcess service;
  service.start(folder.path() / "store",
                {"--auth.keys_file=" + (folder.path() / "keys.toml").string()});
  const std::vector<std::string> a = {"Authorization: Bearer key-team-a"},
                                 b = {"Authorization: Bearer key-team-b"};
  const std::string text = sample_text(9, 200);
  EXPECT_EQ(
      service
          .call("POST", "/v1/documents?wait=true", R"({"id":"secret","text":)" + quoted(text) + "}")
          .status,
      401);
  const auto unknown = run_process({QUIRE_BINARY, "query", "--server",
                                    "http://127.0.0.1:" + std::to_string(service.port()), "q"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_NE(unknown.err.find("--key or QUIRE_API_KEY"), std::string::npos) << unknown.err;
  EXPECT_EQ(service
                .call("POST", "/v1/documents?wait=true",
                      R"({"id":"secret","text":)" + quoted(text) + "}", a)
                .status,
            200);
  EXPECT_EQ(service.call("GET", "/v1/documents/secret", {}, a).status, 200);
  EXPECT_EQ(service.call("GET", "/v1/documents/secret", {}, b).status, 404);
  EXPECT_EQ(service.call("GET", "/v1/documents/secret", {}, {a[0], "X-Namespace: team-b"}).status,
            403);
  EXPECT_EQ(service.call("DELETE", "/v1/documents/secret", {}, b).status, 404);
  EXPECT_TRUE(at(service.json("GET", "/v1/documents", {}, b), "data").as_array().empty());
  EXPECT_TRUE(at(service.json("GET", "/v1/jobs", {}, b), "data").as_array().empty());
  const std::string inline_query =
      R"({"query":"q","documents":[{"text":)" + quoted(text) +
      R"(}],"max_tokens":1,"cache":{"strategy":"reuse","write":false}})";
  EXPECT_EQ(int_at(service.json("POST", "/v1/query", inline_query, b),
                   "usage.cache_details.reused_tokens"),
            0)
      << "blocks of another namespace were hit";
  const auto mine = service.json(
      "POST", "/v1/query",
      R"({"query":"q","document_ids":["secret"],"max_tokens":1,"cache":{"strategy":"reuse"}})", a);
  EXPECT_GT(int_at(mine, "usage.cache_details.reused_tokens"), 0) << json::serialize(mine);
  EXPECT_EQ(service.call("GET", text_at(mine, "explain_url"), {}, b).status, 404);
  const std::string log = service.log();
  EXPECT_EQ(log.find("key-team-a"), std::string::npos);
  EXPECT_EQ(log.find(text.substr(0, 40)), std::string::npos) << "texts are never logged";
  EXPECT_EQ(service.stop(), 0);
}

/// Returns a reply without what differs from call to call: ids, times and rates.
json::value lasting(const json::value& value) {
  static const std::set<std::string> kDiffer = {"id",       "timings", "explain_url", "job_id",
                                                "job_ids",  "created", "etag",        "block_id",
                                                "first_id", "last_id", "progress"};
  if (const auto* o = value.if_object()) {
    json::object out;
    for (const auto& [name, member] : *o) {
      const std::string n(name);
      if (!kDiffer.contains(n) && !n.ends_with("_at")) out[name] = lasting(member);
    }
    return out;
  }
  if (const auto* a = value.if_array()) {
    json::array out;
    for (const auto& member : *a) out.push_back(lasting(member));
    return out;
  }
  return value;
}

TEST(Lifecycle, NoReplyTellsANamespaceWhatAnotherHas) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  const std::string text = sample_text(31, 200);
  const std::string prompt = R"({"messages":[{"role":"user","content":)" + quoted(text) +
                             R"(}],"max_tokens":4,"temperature":0})";
  const std::string document = R"({"id":"d","text":)" + quoted(text) + "}";
  const std::string question = R"({"query":"q","documents":[{"text":)" + quoted(text) +
                               R"(}],"max_tokens":1,"temperature":0,)" +
                               R"("cache":{"strategy":"reuse","write":false}})";
  const auto seen_by = [&](const std::string& ns) {
    const std::vector<std::string> header = {"X-Namespace: " + ns};
    json::array replies;
    for (const auto& [path, body] :
         {std::pair{"/v1/query", question},
          {"/v1/chat/completions", prompt},
          {"/v1/documents?wait=true", document},
          {"/v1/query", R"({"query":"q","document_ids":["d"],"max_tokens":1,"temperature":0,)"
                        R"("cache":{"strategy":"reuse"}})"}})
      replies.push_back(lasting(service.json("POST", path, body, header)));
    for (const char* path : {"/v1/documents/d", "/v1/documents/d/blocks", "/v1/jobs"})
      replies.push_back(lasting(service.json("GET", path, {}, header)));
    return replies;
  };
  const std::string before = json::serialize(seen_by("team-0"));
  // The other one has all of it: in the store, in memory and as a prompt.
  const std::string again = json::serialize(seen_by("team-a"));
  (void)service.json("POST", "/v1/chat/completions", prompt, {"X-Namespace: team-a"});
  const auto known = service.json("POST", "/v1/chat/completions", prompt, {"X-Namespace: team-a"});
  EXPECT_GT(int_at(known, "usage.prompt_tokens_details.cached_tokens"), 100);
  const std::string after = json::serialize(seen_by("team-b"));
  const auto without = [](std::string all, const std::string& ns) {
    for (std::size_t at; (at = all.find(ns)) != std::string::npos;) all.replace(at, ns.size(), "*");
    return all;
  };
  EXPECT_EQ(without(again, "team-a"), without(before, "team-0"));
  EXPECT_EQ(without(after, "team-b"), without(before, "team-0"));
  EXPECT_EQ(service.stop(), 0);
}

TEST(Lifecycle, HangupReadsTheKeysAgain) {
  TempFolder folder;
  const auto path = folder.path() / "keys.toml";
  const auto write = [&](const std::string& secret) {
    std::ofstream(path, std::ios::trunc)
        << "[[keys]]\nname = \"k\"\nsha256 = \"" << sha256(secret).hex()
        << "\"\nscopes = [\"read\"]\nnamespaces = [\"default\"]\n";
  };
  write("old-key");
  ServiceProcess service;
  service.start(folder.path() / "store", {"--auth.keys_file=" + path.string()});
  EXPECT_EQ(service.call("GET", "/version", {}, {"api-key: old-key"}).status, 200);
  write("new-key");
  service.signal(SIGHUP);
  ASSERT_TRUE(service.wait_for_log("reloaded"));
  EXPECT_EQ(service.call("GET", "/version", {}, {"api-key: old-key"}).status, 401);
  EXPECT_EQ(service.call("GET", "/version", {}, {"api-key: new-key"}).status, 200);
  std::ofstream(path, std::ios::trunc) << "broken";
  service.signal(SIGHUP);
  ASSERT_TRUE(service.wait_for_log("reload refused"));
  EXPECT_EQ(service.call("GET", "/version", {}, {"api-key: new-key"}).status, 200);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Lifecycle, HangupNamesTheSettingsThatNeedARestart) {
  TempFolder folder;
  const auto path = folder.path() / "quire.toml";
  const auto write = [&](const std::string& limits) {
    std::ofstream(path, std::ios::trunc) << "[limits]\n" << limits;
  };
  write("documents_per_query = 5\ndocument_tokens = 5000\n");
  ServiceProcess service;
  service.start(folder.path() / "store", {"--config=" + path.string()});
  write("documents_per_query = 6\ndocument_tokens = 6000\n");
  service.signal(SIGHUP);
  EXPECT_TRUE(service.wait_for_log("limits.document_tokens"));
  const auto again = service.json("POST", "/v1/admin/reload");
  EXPECT_EQ(boost::json::serialize(at(again, "needs_restart")), R"(["limits.document_tokens"])");
  const auto config = service.json("GET", "/v1/admin/config");
  EXPECT_EQ(int_at(config, "limits.documents_per_query"), 6);
  EXPECT_EQ(int_at(config, "limits.document_tokens"), 5000);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Lifecycle, AHangupThatFailsChangesNothingAndTheNextOneAll) {
  TempFolder folder;
  const auto audit = folder.path() / "audit.jsonl", old = folder.path() / "audit.1";
  write_certificate(folder.path(), "server");
  ServiceProcess service;
  service.start(folder.path() / "store",
                {"--server.tls_certificate=" + (folder.path() / "server.pem").string(),
                 "--server.tls_key=" + (folder.path() / "server.key").string(),
                 "--log.audit=" + audit.string()},
                /*until_ready=*/false);
  const auto answers_with = [&](const std::filesystem::path& certificate) {
    ServerAddress address;
    address.scheme = "https";
    address.port = std::to_string(service.port());
    address.ca_file = certificate;
    ClientRequest request;
    request.target = "/readyz";
    const auto reply = http_call(address, request);
    return reply.ok() && reply->status == 200;
  };
  ASSERT_TRUE(soon([&] { return answers_with(folder.path() / "server.pem"); }));
  std::filesystem::rename(folder.path() / "server.pem", folder.path() / "former.pem");
  write_certificate(folder.path(), "server");
  std::filesystem::rename(audit, old);
  std::filesystem::create_directory(audit);
  service.signal(SIGHUP);
  ASSERT_TRUE(service.wait_for_log("reload refused"));
  EXPECT_TRUE(answers_with(folder.path() / "former.pem"));
  std::filesystem::remove(audit);
  service.signal(SIGHUP);
  ASSERT_TRUE(service.wait_for_log("reloaded keys, limits and certificate"));
  EXPECT_TRUE(answers_with(folder.path() / "server.pem"));
  EXPECT_TRUE(std::filesystem::is_regular_file(audit));
  EXPECT_EQ(service.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
