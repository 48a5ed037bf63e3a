// After measuring and certifying, `auto` uses a certified strategy and drops it when live answers
// drift.
#include <boost/json/serialize.hpp>
#include <fstream>
#include <thread>

#include "cachestore/store.h"
#include "fidelity/certificate.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

ProcessResult measure(const TempFolder& folder, std::vector<std::string> more) {
  std::vector<std::string> command = {QUIRE_BINARY,
                                      "fidelity",
                                      "--limit",
                                      "1",
                                      "--quiet",
                                      "--json",
                                      (folder.path() / "f.json").string()};
  command.insert(command.end(), more.begin(), more.end());
  return run_process(command);
}

json::value read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return parse(std::string(std::istreambuf_iterator<char>(in), {}));
}

TEST(Fidelity, WritesItsFilesAndDoesNotMeasureTwice) {
  TempFolder folder;
  const auto html = folder.path() / "f.html", svg = folder.path() / "f.svg";
  auto r = measure(folder, {"--html", html.string(), "--svg", svg.string()});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("recompute"), std::string::npos);
  const auto first = read_json(folder.path() / "f.json");
  EXPECT_EQ(text_at(first, "rows.0.strategy"), "recompute");
  EXPECT_EQ(at(first, "settings.strategies").as_array().size(), 3u);
  EXPECT_TRUE(std::filesystem::file_size(html) > 1000 && std::filesystem::file_size(svg) > 1000);
  // The rows keep their times, so equal rows mean that nothing was run again.
  r = measure(folder, {});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(json::serialize(at(read_json(folder.path() / "f.json"), "rows")),
            json::serialize(at(first, "rows")));
}

TEST(Fidelity, AFileThatCannotBeWrittenIsFoundBeforeTheRun) {
  TempFolder folder;
  const std::string missing = (folder.path() / "missing" / "f").string(),
                    html = (folder.path() / "f.html").string();
  for (const auto& [flag, path] : {std::pair<std::string, std::string>("--html", missing),
                                   {"--svg", missing},
                                   {"--json", missing},
                                   {"--html", folder.path().string()}}) {
    const auto r = run_process({QUIRE_BINARY, "fidelity", "--limit", "1", "--quiet", flag, path});
    EXPECT_EQ(r.exit_code, 1) << flag;
    EXPECT_EQ(r.out, "") << "nothing was measured";
    EXPECT_NE(r.err.find(path), std::string::npos) << r.err;
  }
  // What is there already stays until the new one is complete.
  std::ofstream(html) << "kept";
  const auto r = run_process(
      {QUIRE_BINARY, "fidelity", "--quiet", "--html", html, "--svg", missing});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(std::filesystem::file_size(html), 4u);
  EXPECT_FALSE(std::filesystem::exists(html + ".new"));
}

/// Copies a folder of weights and changes the last weight.
void copy_changed(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to);
  std::fstream weights(to / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekg(-2, std::ios::end);
  const auto byte = static_cast<char>(weights.get() ^ 1);
  weights.seekp(-2, std::ios::end);
  weights.put(byte);
  ASSERT_TRUE(weights.good());
}

TEST(Fidelity, RowsOfAnotherDraftHeadOrSettingAreMeasuredAgain) {
  TempFolder folder;
  std::ofstream(folder.path() / "q.jsonl")
      << R"({"documents":[{"text":"The ferry leaves at nine."}],"question":"When does the ferry )"
         R"(leave?","answers":["nine"]})"
      << "\n";
  const std::filesystem::path model = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
  for (const char* part : {"draft", "head"}) copy_changed(model / part, folder.path() / part);
  const std::vector<std::string> base = {"--suite", (folder.path() / "q.jsonl").string(),
                                         "--strategies", "recompute"};
  const auto rows_after = [&](const std::vector<std::string>& settings) {
    auto more = base;
    more.insert(more.end(), settings.begin(), settings.end());
    const auto r = measure(folder, more);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return std::pair(r.err.find("starting anew") != std::string::npos,
                     json::serialize(at(read_json(folder.path() / "f.json"), "rows")));
  };
  const std::string head = "--model.retrieval_head_path=", draft = "--model.draft_path=";
  std::string before = rows_after({}).second;
  EXPECT_EQ(rows_after({}), std::pair(false, before));
  EXPECT_EQ(rows_after({head + (model / "head").string(), draft + (model / "draft").string()}),
            std::pair(false, before))
      << "the same files, named";
  for (const std::string& setting :
       {head + (folder.path() / "head").string(), head + "none",
        draft + (folder.path() / "draft").string(), draft + "none",
        std::string("--model.draft_weights=f32"), std::string("--model.device_requests=3"),
        std::string("--policy.small_ctx=64"), std::string("--retrieve.language=german")}) {
    EXPECT_TRUE(rows_after({setting}).first) << setting;
    EXPECT_FALSE(rows_after({setting}).first) << setting;
  }
}

TEST(Fidelity, WrongAsksAreRefusedWithAReason) {
  TempFolder folder;
  std::ofstream(folder.path() / "half.jsonl")
      << "{\"documents\":[{\"text\":\"a\"}],\"question\":\"Q\"}\n{\"documents\":[{\"te";
  auto r = measure(folder, {"--suite", (folder.path() / "half.jsonl").string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("line 2"), std::string::npos) << r.err;
  r = measure(folder, {"--strategies", "magic"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("magic"), std::string::npos) << r.err;
  r = measure(folder, {"--suite", "ruler@many"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(measure(folder, {"--no-such-flag"}).exit_code, 2);
  r = measure(folder, {"--certify", "--store", "/nonexistent/folder/store"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("/nonexistent"), std::string::npos) << r.err;
  // Without certificates the store is only read, so a missing one is mistyped.
  r = measure(folder, {"--store", (folder.path() / "mistyped").string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("--store: there is no store"), std::string::npos) << r.err;
  // No two documents see the same text, so nothing could be said of others.
  r = measure(folder, {"--certify", "--store", (folder.path() / "store").string(),
                       "--related-tokens", "64"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("--related-tokens"), std::string::npos) << r.err;
}

/// Returns documents and a question whose subject is in an earlier document, where reuse and
/// recompute differ.
std::vector<json::value> continuation_records(std::size_t n) {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/models/demo/encyclopedia.jsonl");
  std::vector<json::value> out;
  json::value documents;
  for (std::string line; out.size() < n && std::getline(in, line);) {
    auto record = parse(line);
    if (at(record, "documents").is_array()) documents = at(record, "documents");
    if (text_at(record, "kind") != "continuation") continue;
    record.as_object()["documents"] = documents;
    out.push_back(std::move(record));
  }
  return out;
}

TEST(Fidelity, AnIdleServiceProbesItsOwnDocuments) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store", {"--policy.evidence=true"});
  EXPECT_TRUE(at(service.json("GET", "/v1/info"), "fidelity.auto_strategy").is_null());
  std::size_t posted = 0;
  for (const auto& record : continuation_records(4)) {
    for (const auto& d : at(record, "documents").as_array()) {
      const json::object document{{"id", "d" + std::to_string(posted++)},
                                  {"text", text_at(d, "text")}};
      ASSERT_EQ(service.call("POST", "/v1/documents?wait=true", json::serialize(document)).status,
                200);
    }
  }
  json::value info;
  for (int i = 0; i < 1200; ++i) {
    info = service.json("GET", "/v1/info");
    if (int_at(info, "fidelity.evidence.0.probes") >= 2) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_GE(int_at(info, "fidelity.evidence.0.probes"), 2) << json::serialize(info);
  // Two probes are no evidence, and the reply says how many there are to be.
  EXPECT_FALSE(at(info, "fidelity.evidence.0.passed").as_bool());
  EXPECT_NE(text_at(info, "fidelity.evidence.0.reason").find("of 48 probes"), std::string::npos);
  EXPECT_NE(service.call("GET", "/metrics").body.find("quire_evidence_probes{"), std::string::npos);
  EXPECT_EQ(service.stop(), 0);
}

/// Makes all certificates of the model pass.
void let_pass(const std::filesystem::path& store_path, const std::string& fingerprint) {
  StoreOptions o;
  o.path = store_path.string();
  auto store = open_store(o);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  auto certificates = load_certificates(**store, fingerprint);
  ASSERT_EQ(certificates.size(), 1u);
  certificates[0].passed = true;
  ASSERT_TRUE(save_certificates(**store, certificates).ok());
}

TEST(Fidelity, ACertificateOfTheLeadInHoldsForDocumentsBehindItAlone) {
  TempFolder folder;
  const auto store_path = folder.path() / "store";
  const auto r = measure(
      folder, {"--certify", "--store", store_path.string(), "--lead-in", "--strategies", "reuse"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  let_pass(store_path, text_at(read_json(folder.path() / "f.json"), "model.fingerprint_sha256"));
  ServiceProcess service;
  service.start(store_path, {"--policy.small_ctx=16", "--policy.evidence=false"});
  const auto info = service.json("GET", "/v1/info");
  EXPECT_EQ(text_at(info, "fidelity.certificates.0.read_behind"), "lead_in");
  EXPECT_TRUE(at(info, "fidelity.auto_strategy").is_null());
  const std::string text = text_at(at(continuation_records(1).at(0), "documents").as_array()[0],
                                   "text");
  for (const bool lead_in : {true, false}) {
    const json::object document{{"id", lead_in ? "behind" : "alone"},
                                {"text", text},
                                {"chunking", {{"lead_in", lead_in}, {"max_tokens", 64}}}};
    ASSERT_EQ(service.call("POST", "/v1/documents?wait=true", json::serialize(document)).status,
              200);
  }
  const auto asked = [&](json::array ids) {
    const json::object query{
        {"query", "Who was it?"}, {"document_ids", std::move(ids)}, {"max_tokens", 2}};
    const auto reply = service.json("POST", "/v1/query", json::serialize(query));
    return std::pair(text_at(reply, "cache.strategy"), text_at(reply, "cache.reason"));
  };
  const auto [behind, why_behind] = asked({"behind"});
  EXPECT_EQ(behind, "reuse") << why_behind;
  EXPECT_NE(why_behind.find("behind the lead-in"), std::string::npos) << why_behind;
  const auto [alone, why_alone] = asked({"alone"});
  EXPECT_EQ(alone, "exact") << why_alone;
  EXPECT_NE(why_alone.find("documents read alone"), std::string::npos) << why_alone;
  const auto [mixed, why_mixed] = asked({"behind", "alone"});
  EXPECT_EQ(mixed, "exact") << why_mixed;
  EXPECT_NE(why_mixed.find("not all read alike"), std::string::npos) << why_mixed;
  EXPECT_EQ(service.stop(), 0);
}

TEST(Fidelity, ACardSaysHowDocumentsAreReadUnlessSomebodyElseDoes) {
  TempFolder folder;
  const auto measured = folder.path() / "measured", store_path = folder.path() / "store";
  const auto r = measure(
      folder, {"--certify", "--store", measured.string(), "--lead-in", "--strategies", "reuse"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  let_pass(measured, text_at(read_json(folder.path() / "f.json"), "model.fingerprint_sha256"));
  const auto model = folder.path() / "model";
  std::filesystem::copy(std::string(QUIRE_SOURCE_DIR) + "/models/demo", model,
                        std::filesystem::copy_options::recursive);
  const auto card = run_process(
      {QUIRE_BINARY, "model", "card", "-m", model.string(), "--path", measured.string()});
  ASSERT_EQ(card.exit_code, 0) << card.err;
  // What is measured later comes beside what the card says.
  const std::string more = (folder.path() / "more").string();
  const auto later = measure(
      folder, {"-m", model.string(), "--certify", "--store", more, "--strategies", "epic"});
  ASSERT_EQ(later.exit_code, 0) << later.err;
  const auto both = run_process(
      {QUIRE_BINARY, "model", "card", "-m", model.string(), "--path", more, "-o", "-"});
  EXPECT_NE(both.out.find("\"spec\":\"epic\""), std::string::npos) << both.out << both.err;
  EXPECT_NE(both.out.find("\"read_behind\":\"lead_in\""), std::string::npos) << both.out;
  ServiceProcess service;
  const auto start = [&](std::vector<std::string> flags) {
    flags.push_back("--model.path=" + model.string());
    flags.emplace_back("--policy.evidence=false");
    service.start(store_path, flags);
  };
  std::size_t posted = 0;
  const auto read_behind = [&](const std::string& chunking) {
    const std::string id = "d" + std::to_string(posted++);
    const std::string body = R"({"id":")" + id + R"(","text":"The ferry leaves at nine.")" +
                             chunking + "}";
    EXPECT_EQ(service.call("POST", "/v1/documents?wait=true", body).status, 200);
    const auto plan = service.json("POST", "/v1/query/plan",
                                   R"({"query":"When?","document_ids":[")" + id + R"("]})");
    const std::string shown = text_at(service.json("GET", "/v1/documents/" + id), "read_behind");
    EXPECT_EQ(text_at(plan, "documents.0.read_behind"), shown);
    return shown;
  };
  start({});
  EXPECT_TRUE(at(service.json("GET", "/v1/info"), "fidelity.lead_in_by_default").as_bool());
  EXPECT_EQ(read_behind(""), "lead_in");
  EXPECT_EQ(read_behind(R"(,"chunking":{"max_tokens":64})"), "lead_in");
  EXPECT_EQ(read_behind(R"(,"chunking":{"lead_in":false})"), "nothing");
  EXPECT_EQ(service.stop(), 0);
  start({"--policy.lead_in=off"});
  EXPECT_FALSE(at(service.json("GET", "/v1/info"), "fidelity.lead_in_by_default").as_bool());
  EXPECT_EQ(read_behind(""), "nothing");
  EXPECT_EQ(read_behind(R"(,"chunking":{"lead_in":true})"), "lead_in");
  EXPECT_EQ(text_at(service.json("GET", "/v1/documents/d0"), "read_behind"), "lead_in");
  const auto again = service.json("POST", "/v1/documents?wait=true",
                                  R"({"id":"d0","text":"The ferry leaves at nine."})");
  EXPECT_EQ(text_at(service.json("GET", "/v1/documents/d0"), "read_behind"), "lead_in")
      << json::serialize(again);
  EXPECT_EQ(service.stop(), 0);
}

TEST(Fidelity, AutoUsesWhatIsCertifiedUntilLiveAnswersDrift) {
  TempFolder folder;
  const auto store_path = folder.path() / "store";
  auto r = measure(folder, {"--certify", "--store", store_path.string()});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  // Six questions are too few to certify.
  EXPECT_NE(r.out.find("certificate for reuse: not passed"), std::string::npos) << r.out;
  const std::string fingerprint = text_at(read_json(folder.path() / "f.json"),
                                          "model.fingerprint_sha256");
  ServiceProcess service;
  const std::vector<std::string> flags = {"--policy.small_ctx=16", "--policy.shadow_ratio=1",
                                          "--policy.shadow_min_agreement=1"};
  service.start(store_path, flags);
  auto info = service.json("GET", "/v1/info");
  EXPECT_TRUE(at(info, "fidelity.auto_strategy").is_null());
  EXPECT_FALSE(at(info, "fidelity.certificates.0.passed").as_bool());
  EXPECT_EQ(service.stop(), 0);
  let_pass(store_path, fingerprint);
  service.start(store_path, flags);
  info = service.json("GET", "/v1/info");
  EXPECT_EQ(text_at(info, "fidelity.auto_strategy"), "reuse");
  bool fell = false;
  std::int64_t checks = 0;
  const auto records = continuation_records(40);
  ASSERT_GE(records.size(), 20u);
  for (const auto& record : records) {
    json::array ids;
    for (const auto& d : at(record, "documents").as_array()) {
      json::object document{
          {"id", "d" + std::to_string(std::hash<std::string>()(text_at(d, "text")))},
          {"text", text_at(d, "text")}};
      ids.push_back(document["id"]);
      ASSERT_EQ(service.call("POST", "/v1/documents?wait=true", json::serialize(document)).status,
                200);
    }
    const json::object query{
        {"query", text_at(record, "question")}, {"document_ids", ids}, {"max_tokens", 16}};
    const auto reply = service.json("POST", "/v1/query", json::serialize(query));
    if (text_at(reply, "cache.strategy") == "exact") {
      fell = true;
      EXPECT_NE(text_at(reply, "cache.fallback").find("shadow_min_agreement"), std::string::npos)
          << json::serialize(reply);
      break;
    }
    EXPECT_EQ(text_at(reply, "cache.strategy"), "reuse");
    EXPECT_NE(text_at(reply, "cache.reason").find("fidelity"), std::string::npos);
    for (int i = 0; i < 600; ++i) {
      info = service.json("GET", "/v1/info");
      if (int_at(info, "fidelity.shadow.checks") > checks) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    checks = int_at(info, "fidelity.shadow.checks");
  }
  EXPECT_TRUE(fell) << json::serialize(info);
  EXPECT_EQ(text_at(service.json("GET", "/v1/info"), "fidelity.shadow.state"), "fallback");
  const std::string metrics = service.call("GET", "/metrics").body;
  EXPECT_NE(metrics.find("quire_auto_fallback 1"), std::string::npos);
  EXPECT_NE(metrics.find("quire_shadow_checks_total{outcome=\"checked\"}"), std::string::npos);
  EXPECT_NE(metrics.find("quire_shadow_agreement_count{strategy=\"reuse\"}"), std::string::npos);
  // A request that names a strategy still gets it.
  const auto named = service.json(
      "POST", "/v1/query",
      R"({"query":"q","documents":[{"text":"Some text here."}],"max_tokens":2,"cache":{)"
      R"("strategy":"reuse"}})");
  EXPECT_EQ(text_at(named, "cache.strategy"), "reuse");
  EXPECT_EQ(service.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
