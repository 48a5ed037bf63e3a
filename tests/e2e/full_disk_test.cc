// When a real file system fills up under the store, the service says so, keeps answering and loses
// nothing. It accepts documents again once there is room.
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <boost/json/serialize.hpp>

#include "tests/support/service_process.h"
#include "tests/support/soon.h"

namespace quire::testing {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

/// A small file system for the test, which needs the right to mount.
class FullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(small());
    if (::mount("quire-test", small().c_str(), "tmpfs", 0, "size=96m") != 0)
      GTEST_SKIP() << "cannot mount a small file system here";
    mounted_ = true;
    service_.start(small() / "store");
  }
  void TearDown() override {
    if (!mounted_) return;
    if (service_.running()) service_.kill();
    ::umount2(small().c_str(), MNT_DETACH);
  }

  fs::path small() const { return folder_.path() / "small"; }
  fs::path hog() const { return small() / "hog"; }
  /// Takes every remaining byte.
  void fill_disk() const {
    const int fd = ::open(hog().c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    for (std::size_t piece = 1 << 20; piece >= 1; piece /= 2) {
      const std::string bytes(piece, 'h');
      while (::write(fd, bytes.data(), bytes.size()) > 0) {
      }
    }
    ::close(fd);
  }
  RawResponse post(const std::string& id, unsigned seed) const {
    return service_.call("POST", "/v1/documents?wait=true",
                         R"({"id":")" + id + R"(","text":)" + quoted(sample_text(seed, 300)) + "}");
  }
  std::string answer(const std::string& ids) const {
    int status = 0;
    const auto r = service_.json("POST", "/v1/query",
                                 R"({"query":"What was built by the guild?","document_ids":)" +
                                     ids + R"(,"max_tokens":12,"cache":{"strategy":"reuse"}})",
                                 {}, &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
    return text_at(r, "answer");
  }

  TempFolder folder_;
  ServiceProcess service_;
  bool mounted_ = false;
};

TEST_F(FullDiskTest, DocumentsAreRefusedWithOneClearErrorAndWhatIsStoredGoesOnAnswering) {
  for (const auto& [id, seed] : {std::pair{"a", 1u}, {"b", 2u}}) {
    const auto r = post(id, seed);
    ASSERT_EQ(r.status, 200) << r.body;
  }
  const std::string before = answer(R"(["a","b"])");
  fill_disk();
  for (unsigned i = 0; i < 3; ++i) {
    const auto refused = post("new", 10 + i);
    EXPECT_EQ(refused.status, 503) << refused.body;
    const auto problem = parse(refused.body);
    // Room may come back, unlike in a cache full of pins.
    EXPECT_EQ(text_at(problem, "error.code"), "overloaded");
    EXPECT_NE(text_at(problem, "detail").find("disk is full"), std::string::npos) << refused.body;
    EXPECT_EQ(service_.call("GET", "/readyz").status, 200);
  }
  EXPECT_EQ(service_.call("GET", "/v1/documents/new").status, 404);
  const std::string metrics = service_.call("GET", "/metrics").body;
  EXPECT_NE(metrics.find("quire_tier_up{tier=\"disk\"} 0\n"), std::string::npos);
  EXPECT_EQ(text_at(service_.json("GET", "/healthz"), "checks.disk"), "full");
  const std::string stats = "/v1/admin/cache/stats";
  EXPECT_EQ(text_at(service_.json("GET", stats), "tiers.1.state"), "full");
  EXPECT_EQ(answer(R"(["a","b"])"), before);
  // Answers also work from the disk, and where missing KV cannot be stored.
  EXPECT_EQ(service_.call("POST", "/v1/admin/cache/evict", R"({"tier":"dram"})").status, 200);
  EXPECT_EQ(answer(R"(["a","b"])"), before);
  EXPECT_EQ(service_.call("GET", "/v1/documents/a/content").body, sample_text(1, 300));

  ASSERT_TRUE(fs::remove(hog()));
  const auto taken = post("new", 10);
  EXPECT_EQ(taken.status, 200) << taken.body;
  EXPECT_EQ(text_at(service_.json("GET", "/healthz"), "checks.disk"), "ok");
  EXPECT_EQ(text_at(service_.json("GET", stats), "tiers.1.state"), "ok");
  const std::string with_new = answer(R"(["a","new"])");
  service_.kill();
  service_.start(small() / "store");
  EXPECT_EQ(answer(R"(["a","b"])"), before);
  EXPECT_EQ(answer(R"(["a","new"])"), with_new);
  EXPECT_EQ(service_.stop(), 0);
  const auto verify = run_process(
      {QUIRE_BINARY, "store", "verify", "--path", (small() / "store").string()});
  EXPECT_EQ(verify.exit_code, 0) << verify.out << verify.err;
}

TEST_F(FullDiskTest, DeletionsThatFindNoRoomSayThatTheDiskIsFull) {
  constexpr int kDocuments = 40;
  std::string documents;
  for (int i = 0; i < kDocuments; ++i)
    documents += std::string(i ? "," : "") + R"({"id":"d)" + std::to_string(i) +
                 R"(","text":"A short text."})";
  const auto posted = service_.call("POST", "/v1/documents?wait=true",
                                    R"({"documents":[)" + documents + "]}");
  ASSERT_LT(posted.status, 300) << posted.body;
  std::vector<std::string> refused;
  for (int i = 0; i < kDocuments && refused.size() < 4; ++i) {
    const std::string path = "/v1/documents/d" + std::to_string(i);
    fill_disk();  // anew: what is deleted leaves room
    // From the first failure on, what becomes of the document is in doubt.
    for (int j = 0; j < 3; ++j) {
      const auto r = service_.call("DELETE", path);
      if (r.status < 300 || r.status == 404) break;
      EXPECT_EQ(r.status, 503) << r.body;
      EXPECT_EQ(text_at(parse(r.body), "error.code"), "overloaded") << r.body;
      EXPECT_NE(r.body.find("disk is full"), std::string::npos) << r.body;
      if (j == 2) refused.push_back(path);
    }
  }
  EXPECT_FALSE(refused.empty());
  ASSERT_TRUE(fs::remove(hog()));
  for (const std::string& path : refused) {
    // The record is opened again at most once a second.
    int status = 503;
    EXPECT_TRUE(soon([&] { return (status = service_.call("DELETE", path).status) != 503; }));
    EXPECT_TRUE(status < 300 || status == 404) << path << " " << status;
  }
  EXPECT_EQ(service_.stop(), 0);
}

TEST_F(FullDiskTest, AJobThatRunsIntoAFullDiskEndsAndEveryDocumentIsThereOrFailed) {
  const auto r = post("a", 1);
  ASSERT_EQ(r.status, 200) << r.body;
  const std::string before = answer(R"(["a"])");
  constexpr int kDocuments = 12;
  std::string documents;
  for (int i = 0; i < kDocuments; ++i) {
    documents += std::string(i ? "," : "") + R"({"id":"d)" + std::to_string(i) + R"(","text":)" +
                 quoted(sample_text(static_cast<unsigned>(100 + i), 300)) + "}";
  }
  const auto accepted = service_.call("POST", "/v1/documents",
                                      R"({"documents":[)" + documents + "]}");
  ASSERT_EQ(accepted.status, 202) << accepted.body;
  const std::string job = text_at(parse(accepted.body), "job_id");
  fill_disk();  // at any point of the job; what follows holds at each
  // The job's event stream ends with the job.
  LoopbackClient events(service_.port(), 600);
  ASSERT_TRUE(events.send("GET /v1/jobs/" + job + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  ASSERT_NE(events.read_until("event: done").find("event: done"), std::string::npos);
  EXPECT_EQ(service_.call("GET", "/readyz").status, 200);
  EXPECT_EQ(answer(R"(["a"])"), before);
  std::vector<std::string> failed;
  for (int i = 0; i < kDocuments; ++i) {
    const std::string id = "d" + std::to_string(i);
    const auto document = service_.call("GET", "/v1/documents/" + id);
    if (document.status == 200 && text_at(parse(document.body), "status") == "ready") {
      (void)answer("[\"" + id + "\"]");
    } else {
      EXPECT_TRUE(document.status == 404 || document.body.find("disk is full") != std::string::npos)
          << document.body;
      failed.push_back(id);
    }
  }
  ASSERT_TRUE(fs::remove(hog()));
  for (const std::string& id : failed) {
    const auto again = post(id, 500);
    EXPECT_EQ(again.status, 200) << again.body;
    (void)answer("[\"" + id + "\"]");
  }
  EXPECT_EQ(service_.stop(), 0);
  const auto verify = run_process(
      {QUIRE_BINARY, "store", "verify", "--path", (small() / "store").string()});
  EXPECT_EQ(verify.exit_code, 0) << verify.out << verify.err;
}

}  // namespace
}  // namespace quire::testing
