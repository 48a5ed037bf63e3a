// KV quotas of namespaces at a running service: what a namespace may hold, what it is told, and
// what a restart with a lower limit does.
#include <boost/json/serialize.hpp>
#include <fstream>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

constexpr std::int64_t kLimit = 16 << 20;  // of some four documents

class Quotas : public ::testing::Test {
 protected:
  std::vector<std::string> flags(std::int64_t disk_bytes) {
    const std::string file = (folder.path() / "quotas.toml").string();
    std::ofstream(file) << "[small]\ndisk_bytes = " << disk_bytes << "\ndram_bytes = '2MiB'\n";
    return {"--cache.quotas_file=" + file};
  }
  static std::vector<std::string> in(const std::string& ns) { return {"X-Namespace: " + ns}; }
  int post(const std::string& ns, unsigned number, bool pinned = false) {
    return service
        .call("POST", "/v1/documents?wait=true",
              R"({"id":"d)" + std::to_string(number) + R"(","pinned":)" +
                  (pinned ? "true" : "false") + R"(,"text":)" + quoted(sample_text(number, 700)) +
                  "}",
              in(ns))
        .status;
  }
  std::string answer(const std::string& ns, unsigned number, const std::string& strategy) {
    int status = 0;
    const auto r = service.json(
        "POST", "/v1/query",
        R"({"query":"What was built?","document_ids":["d)" + std::to_string(number) +
            R"("],"max_tokens":12,"cache":{"strategy":")" + strategy + "\"}}",
        in(ns), &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
    return text_at(r, "answer");
  }
  json::value use(const std::string& ns) {
    const auto stats = service.json("GET", "/v1/admin/cache/stats?by=namespace");
    for (const auto& n : at(stats, "namespaces").as_array())
      if (text_at(n, "name") == ns) return n;
    ADD_FAILURE() << "no namespace " << ns << " in " << json::serialize(stats);
    return nullptr;
  }

  TempFolder folder;
  ServiceProcess service;
};

TEST_F(Quotas, ANamespaceStaysWithinItsQuotaAndAnswersAsBefore) {
  service.start(folder.path() / "store", flags(kLimit));
  ASSERT_EQ(post("other", 100), 200);
  const std::int64_t others = int_at(use("other"), "quota.disk_bytes");
  EXPECT_GT(others, 0);
  for (unsigned i = 0; i < 12; ++i) {
    ASSERT_EQ(post("small", i), 200);
    const auto now = use("small");
    EXPECT_LE(int_at(now, "quota.disk_bytes"), kLimit) << json::serialize(now);
    EXPECT_LE(int_at(now, "quota.dram_bytes"), 2 << 20) << json::serialize(now);
    EXPECT_EQ(int_at(now, "quota.max_disk_bytes"), kLimit);
  }
  EXPECT_GT(int_at(use("small"), "quota.disk_bytes"), kLimit / 2);
  EXPECT_EQ(int_at(use("small"), "documents"), 12);
  EXPECT_EQ(int_at(use("other"), "quota.disk_bytes"), others) << "others lose nothing";
  EXPECT_EQ(int_at(use("other"), "quota.max_disk_bytes"), 0);
  for (const unsigned i : {0u, 11u})
    EXPECT_EQ(answer("small", i, "exact"), answer("small", i, "recompute"));
  EXPECT_NE(
      service.call("GET", "/metrics")
          .body.find(R"(quire_namespace_kv_quota_bytes{namespace="small",tier="disk"} 16777216)"),
      std::string::npos);

  EXPECT_EQ(service.stop(), 0);
  service.start(folder.path() / "store", flags(kLimit / 4));
  EXPECT_LE(int_at(use("small"), "quota.disk_bytes"), kLimit / 4);
  EXPECT_EQ(int_at(use("small"), "documents"), 12);
  EXPECT_EQ(answer("small", 3, "exact"), answer("small", 3, "recompute"));
  EXPECT_EQ(service.stop(), 0);
}

TEST_F(Quotas, PinsThatFillAQuotaRefuseWithTheReason) {
  service.start(folder.path() / "store", flags(kLimit));
  int status = 200;
  unsigned number = 0;
  while (status == 200 && number < 20) status = post("small", number++, /*pinned=*/true);
  EXPECT_EQ(status, 507);
  EXPECT_LE(int_at(use("small"), "quota.disk_bytes"), kLimit);
  EXPECT_EQ(post("other", 1), 200);
  EXPECT_EQ(answer("small", 0, "exact"), answer("small", 0, "recompute"));
  EXPECT_EQ(service.stop(), 0);
}

TEST_F(Quotas, AFileThatIsWrongStopsTheStart) {
  const std::string file = (folder.path() / "wrong.toml").string();
  std::ofstream(file) << "[team]\ndisk = 1\n";
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> command{QUIRE_BINARY, "serve", "--server.port=0",
                                     "--disk.path=" + (folder.path() / "s").string()};
    command.insert(command.end(), more.begin(), more.end());
    return run_process(command);
  };
  const auto unknown = run({"--cache.quotas_file=" + file});
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_NE(unknown.err.find("unknown entry 'disk'"), std::string::npos) << unknown.err;
  std::ofstream(file) << "[team]\nremote_bytes = 1000\n";
  const auto uncounted = run({"--cache.quotas_file=" + file});
  EXPECT_NE(uncounted.err.find("remote_bytes is counted in Redis"), std::string::npos)
      << uncounted.err;
  const auto both = run({"--cache.quotas_file=" + file, "--cache.share_across_namespaces=true"});
  EXPECT_NE(both.err.find("leave one out"), std::string::npos) << both.err;
}

}  // namespace
}  // namespace quire::testing
