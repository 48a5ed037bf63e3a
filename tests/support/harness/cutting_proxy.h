/// A proxy for a server on 127.0.0.1 that loses one message, or the answer to it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"

namespace quire::test {

class CuttingProxy {
 public:
  explicit CuttingProxy(std::uint16_t to) : to_(to), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = local(0);
    socklen_t size = sizeof address;
    QUIRE_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                    ::listen(listener_, 16) == 0 &&
                    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
                "the proxy listens");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~CuttingProxy() {
    stop_ = true;
    acceptor_.join();
    for (auto& t : threads_) t.join();
    ::close(listener_);
  }
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  std::uint16_t port() const { return port_; }
  /// The next message with this text reaches the server, and nothing of the answer its sender.
  void lose_answer(std::string_view text) { arm(text, /*reaches=*/true); }
  /// The next message with this text does not reach the server.
  void lose_message(std::string_view text) { arm(text, /*reaches=*/false); }
  bool has_cut() {
    const std::lock_guard lock(mu_);
    return text_.empty();
  }

 private:
  static sockaddr_in local(std::uint16_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(port);
    return a;
  }
  void arm(std::string_view text, bool reaches) {
    const std::lock_guard lock(mu_);
    text_ = text;
    reaches_ = reaches;
  }
  static bool readable(int fd) {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, 50) > 0;
  }
  void accept_all() {
    while (!stop_) {
      if (!readable(listener_)) continue;
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client >= 0) threads_.emplace_back([this, client] { forward(client); });
    }
  }
  /// Returns whether the bytes are the ones to be lost, and whether they reach the server.
  bool is_cut(std::string_view bytes, bool* reaches) {
    const std::lock_guard lock(mu_);
    if (text_.empty() || bytes.find(text_) == bytes.npos) return false;
    text_.clear();
    *reaches = reaches_;
    return true;
  }
  void forward(int client) {
    const int server = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = local(to_);
    bool open = ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    std::vector<char> buffer(1 << 16);
    while (open && !stop_) {
      pollfd p[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      (void)::poll(p, 2, 50);
      for (int i = 0; i < 2 && open; ++i) {
        if (p[i].revents == 0) continue;
        const ssize_t n = ::recv(p[i].fd, buffer.data(), buffer.size(), 0);
        bool reaches = true;
        const bool cut = n > 0 && i == 0 &&
                         is_cut({buffer.data(), static_cast<std::size_t>(n)}, &reaches);
        if (n <= 0 || (cut && !reaches)) {
          open = false;
          break;
        }
        open = ::send(p[1 - i].fd, buffer.data(), static_cast<std::size_t>(n), MSG_NOSIGNAL) == n;
        if (!cut) continue;
        // The server has done it once it answers.
        (void)::recv(server, buffer.data(), buffer.size(), 0);
        open = false;
      }
    }
    ::close(server);
    ::close(client);
  }

  const std::uint16_t to_;
  const int listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mu_;
  std::string text_;                  // guarded by mu_; empty: nothing is lost
  bool reaches_ = false;              // guarded by mu_
  std::vector<std::thread> threads_;  // of the acceptor
  std::thread acceptor_;
};

}  // namespace quire::test
