// After kill -9 at random moments of ingest and delete, acknowledged documents are stored and
// deleted ones stay away.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <map>
#include <sstream>

#include "tests/scenario/ingest/crash_texts.h"
#include "tests/support/harness/ingest_fixture.h"

extern char** environ;

namespace quire {
namespace {

using namespace test;

struct Expected {
  std::string acknowledged, open;  // texts; empty: absent
  bool has_open = false;
  std::string shown() const {
    return "acknowledged <" + acknowledged.substr(0, 20) + ">" +
           (has_open ? " open <" + open.substr(0, 20) + ">" : "");
  }
};

/// Runs the child until it has written `lines` lines, kills it, and returns its whole output.
std::string run_and_kill(const std::string& folder, unsigned seed, long first, int lines) {
  int fds[2];
  EXPECT_EQ(::pipe(fds), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, fds[0]);
  std::string program = QUIRE_CRASH_CHILD, s = std::to_string(seed), n = std::to_string(first),
              f = folder;
  char* argv[] = {program.data(), f.data(), s.data(), n.data(), nullptr};
  pid_t pid = 0;
  EXPECT_EQ(::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(fds[1]);
  std::string said;
  char buffer[256];
  bool killed = false;
  for (ssize_t got; (got = ::read(fds[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<std::size_t>(got));
    if (!killed && std::count(said.begin(), said.end(), '\n') >= lines) {
      ::kill(pid, SIGKILL);
      killed = true;
    }
  }
  ::close(fds[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
  return said;
}

class CrashTest : public IngestTest {};

TEST_F(CrashTest, AcknowledgedDocumentsAndDeletesSurviveKills) {
  const char* asked = std::getenv("QUIRE_CRASH_ROUNDS");
  const int rounds = asked ? std::atoi(asked) : 8;
  options_.clock_ms = nullptr;
  std::map<std::string, Expected> expected;
  std::mt19937_64 rng(7);
  long next = 1;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    std::istringstream said(run_and_kill(root_ + "/store", static_cast<unsigned>(rng()), next,
                                         1 + static_cast<int>(rng() % 60)));
    std::string mark, op, id;
    long n = 0;
    while (said >> mark >> op >> id >> n) {
      Expected& e = expected[id];
      const std::string text = op == "S" ? crash_text(id, n) : "";
      next = n + 1;
      e.has_open = mark == "?";
      (e.has_open ? e.open : e.acknowledged) = text;
    }
    open();
    ASSERT_NE(service_, nullptr);
    std::vector<std::string> ids;
    for (int i = 0; i < kCrashIds; ++i) ids.push_back("d" + std::to_string(i));
    std::promise<void> settled;
    const Subscription s = service_->jobs().when_synchronized("default", ids,
                                                              [&] { settled.set_value(); });
    settled.get_future().get();
    for (auto& [name, e] : expected) {
      const auto text = service_->documents().content("default", name);
      ASSERT_TRUE(text.ok() || text.code() == Code::kNotFound) << text.status().to_string();
      const std::string found = text.value_or("");
      ASSERT_TRUE(found == e.acknowledged || (e.has_open && found == e.open))
          << name << ": found <" << found.substr(0, 20) << "> " << e.shown();
      if (text.ok()) {
        const auto d = service_->documents().get("default", name);
        ASSERT_OK(d);
        EXPECT_EQ(d->status, DocumentStatus::kReady) << (d->error ? d->error->message : "");
        EXPECT_EQ(d->cache.state, "resident");
      }
      e = {found, "", false};
    }
    const auto verified = store_->verify();
    ASSERT_OK(verified);
    EXPECT_EQ(verified->bad_documents + verified->bad_segments, 0u);
    shut();
  }
}

}  // namespace
}  // namespace quire
