/// Real Redis servers for tests, where there is a `redis-server` in PATH.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cachestore/redis/redis_connection.h"
#include "tests/support/harness/test_store.h"

namespace quire::test {

/// Returns the path of a program; empty: there is none.
inline std::string program_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const std::string file = rest.substr(0, end) + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) return file;
    rest = end == rest.npos ? "" : rest.substr(end + 1);
  }
  return {};
}

inline std::string redis_program() { return program_in_path("redis-server"); }

/// Returns a port of 127.0.0.1 that nobody listened on a moment ago. It and the one of a
/// cluster's bus, 10000 above, are below those that the system gives to connections, which could
/// have it when a server starts again.
inline std::uint16_t free_port() {
  std::random_device device;
  for (int tries = 0; tries < 1000; ++tries) {
    const auto port = static_cast<std::uint16_t>(10'000 + device() % 12'000);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (bound) return port;
  }
  return 0;
}

/// One server, which ends with this object.
class RedisProcess {
 public:
  /// Starts a server with these further arguments, and waits until it answers. A sentinel needs a
  /// file with its settings.
  explicit RedisProcess(const std::vector<std::string>& more = {}, const std::string& file = {}) {
    port_ = free_port();
    std::vector<std::string> args{redis_program()};
    if (!file.empty()) args.push_back(file);
    for (const std::string& arg : std::vector<std::string>{
             "--port", std::to_string(port_), "--bind", "127.0.0.1", "--daemonize", "no",
             "--logfile", "/dev/null", "--dir", folder_.root()})
      args.push_back(arg);
    if (file.empty())
      for (const char* arg : {"--save", "", "--appendonly", "no"}) args.emplace_back(arg);
    args.insert(args.end(), more.begin(), more.end());
    std::vector<char*> raw;
    for (auto& a : args) raw.push_back(a.data());
    raw.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execv(raw[0], raw.data());
      ::_exit(127);
    }
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (!ask({"PING"}) && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ~RedisProcess() { end(); }
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  /// Kills the server at once.
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void pause() { ::kill(pid_, SIGSTOP); }
  void go_on() { ::kill(pid_, SIGCONT); }

  /// Waits until a replica has all that was written; false: not within a minute.
  bool wait_for_replica() const {
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (Clock::now() < until) {
      const auto info = ask({"INFO", "replication"});
      const std::string text = info ? info->text : "";
      const auto number_behind = [&](const std::string& word) {
        const std::size_t at = text.find(word);
        return at == text.npos ? -1 : std::atoll(text.c_str() + at + word.size());
      };
      const auto own = number_behind("master_repl_offset:"), its = number_behind(",offset=");
      if (own >= 0 && its >= own) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }

  RemoteHost host() const { return {"127.0.0.1", port_}; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  /// Sends one command on a connection of its own; none: no answer.
  std::optional<RedisReply> ask(std::initializer_list<std::string_view> command) const {
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    auto c = RedisConnection::open(host(), {}, deadline, never_);
    if (!c.ok()) return std::nullopt;
    std::string bytes;
    append_redis_command(bytes, command);
    if (!(*c)->send(bytes, deadline).ok()) return std::nullopt;
    auto reply = (*c)->receive(deadline);
    return reply.ok() ? std::optional(std::move(*reply)) : std::nullopt;
  }

 private:
  TempFolder folder_;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
  const std::atomic<bool> never_{false};
};

/// Six servers: three masters with a replica each.
class RedisClusterProcess {
 public:
  RedisClusterProcess() {
    for (int i = 0; i < 6; ++i)
      nodes.push_back(std::make_unique<RedisProcess>(std::vector<std::string>{
          "--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--replica-read-only",
          "yes", "--repl-diskless-sync-delay", "0"}));
    for (std::size_t i = 0; i < 3; ++i)
      (void)nodes[i]->ask({"CLUSTER", "ADDSLOTSRANGE", std::to_string(first_slot(i)),
                           std::to_string(first_slot(i + 1) - 1)});
    for (std::size_t i = 0; i < 6; ++i)
      (void)nodes[i]->ask({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    for (std::size_t i = 1; i < 6; ++i)
      (void)nodes[i]->ask({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes[0]->host().port)});
    healthy = wait_until([this] { return all_know(6); }) && add_replicas() &&
              wait_until([this] { return all_ok(); });
  }
  static std::uint64_t first_slot(std::size_t i) { return 16384 * i / 3; }
  std::string url() const {
    std::string out = "redis://";
    for (const auto& n : nodes)
      out += (out.back() == '/' ? "" : ",") + ("127.0.0.1:" + std::to_string(n->host().port));
    return out;
  }
  /// Asks until it is true, for a minute at most.
  static bool wait_until(const std::function<bool()>& is_true) {
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (!is_true()) {
      if (Clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }
  /// Returns whether a living node says that all slots are served.
  bool all_ok() const {
    for (const auto& n : nodes) {
      const auto info = n->ask({"CLUSTER", "INFO"});
      if (!info || info->text.find("cluster_state:ok") == std::string::npos) return false;
    }
    return true;
  }

  std::vector<std::unique_ptr<RedisProcess>> nodes;
  bool healthy = false;

 private:
  bool all_know(std::size_t count) const {
    for (const auto& n : nodes) {
      const auto info = n->ask({"CLUSTER", "INFO"});
      if (!info ||
          info->text.find("cluster_known_nodes:" + std::to_string(count)) == std::string::npos)
        return false;
    }
    return true;
  }
  bool add_replicas() const {
    for (std::size_t i = 0; i < 3; ++i) {
      const auto id = nodes[i]->ask({"CLUSTER", "MYID"});
      if (!id || !wait_until([&] {
            const auto done = nodes[i + 3]->ask({"CLUSTER", "REPLICATE", id->text});
            return done && !done->is_error();
          }))
        return false;
    }
    return wait_until([this] {
      for (std::size_t i = 3; i < 6; ++i) {
        const auto info = nodes[i]->ask({"INFO", "replication"});
        if (!info || info->text.find("master_link_status:up") == std::string::npos) return false;
      }
      return true;
    });
  }
};

}  // namespace quire::test
