/// A server that speaks as much of the protocol of Redis as a test makes it say, right or wrong.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "cachestore/redis/redis_reply.h"
#include "cachestore/remote/remote_url.h"

namespace quire::test {

/// Listens on a free port of 127.0.0.1. Each command goes to `answer`, whose text is sent as it is;
/// none closes the connection. ROLE does only with `has_role`; else it is an unknown command.
class FakeRedis {
 public:
  using Command = std::vector<std::string>;
  using Answer = std::function<std::optional<std::string>(const Command& command)>;

  explicit FakeRedis(Answer answer, bool has_role = false)
      : answer_(std::move(answer)), has_role_(has_role) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const bool listens = ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                         ::listen(listener_, 16) == 0 &&
                         ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) ==
                             0;
    QUIRE_CHECK(listens, "no port for a fake server");
    host_ = {"127.0.0.1", ntohs(address.sin_port)};
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~FakeRedis() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      const std::lock_guard lock(mu_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    for (auto& t : threads_) t.join();
  }

  const RemoteHost& host() const { return host_; }
  RedisServer server() const {
    RedisServer s;
    s.hosts = {host_};
    return s;
  }
  int connections() const { return connections_; }
  /// Closes every connection, as a server does with idle ones.
  void hang_up() {
    const std::lock_guard lock(mu_);
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }

  static std::string bulk(std::string_view s) {
    return "$" + std::to_string(s.size()) + "\r\n" + std::string(s) + "\r\n";
  }
  /// The reply to CLUSTER SLOTS of a server without a cluster.
  static std::string no_cluster() { return "-ERR This instance has cluster support disabled\r\n"; }
  /// The reply to CLUSTER SLOTS where each node has an equal part.
  static std::string slots(const std::vector<RemoteHost>& nodes) {
    std::string out = "*" + std::to_string(nodes.size()) + "\r\n";
    for (std::size_t i = 0; i < nodes.size(); ++i)
      out += "*3\r\n:" + std::to_string(16384 * i / nodes.size()) +
             "\r\n:" + std::to_string(16384 * (i + 1) / nodes.size() - 1) + "\r\n*3\r\n" +
             bulk(nodes[i].name) + ":" + std::to_string(nodes[i].port) + "\r\n" + bulk("id");
    return out;
  }

 private:
  void accept_all() {
    while (!stopping_) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      ++connections_;
      const std::lock_guard lock(mu_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }
  void serve(int fd) {
    RedisReplyReader reader;  // commands are arrays of strings, as replies may be
    char buffer[4096];
    bool open = true;
    while (open) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0 || !reader.feed({buffer, static_cast<std::size_t>(n)}).ok()) break;
      for (;;) {
        auto command = reader.next();
        if (!command.ok() || !*command) break;
        Command words;
        for (const RedisReply& word : (*command)->items) words.push_back(word.text);
        const bool known = has_role_ || words.at(0) != "ROLE";
        const auto reply = known ? answer_(words) : "-ERR unknown command 'ROLE'\r\n";
        if (!reply) open = false;
        if (!open) break;
        if (::send(fd, reply->data(), reply->size(), MSG_NOSIGNAL) < 0) open = false;
      }
    }
    const std::lock_guard lock(mu_);
    std::erase(open_, fd);
    ::close(fd);
  }

  const Answer answer_;
  const bool has_role_;
  int listener_ = -1;
  RemoteHost host_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  std::mutex mu_;
  std::vector<int> open_;             // guarded by mu_
  std::vector<std::thread> threads_;  // the acceptor's until it is joined
  std::thread acceptor_;
};

}  // namespace quire::test
