// Backups that a running service makes, by the clock and on request, and a store made of one.
#include <csignal>
#include <fstream>

#include "tests/support/service_process.h"
#include "tests/support/soon.h"

namespace quire::testing {
namespace {

namespace fs = std::filesystem;

class Backup : public ::testing::Test {
 protected:
  int post(const std::string& id, const std::string& text) {
    return service
        .call("POST", "/v1/documents?wait=true",
              R"({"id":")" + id + R"(","text":)" + quoted(text) + "}")
        .status;
  }
  ProcessResult store(const std::vector<std::string>& more) {
    std::vector<std::string> command{QUIRE_BINARY, "store"};
    command.insert(command.end(), more.begin(), more.end());
    return run_process(command);
  }

  TempFolder folder;
  const std::string backups = (folder.path() / "backups").string();
  ServiceProcess service;
};

TEST_F(Backup, ARunningServiceMakesOneThatComesBack) {
  service.start(folder.path() / "store", {"--backup.path=" + backups, "--backup.every_hours=0"});
  ASSERT_EQ(post("a", "The first text."), 200);
  const auto first = service.json("POST", "/v1/admin/backup");
  EXPECT_EQ(int_at(first, "number"), 1);
  EXPECT_EQ(int_at(first, "backups"), 1);
  ASSERT_EQ(post("b", sample_text(1, 100)), 200);
  EXPECT_EQ(int_at(service.json("POST", "/v1/admin/backup"), "backups"), 2);
  EXPECT_NE(service.call("GET", "/metrics").body.find("quire_backups_total{outcome=\"made\"} 2"),
            std::string::npos);
  const std::string restored = (folder.path() / "restored").string();
  const auto back = store({"restore", backups, "-p", restored});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  // An older one by its number.
  const auto list = store({"backups", backups});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_EQ(list.out.rfind("backup 1  20", 0), 0u) << list.out;
  EXPECT_NE(list.out.find("\nbackup 2  20"), std::string::npos) << list.out;
  const std::string older = (folder.path() / "older").string();
  const auto first_back = store({"restore", backups, "--backup", "1", "-p", older});
  EXPECT_EQ(first_back.exit_code, 0) << first_back.err;
  EXPECT_EQ(first_back.out, "restored 1 document of backup 1 to " + older + "\n");
  const auto none = store({"restore", backups, "--backup", "9", "-p", older + "-2"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("quire store backups"), std::string::npos) << none.err;
  EXPECT_EQ(service.stop(), 0);
  ServiceProcess again;
  again.start(restored);
  EXPECT_EQ(again.call("GET", "/v1/documents/a/content").body, "The first text.");
  EXPECT_EQ(again.call("GET", "/v1/documents/b").status, 200);
  EXPECT_EQ(again.stop(), 0);
}

TEST_F(Backup, TheClockMakesOneAtTheFirstStartAndNotAtTheNext) {
  const std::vector<std::string> flags{"--backup.path=" + backups, "--backup.every_hours=24"};
  service.start(folder.path() / "store", flags);
  ASSERT_TRUE(service.wait_for_log("a backup of the store was made"));
  EXPECT_EQ(service.stop(), 0);
  service.start(folder.path() / "store", flags);
  ASSERT_EQ(post("a", "text"), 200);
  EXPECT_EQ(int_at(service.json("POST", "/v1/admin/backup"), "number"), 2)
      << "the second one is this request's";
  EXPECT_EQ(service.stop(), 0);
}

TEST_F(Backup, WhatCannotBeDoneIsSaid) {
  service.start(folder.path() / "store");
  int status = 0;
  const auto none = service.json("POST", "/v1/admin/backup", {}, {}, &status);
  EXPECT_EQ(status, 501);
  EXPECT_NE(text_at(none, "error.message").find("backup.path"), std::string::npos);
  EXPECT_EQ(service.stop(), 0);
  const std::string within = (folder.path() / "store" / "backups").string();
  const auto refused = run_process({QUIRE_BINARY, "serve", "--server.port=0",
                                    "--disk.path=" + (folder.path() / "store").string(),
                                    "--backup.path=" + within});
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
  EXPECT_NE(refused.err.find("name another"), std::string::npos) << refused.err;
}

TEST_F(Backup, ARestoreThatFailedCanBeRepeated) {
  service.start(folder.path() / "store", {"--backup.path=" + backups, "--backup.every_hours=0"});
  ASSERT_EQ(post("a", "text"), 200);
  (void)service.json("POST", "/v1/admin/backup");
  EXPECT_EQ(service.stop(), 0);
  // With a limit on the size of files it fails in the midst of them.
  const std::string restored = (folder.path() / "restored").string();
  const std::string limited =
      "trap '' XFSZ; ulimit -f 1; exec \"$0\" store restore \"$1\" -p \"$2\"";
  const auto failed = run_process({"/bin/bash", "-c", limited, QUIRE_BINARY, backups, restored});
  EXPECT_EQ(failed.exit_code, 1) << failed.out << failed.err;
  EXPECT_TRUE(fs::exists(restored)) << "it had begun: " << failed.err;
  EXPECT_TRUE(fs::is_empty(restored));
  const auto back = store({"restore", backups, "-p", restored});
  EXPECT_EQ(back.exit_code, 0) << back.err;
}

TEST_F(Backup, ARestoreThatWasKilledIsNoStoreAndCanBeRepeated) {
  service.start(folder.path() / "store", {"--backup.path=" + backups, "--backup.every_hours=0"});
  ASSERT_EQ(post("a", "The first text."), 200);
  (void)service.json("POST", "/v1/admin/backup");
  EXPECT_EQ(service.stop(), 0);
  // A signal ends it at the first file that is longer than the limit.
  const std::string restored = (folder.path() / "restored").string();
  const std::string killed = "ulimit -c 0 -f 1; exec \"$0\" store restore \"$1\" -p \"$2\"";
  const auto half = run_process({"/bin/bash", "-c", killed, QUIRE_BINARY, backups, restored});
  EXPECT_EQ(half.exit_code, -1000 - SIGXFSZ) << half.out << half.err;
  EXPECT_TRUE(fs::exists(restored + "/db")) << "it had begun";
  const auto look = store({"stats", "-p", restored});
  EXPECT_EQ(look.exit_code, 1) << look.out;
  EXPECT_NE(look.err.find("quire store restore"), std::string::npos) << look.err;
  const auto refused = run_process({QUIRE_BINARY, "serve", "--server.port=0",
                                    "--disk.path=" + restored, "--disk.on_damage=salvage"});
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
  EXPECT_NE(refused.err.find("quire store restore"), std::string::npos) << refused.err;
  const auto back = store({"restore", backups, "-p", restored});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  ServiceProcess again;
  again.start(restored);
  EXPECT_EQ(again.call("GET", "/v1/documents/a/content").body, "The first text.");
  EXPECT_EQ(again.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
