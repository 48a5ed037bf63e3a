#include "server/access/audit_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/json_parse.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "quire-audit-XXXXXX").string();
    QUIRE_CHECK(mkdtemp(name.data()) != nullptr, "no temporary folder");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name = "audit.jsonl") const { return path_ / name; }

 private:
  fs::path path_;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

AuditEntry entry(const std::string& id) {
  AuditEntry e;
  e.unix_ms = 1'740'823'200'000;
  e.request_id = id;
  e.key = "writer";
  e.ns = "team-a";
  e.peer = "::1";
  e.route = "/v1/documents/{id}";
  e.method = "DELETE";
  e.path = "/v1/documents/a\nb";
  e.status = 204;
  return e;
}

std::unique_ptr<AuditLog> opened(const std::string& path) {
  auto log = AuditLog::open(path);
  QUIRE_CHECK(log.ok(), log.status().message());
  return std::move(*log);
}

Status reopen(AuditLog& log) {
  auto file = log.open_again();
  if (file.ok()) log.use(std::move(*file));
  return file.status();
}

TEST(AuditLog, ALineSaysWhoDidWhatWhenAndHowItEnded) {
  EXPECT_EQ(audit_json(entry("req_1")),
            R"({"time":"2025-03-01T10:00:00.000Z","request_id":"req_1","key":"writer",)"
            R"("namespace":"team-a","peer":"::1","method":"DELETE",)"
            R"("route":"/v1/documents/{id}","path":"/v1/documents/a\nb","status":204,)"
            R"("error":null})");
  AuditEntry refused = entry("req_2");
  refused.key.clear();
  refused.path = std::string(5000, 'x');
  refused.error_code = "invalid_api_key";
  const std::string text = audit_json(refused);
  EXPECT_NE(text.find(R"("key":null)"), std::string::npos);
  EXPECT_NE(text.find(R"("error":"invalid_api_key")"), std::string::npos);
  EXPECT_LT(text.size(), 1400u);
}

TEST(AuditLog, TheFileIsPrivateAndGoesOnWhereItEnded) {
  const Folder folder;
  {
    std::ofstream before(folder.file());
    before << "{\"cut\":";  // as a crash may leave it
  }
  fs::permissions(folder.file(), fs::perms::all);
  for (const char* id : {"req_1", "req_2"}) opened(folder.file())->add(entry(id));
  EXPECT_EQ(fs::status(folder.file()).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  const std::vector<std::string> expected = {"{\"cut\":", audit_json(entry("req_1")),
                                             audit_json(entry("req_2"))};
  EXPECT_EQ(lines_of(folder.file()), expected);
}

TEST(AuditLog, ReopenFollowsARotation) {
  const Folder folder;
  auto log = opened(folder.file());
  log->add(entry("req_1"));
  fs::rename(folder.file(), folder.file("audit.1"));
  ASSERT_TRUE(reopen(*log).ok());
  log->add(entry("req_2"));
  log.reset();
  // The first line may have waited until the new file was there.
  auto all = lines_of(folder.file("audit.1"));
  for (const auto& line : lines_of(folder.file())) all.push_back(line);
  EXPECT_EQ(all,
            (std::vector<std::string>{audit_json(entry("req_1")), audit_json(entry("req_2"))}));
  EXPECT_EQ(lines_of(folder.file()).back(), audit_json(entry("req_2")));
}

TEST(AuditLog, AFileThatCannotBeOpenedIsNamedAndTheOldOneStays) {
  const Folder folder;
  const auto none = AuditLog::open(folder.file("missing/audit.jsonl"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().field(), "log.audit");
  EXPECT_NE(none.status().message().find("missing/audit.jsonl"), std::string::npos);
  EXPECT_NE(none.status().message().find("No such file"), std::string::npos);

  auto log = opened(folder.file());
  fs::rename(folder.file(), folder.file("old"));
  fs::create_directory(folder.file());
  EXPECT_EQ(reopen(*log).field(), "log.audit");
  log->add(entry("req_1"));
  log.reset();
  EXPECT_EQ(lines_of(folder.file("old")).size(), 1u);
}

TEST(AuditLog, ACheckSaysWhatOpeningWouldAndMakesNoFile) {
  const Folder folder;
  EXPECT_TRUE(AuditLog::check(folder.file()).ok());
  EXPECT_FALSE(fs::exists(folder.file()));
  EXPECT_EQ(AuditLog::check(folder.file("none/audit.jsonl")).field(), "log.audit");
  EXPECT_EQ(AuditLog::check(folder.file("")).field(), "log.audit");
}

TEST(AuditLog, AFullDiskCountsWhatIsLostAndTheFileSaysSoLater) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  const Folder folder;
  fs::create_symlink("/dev/full", folder.file());
  auto log = opened(folder.file());
  for (int i = 0; i < 3; ++i) log->add(entry("req_lost"));
  while (log->lost() < 3) std::this_thread::yield();
  fs::remove(folder.file());
  ASSERT_TRUE(reopen(*log).ok());
  log->add(entry("req_kept"));
  log.reset();
  const auto lines = lines_of(folder.file());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find(R"("lines_lost":3)"), std::string::npos) << lines[0];
  EXPECT_EQ(lines[1], audit_json(entry("req_kept")));
}

class AuditedAppTest : public test::StubAppTest {
 protected:
  AuditedAppTest() {
    services.audit = opened(folder.file());
    auto ring = KeyRing::parse(
        "[[keys]]\nname = \"reader\"\nsha256 = \"" + sha256("secret-reader").hex() +
            "\"\nscopes = [\"read\"]\nnamespaces = [\"a\"]\n"
            "[[keys]]\nname = \"writer\"\nsha256 = \"" +
            sha256("secret-writer").hex() + "\"\nscopes = [\"write\"]\nnamespaces = [\"a\"]\n",
        "keys");
    QUIRE_CHECK(ring.ok(), ring.status().message());
    services.set_keys(*ring);
  }
  /// Ends the service, so that every line is written.
  std::vector<boost::json::object> entries() {
    (void)server->stop(std::chrono::milliseconds(1000));
    services.audit.reset();
    std::vector<boost::json::object> out;
    for (const auto& line : lines_of(folder.file())) out.push_back(parse_json(line)->as_object());
    return out;
  }
  Folder folder;
};

TEST_F(AuditedAppTest, ChangesAndRefusalsAreNotedAndNothingElse) {
  const auto as = [](const std::string& key) {
    return std::vector<std::string>{"api-key: secret-" + key, "X-Request-Id: id-" + key};
  };
  EXPECT_EQ(call("GET", "/livez").status, 200);
  EXPECT_EQ(call("GET", "/v1/documents", {}, as("reader")).status, 200);
  EXPECT_EQ(call("DELETE", "/v1/documents/x", {}, as("reader")).status, 403);
  EXPECT_EQ(call("GET", "/v1/documents", {}, as("stranger")).status, 401);
  const int deleted = call("DELETE", "/v1/documents/x", {}, as("writer")).status;
  auto all = entries();
  ASSERT_EQ(all.size(), 3u);
  // A line is written behind its reply, so those of other connections may come first.
  std::ranges::sort(
      all, {}, [](const auto& line) { return std::string(line.at("request_id").as_string()); });
  EXPECT_EQ(all[0].at("key"), "reader");
  EXPECT_EQ(all[0].at("error"), "insufficient_scope");
  EXPECT_EQ(all[0].at("request_id"), "id-reader");
  EXPECT_TRUE(all[1].at("key").is_null());
  EXPECT_EQ(all[1].at("error"), "invalid_api_key");
  EXPECT_EQ(all[1].at("status"), 401);
  EXPECT_EQ(all[2].at("key"), "writer");
  EXPECT_EQ(all[2].at("namespace"), "a");
  EXPECT_EQ(all[2].at("method"), "DELETE");
  EXPECT_EQ(all[2].at("route"), "/v1/documents/{id}");
  EXPECT_EQ(all[2].at("path"), "/v1/documents/x");
  EXPECT_EQ(all[2].at("status"), deleted);
  for (const auto& line : all)
    EXPECT_EQ(boost::json::serialize(line).find("secret-"), std::string::npos);
}

}  // namespace
}  // namespace quire
