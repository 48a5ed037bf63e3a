/// A real PostgreSQL server for tests, where Debian's package `postgresql` is installed. It listens
/// on a free port of 127.0.0.1, has its files in a temporary folder, and does not run as root.
#pragma once

#include <dirent.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cachestore/catalog/postgres_connection.h"
#include "tests/support/harness/redis_process.h"

namespace quire::test {

/// Returns the folder of the server's programs, of the newest version; empty: there is none.
inline std::string postgres_programs() {
  std::vector<std::filesystem::path> found;
  std::error_code none;
  for (const auto& e : std::filesystem::directory_iterator("/usr/lib/postgresql", none))
    if (std::filesystem::exists(e.path() / "bin" / "initdb", none)) found.push_back(e.path());
  std::ranges::sort(found);
  return found.empty() ? "" : (found.back() / "bin").string();
}

/// One server, which ends with this object.
class PostgresProcess {
 public:
  /// A copy of `primary` that follows it, which must be running; null: a primary.
  explicit PostgresProcess(const PostgresProcess* primary = nullptr)
      : programs_(postgres_programs()) {
    if (::geteuid() == 0)
      for (const char* name : {"postgres", "nobody"})
        if (const passwd* entry = ::getpwnam(name); entry != nullptr && uid_ == 0) {
          uid_ = entry->pw_uid;
          gid_ = entry->pw_gid;
        }
    std::filesystem::permissions(folder_.root(), std::filesystem::perms::all);
    data_ = folder_.root() + "/data";
    if (primary != nullptr)
      copy(*primary);
    else
      initialise();
    do {
      port_ = free_port();
    } while (port_ >= 55'000);
    start();
  }
  ~PostgresProcess() { kill(); }
  PostgresProcess(const PostgresProcess&) = delete;
  PostgresProcess& operator=(const PostgresProcess&) = delete;

  static constexpr const char* kPassword = "s3cr3t";
  std::uint16_t port() const { return port_; }
  std::string url() const { return url_at(port_); }
  /// The address by way of another port.
  std::string url_at(std::uint16_t port) const {
    return "postgresql://quire:" + std::string(kPassword) + "@127.0.0.1:" + std::to_string(port) +
           "/postgres";
  }
  /// Starts the server and waits until it answers. It syncs, as a real one does.
  void start() {
    pid_ = launch({programs_ + "/postgres", "-D", data_, "-p", std::to_string(port_), "-k",
                   folder_.root(), "-h", "127.0.0.1", "-c", "shared_buffers=16MB", "-c",
                   "max_connections=60", "-c", "autovacuum=off"});
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (!connect().ok() && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  /// Stops all of its processes: it takes connections and says nothing.
  void pause() {
    ::kill(pid_, SIGSTOP);  // first, so that it has no further child
    for (const pid_t child : children()) ::kill(child, SIGSTOP);
  }
  /// Makes commits wait until a standby has them.
  void wait_for_standby() {
    QUIRE_CHECK(run("ALTER SYSTEM SET synchronous_standby_names = '*'").ok() &&
                    run("SELECT pg_reload_conf()").ok(),
                "the primary waits for its standby");
  }
  /// Makes a standby the primary, and returns once it is.
  Status promote() { return run("SELECT pg_promote(true, 30)").status(); }
  /// Kills the server and all of its children at once, as a failing machine does.
  void kill() {
    if (pid_ <= 0) return;
    const std::vector<pid_t> all = children();  // nobody knows whose they are afterwards
    ::kill(-pid_, SIGKILL);
    for (const pid_t child : all) ::kill(child, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
    // What a killed server leaves makes the next one wait for its children.
    const auto until = Clock::now() + std::chrono::seconds(10);
    while (connect().ok() && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Result<std::unique_ptr<PostgresConnection>> connect() const {
    return PostgresConnection::open(url(), Clock::now() + std::chrono::seconds(10), never_);
  }
  /// Runs one statement on a connection of its own.
  Result<std::vector<PostgresRows>> run(const std::string& sql) const {
    QUIRE_ASSIGN_OR_RETURN(const auto connection, connect());
    std::vector<PostgresRows> rows;
    const PostgresStatement statement{{}, sql, {}};
    QUIRE_RETURN_IF_ERROR(
        connection->run({&statement, 1}, Clock::now() + std::chrono::seconds(10), &rows));
    return rows;
  }

 private:
  void initialise() {
    const std::string password = folder_.root() + "/password";
    std::ofstream(password) << kPassword << '\n';
    std::filesystem::permissions(password, std::filesystem::perms::all);
    const int made = wait_for(
        launch({programs_ + "/initdb", "-D", data_, "-U", "quire", "--pwfile", password, "-A",
                "scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"}));
    QUIRE_CHECK(made == 0, "initdb works");
  }
  void copy(const PostgresProcess& primary) {
    const int made = wait_for(launch({programs_ + "/pg_basebackup", "-D", data_, "-d",
                                      primary.url(), "-R", "-c", "fast", "--no-sync"}));
    QUIRE_CHECK(made == 0, "pg_basebackup works");
  }
  pid_t launch(std::vector<std::string> args) const {
    std::vector<char*> raw;
    for (auto& a : args) raw.push_back(a.data());
    raw.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::setpgid(0, 0);
    if (!std::freopen((folder_.root() + "/log").c_str(), "a", stdout)) ::_exit(127);
    ::dup2(1, 2);
    if (::chdir("/") != 0) ::_exit(127);
    if (uid_ != 0 && (::setgroups(0, nullptr) != 0 || ::setgid(gid_) != 0 || ::setuid(uid_) != 0))
      ::_exit(127);
    // A test that is killed leaves no server behind. Changing the user would undo it.
    ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
    ::execv(raw[0], raw.data());
    ::_exit(127);
  }
  static int wait_for(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  /// Processes whose parent is the server: it gives each a group of its own.
  std::vector<pid_t> children() const {
    std::vector<pid_t> out;
    std::error_code none;
    for (const auto& e : std::filesystem::directory_iterator("/proc", none)) {
      const int pid = std::atoi(e.path().filename().c_str());
      if (pid <= 0) continue;
      std::ifstream stat(e.path() / "stat");
      std::string line;
      std::getline(stat, line);
      const auto end = line.rfind(')');
      if (end == line.npos || end + 4 > line.size()) continue;
      if (std::atoi(line.c_str() + end + 4) == pid_) out.push_back(pid);
    }
    return out;
  }

  const std::string programs_;
  TempFolder folder_;
  std::string data_;
  uid_t uid_ = 0;
  gid_t gid_ = 0;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
  const std::atomic<bool> never_{false};
};

}  // namespace quire::test
