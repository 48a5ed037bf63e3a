#include "tests/support/loopback_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

namespace quire::testing {
namespace {

std::string lower(std::string s) {
  std::transform(s.begin(), s.end(), s.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return s;
}

}  // namespace

std::optional<std::string> RawResponse::header(const std::string& name) const {
  const std::string all = lower(head);
  const auto at = all.find("\r\n" + name + ":");
  if (at == std::string::npos) return std::nullopt;
  auto begin = at + name.size() + 3;
  while (begin < head.size() && head[begin] == ' ') ++begin;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

LoopbackClient::LoopbackClient(std::uint16_t port, int timeout_s, bool tls)
    : tls_(nullptr, SSL_free) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{timeout_s, 0};
  (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
  if (!tls || !connected()) return;
  static SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  tls_.reset(SSL_new(context));
  SSL_set_fd(tls_.get(), fd_);
  if (SSL_connect(tls_.get()) != 1) reset();
}

LoopbackClient::~LoopbackClient() { close(); }

void LoopbackClient::close() {
  if (tls_) (void)SSL_shutdown(tls_.get());
  tls_.reset();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void LoopbackClient::reset() {
  const linger hard{1, 0};
  (void)::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  tls_.reset();
  close();
}

void LoopbackClient::shutdown_send() {
  if (tls_)
    (void)SSL_shutdown(tls_.get());
  else
    (void)::shutdown(fd_, SHUT_WR);
}

bool LoopbackClient::send(const std::string& bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const auto n = tls_ ? SSL_write(tls_.get(), bytes.data() + sent,
                                    static_cast<int>(bytes.size() - sent))
                        : ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

bool LoopbackClient::fill() {
  char buffer[16 << 10];
  const auto n = tls_ ? SSL_read(tls_.get(), buffer, static_cast<int>(sizeof buffer))
                      : ::recv(fd_, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  data_.append(buffer, static_cast<std::size_t>(n));
  return true;
}

std::string LoopbackClient::read_some() {
  if (data_.empty()) (void)fill();
  return std::exchange(data_, {});
}

std::string LoopbackClient::read_until(const std::string& text) {
  while (data_.find(text) == std::string::npos && fill()) {
  }
  return std::exchange(data_, {});
}

bool LoopbackClient::at_end() { return data_.empty() && !fill(); }

std::optional<RawResponse> LoopbackClient::read_head() {
  RawResponse r;
  std::size_t end;
  while ((end = data_.find("\r\n\r\n")) == std::string::npos)
    if (!fill()) return std::nullopt;
  r.head = data_.substr(0, end + 2);
  data_.erase(0, end + 4);
  if (r.head.size() > 12) r.status = std::atoi(r.head.c_str() + 9);
  return r;
}

std::optional<RawResponse> LoopbackClient::read_response(bool head_request) {
  auto head = read_head();
  while (head && head->status == 100) head = read_head();
  if (!head) return std::nullopt;
  RawResponse r = std::move(*head);
  if (head_request || r.status == 204 || r.status == 304) return r;
  if (lower(r.header("transfer-encoding").value_or("")) == "chunked") {
    for (;;) {
      std::size_t line;
      while ((line = data_.find("\r\n")) == std::string::npos)
        if (!fill()) return std::nullopt;
      const std::size_t size = std::strtoull(data_.c_str(), nullptr, 16);
      while (data_.size() < line + 2 + size + 2)
        if (!fill()) return std::nullopt;
      r.body += data_.substr(line + 2, size);
      data_.erase(0, line + 2 + size + 2);
      if (size == 0) return r;
    }
  }
  if (const auto length = r.header("content-length")) {
    const std::size_t size = std::strtoull(length->c_str(), nullptr, 10);
    while (data_.size() < size)
      if (!fill()) return std::nullopt;
    r.body = data_.substr(0, size);
    data_.erase(0, size);
    return r;
  }
  while (fill()) {
  }
  r.body = std::exchange(data_, {});
  return r;
}

RawResponse call(std::uint16_t port, const std::string& method, const std::string& target,
                 const std::string& body, const std::vector<std::string>& headers,
                 const std::string& content_type) {
  // The timeout is long because sanitizers on a busy machine are slow; the test runner ends a hang.
  LoopbackClient client(port, 600);
  std::string text = method + " " + target +
                     " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
  for (const auto& h : headers) text += h + "\r\n";
  if (!body.empty() || method == "POST" || method == "PUT" || method == "PATCH") {
    if (!content_type.empty()) text += "Content-Type: " + content_type + "\r\n";
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  }
  if (!client.connected()) return {};
  (void)client.send(text + "\r\n" + body);
  return client.read_response(method == "HEAD").value_or(RawResponse{});
}

}  // namespace quire::testing
