// `quire ingest` over the files that people have: every one gets its fate, and a second run touches
// nothing.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <fstream>

#include "server/http/http_message.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace fs = std::filesystem;

class Ingest : public ServiceTest {
 protected:
  void SetUp() override {
    root_ = folder() / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(root_);
  }
  fs::path write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << bytes;
    return root_ / name;
  }
  static ProcessResult ingest(std::vector<std::string> words, const std::string& input = {}) {
    std::vector<std::string> line = {QUIRE_BINARY, "ingest", "--server",
                                     "http://127.0.0.1:" + std::to_string(service->port())};
    line.insert(line.end(), words.begin(), words.end());
    return run_process(line, input);
  }
  static bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  static bool has(const std::string& id) {
    int status = 0;
    (void)service->json("GET", "/v1/documents/" + percent_encode(id), "", {}, &status);
    return status == 200;
  }
  fs::path root_;
};

TEST_F(Ingest, AFolderIsReadAndASecondRunTouchesNothing) {
  write("notes/plan.md", "# Plan\n\nBuild the bridge.\n");
  write("notes/deep/报告.txt", "The report is short.");
  write("page.html", "<html><body><nav>Menu</nav><h1>Title</h1><p>Body text.</p></body></html>");
  write("latin.txt", "caf\xe9 au lait, d\xe9j\xe0 vu, tr\xe8s bien, \xe0 bient\xf4t");
  write("empty.txt", "");
  write("picture.png", "\x89PNG\r\n\x1a\n....");
  write(".hidden/secret.txt", "Not for anyone.");
  auto r = ingest({root_.string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const auto* line : {"created   notes:plan.md", "created   notes:deep:报告.txt",
                           "created   page.html", "created   latin.txt"})
    EXPECT_TRUE(says(r.out, line)) << line << "\n" << r.out;
  EXPECT_TRUE(says(r.out, "empty.txt: is empty")) << r.out;
  EXPECT_TRUE(says(r.out, "picture.png: is a PNG image")) << r.out;
  EXPECT_FALSE(says(r.out + r.err, "secret"));
  EXPECT_TRUE(says(r.err, "4 created, 2 skipped")) << r.err;
  EXPECT_TRUE(says(r.err, "tokens")) << "an estimate comes first: " << r.err;
  EXPECT_EQ(service->call("GET", "/v1/documents/page.html/content").body,
            "# Title\n\nBody text.\n");
  r = ingest({root_.string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(says(r.err, "4 unchanged, 2 skipped")) << r.err;
  EXPECT_FALSE(says(r.out, "created") || says(r.out, "updated")) << r.out;
}

TEST_F(Ingest, ABadFileCostsOnlyItself) {
  write("good.txt", "A good text.");
  write("odd.pdf", "%PDF-1.4 and no more");
  write("bad.jsonl", "{\"text\":\"a\"}\n{\"text\":3}\n");
  const auto r = ingest({root_.string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.out, "created   good.txt")) << r.out;
  EXPECT_TRUE(says(r.err, "odd.pdf: ")) << r.err;
  EXPECT_TRUE(says(r.err, "bad.jsonl, line 2: ")) << r.err;
  EXPECT_EQ(ingest({(root_ / "none.txt").string()}).exit_code, 1);
}

TEST_F(Ingest, TwoFilesNeverShareAnId) {
  const auto one = write("d1/readme.md", "# One\n\nFirst.\n"),
             two = write("d2/readme.md", "# Two\n\nSecond.\n");
  auto r = ingest({one.string(), two.string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.err, one.string()) && says(r.err, two.string())) << r.err;
  EXPECT_EQ(ingest({one.string()}).exit_code, 0);
  r = ingest({two.string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.err, "--replace")) << r.err;
  EXPECT_EQ(service->call("GET", "/v1/documents/readme.md/content").body, "# One\n\nFirst.\n");
  r = ingest({"--replace", two.string()});
  EXPECT_TRUE(says(r.out, "updated   readme.md")) << r.out << r.err;
}

TEST_F(Ingest, AFilesChunksDoNotDependOnOtherFiles) {
  const auto md = write("a.md", "# A\n\nText.\n\n# B\n\nMore text.\n");
  EXPECT_TRUE(says(ingest({md.string()}).out, "created   a.md"));
  write("b.txt", "Plain.");
  const auto r = ingest({root_.string()});
  EXPECT_TRUE(says(r.out, "unchanged") && says(r.out, "created   b.txt")) << r.out;
  EXPECT_FALSE(says(r.out, "updated")) << r.out;
  EXPECT_EQ(ingest({"--chunking", "markdown", "--overlap", "8", md.string()}).exit_code, 1);
}

TEST_F(Ingest, SyncFollowsChangesAndDeletesOnlyItsOwn) {
  write("keep.txt", "Stays.");
  const auto gone = write("gone.txt", "Goes."), changed = write("sub/changed.txt", "Before.");
  service->json("POST", "/v1/documents", R"({"id":"foreign","text":"Of somebody else."})",
                {"Prefer: wait=10"});
  EXPECT_EQ(ingest({root_.string()}).exit_code, 0);
  fs::remove(gone);
  std::ofstream(changed) << "After.";
  auto r = ingest({"--sync", "--dry-run", root_.string()});
  EXPECT_TRUE(says(r.out, "deleted   gone.txt")) << r.out;
  EXPECT_TRUE(has("gone.txt")) << "a dry run changes nothing";
  r = ingest({"--sync", root_.string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(says(r.out, "deleted   gone.txt")) << r.out;
  EXPECT_TRUE(says(r.out, "updated   sub:changed.txt")) << r.out;
  EXPECT_FALSE(has("gone.txt"));
  EXPECT_TRUE(has("keep.txt") && has("foreign"));
}

TEST_F(Ingest, AnInterruptCancelsTheJobAndSaysSo) {
  for (unsigned i = 0; i < 12; ++i)
    write("long" + std::to_string(i) + ".txt", sample_text(40 + i, 4000));
  const auto r = run_process({"/bin/sh", "-c",
                              "exec timeout --preserve-status -s INT 3 \"$0\" \"$@\"", QUIRE_BINARY,
                              "ingest", root_.string(), "--server",
                              "http://127.0.0.1:" + std::to_string(service->port())});
  EXPECT_EQ(r.exit_code, 130) << r.out << r.err;
  EXPECT_TRUE(says(r.out + r.err, "cancelled")) << r.out << r.err;
  const auto jobs = service->json("GET", "/v1/jobs?limit=1");
  EXPECT_EQ(text_at(jobs, "data.0.status"), "cancelled");
}

TEST_F(Ingest, PatternsFiltersAndStandardInput) {
  write("a/one.md", "One.");
  write("a/b/two.md", "Two.");
  write("a/b/three.txt", "Three.");
  auto r = ingest({(root_ / "**/*.md").string(), "--exclude", "two*"});
  EXPECT_TRUE(says(r.err, "1 created")) << r.err;
  EXPECT_TRUE(has("a:one.md"));
  EXPECT_EQ(ingest({(root_ / "*.none").string()}).exit_code, 1);
  r = ingest({"-", "--name", "from pipe.txt"}, "Text of a pipe.");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(says(r.out, "created   from-pipe.txt~")) << r.out;
}

}  // namespace
}  // namespace quire::testing
