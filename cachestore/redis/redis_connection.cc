#include "cachestore/redis/redis_connection.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {

std::string name_of(const RemoteHost& host) {
  return (host.name.find(':') == host.name.npos ? host.name : '[' + host.name + ']') + ':' +
         std::to_string(host.port);
}

Status broken(const std::string& peer, const std::string& why) {
  return Status::unavailable("the connection to " + peer + " broke: " + why);
}

/// Longest wait for room to send what OpenSSL sends of its own.
constexpr auto kRoomSoon = std::chrono::seconds(1);
/// Longest wait between two looks at whether the caller stops, in milliseconds.
constexpr std::int64_t kLookMs = 50;

/// Waits until the socket can be read or written. Errors: kDeadlineExceeded, kUnavailable.
Status wait_for(int fd, short events, Clock::time_point deadline, const std::string& peer,
                const std::atomic<bool>& stopping) {
  for (;;) {
    if (stopping) return Status::unavailable("the store is closing");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Status::deadline(peer + " did not answer in time");
    pollfd poll_fd{fd, events, 0};
    const int ready = ::poll(&poll_fd, 1,
                             static_cast<int>(std::min<std::int64_t>(left.count(), kLookMs)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return broken(peer, std::strerror(errno));
  }
}

/// A socket that is closed with this object.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Result<Socket> connect_to(const addrinfo& address, Clock::time_point deadline,
                          const std::string& peer, const std::atomic<bool>& stopping) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                         address.ai_protocol));
  if (socket.fd() < 0) return broken(peer, std::strerror(errno));
  const int on = 1;
  (void)::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // only for speed
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS)
      return Status::unavailable("cannot reach " + peer + ": " + std::strerror(errno));
    QUIRE_RETURN_IF_ERROR(wait_for(socket.fd(), POLLOUT, deadline, peer, stopping));
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0)
      return Status::unavailable("cannot reach " + peer + ": " + std::strerror(error));
  }
  return socket;
}

Result<Socket> connect_to(const RemoteHost& host, Clock::time_point deadline,
                          const std::atomic<bool>& stopping) {
  const std::string peer = name_of(host);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.name.c_str(), std::to_string(host.port).c_str(), &hints,
                                   &found);
  if (failed != 0)
    return Status::unavailable("cannot find " + peer + ": " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  Status last = Status::unavailable("cannot find " + peer);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    auto socket = connect_to(*a, deadline, peer, stopping);
    if (socket.ok()) return socket;
    last = socket.status();
  }
  return last;
}

struct FreeTls {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

Status tls_failure(const std::string& peer) {
  char text[256] = "unknown";
  if (const unsigned long code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return Status::precondition("no TLS connection to " + peer + ": " + text);
}

Status cannot_read(const std::string& option, const std::string& file) {
  ERR_clear_error();
  return Status::invalid("remote.url", "remote.url has " + option + "=" + file +
                                           ", which cannot be read as a PEM file of that kind");
}

/// Returns what a connection to the server needs to know of certificates.
Result<std::unique_ptr<SSL_CTX, FreeTls>> tls_context(const RedisServer& server) {
  std::unique_ptr<SSL_CTX, FreeTls> owned(SSL_CTX_new(TLS_client_method()));
  if (!owned) return tls_failure("a Redis server");
  SSL_CTX* const context = owned.get();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  // Bytes that wait may be offered again from another place.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const bool trusts = server.ca_file.empty() ? SSL_CTX_set_default_verify_paths(context) == 1
                                             : SSL_CTX_load_verify_locations(
                                                   context, server.ca_file.c_str(), nullptr) == 1;
  if (!trusts) return cannot_read("ca", server.ca_file);
  if (server.key_file.empty()) return owned;
  // Without this OpenSSL asks for a pass phrase at the terminal, and waits there.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(context, server.certificate_file.c_str()) != 1)
    return cannot_read("cert", server.certificate_file);
  if (SSL_CTX_use_PrivateKey_file(context, server.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return cannot_read("key", server.key_file);
  return owned;
}

bool is_address(const std::string& name) {
  in6_addr ignored{};
  return inet_pton(AF_INET, name.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &ignored) == 1;
}

}  // namespace

Status check_tls_files(const RedisServer& server) {
  return server.tls ? tls_context(server).status() : Status();
}

/// Bytes over a socket.
class RedisConnection::Stream {
 public:
  Stream(Socket socket, std::string peer, const std::atomic<bool>& stopping)
      : socket_(std::move(socket)), peer_(std::move(peer)), stopping_(stopping) {}
  virtual ~Stream() = default;
  const std::string& peer() const { return peer_; }

  Status write(std::string_view bytes, Clock::time_point deadline) {
    while (!bytes.empty()) {
      QUIRE_ASSIGN_OR_RETURN(const std::size_t sent, write_some(bytes, deadline));
      bytes.remove_prefix(sent);
    }
    return {};
  }
  /// As RedisReplyStream::ReadSome.
  virtual Result<std::size_t> read_now(std::span<char> to, std::span<char> then) {
    for (;;) {
      iovec parts[] = {{to.data(), to.size()}, {then.data(), then.size()}};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = then.empty() ? 1 : 2;
      const ssize_t n = ::recvmsg(socket_.fd(), &message, 0);
      if (n > 0) return static_cast<std::size_t>(n);
      if (n == 0) return broken(peer_, "it was closed");
      if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
      if (errno != EINTR) return broken(peer_, std::strerror(errno));
    }
  }
  /// Waits until read_now() has something to do again.
  Status wait(Clock::time_point deadline) {
    return wait_for(socket_.fd(), POLLIN, deadline, peer_, stopping_);
  }
  int fd() const { return socket_.fd(); }
  std::chrono::microseconds shortest_round_trip() const {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(socket_.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
    return std::chrono::microseconds(info.tcpi_min_rtt);
  }

 protected:
  virtual Result<std::size_t> write_some(std::string_view bytes, Clock::time_point deadline) {
    for (;;) {
      const ssize_t n = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n >= 0) return static_cast<std::size_t>(n);
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return broken(peer_, std::strerror(errno));
      QUIRE_RETURN_IF_ERROR(wait_for(socket_.fd(), POLLOUT, deadline, peer_, stopping_));
    }
  }

  Socket socket_;
  const std::string peer_;
  const std::atomic<bool>& stopping_;
};

class RedisConnection::Tls final : public Stream {
 public:
  using Stream::Stream;

  Status shake_hands(const std::string& host, const RedisServer& server,
                     Clock::time_point deadline) {
    QUIRE_ASSIGN_OR_RETURN(context_, tls_context(server));
    ssl_.reset(SSL_new(context_.get()));
    if (!ssl_ || SSL_set_fd(ssl_.get(), socket_.fd()) != 1) return tls_failure(peer_);
    X509_VERIFY_PARAM* verify = SSL_get0_param(ssl_.get());
    const bool named = is_address(host) ? X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) == 1
                                        : SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) == 1 &&
                                              SSL_set1_host(ssl_.get(), host.c_str()) == 1;
    if (!named) return tls_failure(peer_);
    for (;;) {
      const int done = SSL_connect(ssl_.get());
      if (done == 1) return {};
      QUIRE_RETURN_IF_ERROR(wait_after(done, deadline));
    }
  }

  Result<std::size_t> read_now(std::span<char> to, std::span<char> /*then*/) override {
    for (;;) {
      const int n = SSL_read(ssl_.get(), to.data(), static_cast<int>(to.size()));
      if (n > 0) return static_cast<std::size_t>(n);
      if (SSL_get_error(ssl_.get(), n) == SSL_ERROR_WANT_READ) return std::size_t{0};
      // OpenSSL may have to send something of its own first; the socket has room for it.
      QUIRE_RETURN_IF_ERROR(wait_after(n, Clock::now() + kRoomSoon));
    }
  }

 protected:
  Result<std::size_t> write_some(std::string_view bytes, Clock::time_point deadline) override {
    const int most = static_cast<int>(std::min<std::size_t>(bytes.size(), 1u << 30));
    for (;;) {
      const int n = SSL_write(ssl_.get(), bytes.data(), most);
      if (n > 0) return static_cast<std::size_t>(n);
      QUIRE_RETURN_IF_ERROR(wait_after(n, deadline));
    }
  }

 private:
  Status wait_after(int result, Clock::time_point deadline) {
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return wait_for(socket_.fd(), POLLIN, deadline, peer_, stopping_);
      case SSL_ERROR_WANT_WRITE:
        return wait_for(socket_.fd(), POLLOUT, deadline, peer_, stopping_);
      case SSL_ERROR_ZERO_RETURN:
        return broken(peer_, "it was closed");
      case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        return broken(peer_, "it was closed");
      default:
        return tls_failure(peer_);
    }
  }

  std::unique_ptr<SSL_CTX, FreeTls> context_;
  std::unique_ptr<SSL, FreeTls> ssl_;
};

RedisConnection::RedisConnection(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
RedisConnection::~RedisConnection() = default;

Result<std::unique_ptr<RedisConnection>> RedisConnection::open(const RemoteHost& host,
                                                               const RedisServer& server,
                                                               Clock::time_point deadline,
                                                               const std::atomic<bool>& stopping) {
  QUIRE_ASSIGN_OR_RETURN(Socket socket, connect_to(host, deadline, stopping));
  std::unique_ptr<Stream> stream;
  if (server.tls) {
    auto tls = std::make_unique<Tls>(std::move(socket), name_of(host), stopping);
    QUIRE_RETURN_IF_ERROR(tls->shake_hands(host.name, server, deadline));
    stream = std::move(tls);
  } else {
    stream = std::make_unique<Stream>(std::move(socket), name_of(host), stopping);
  }
  std::unique_ptr<RedisConnection> out(new RedisConnection(std::move(stream)));
  if (server.password.empty()) return out;
  std::string login;
  if (server.user.empty())
    append_redis_command(login, {"AUTH", server.password});
  else
    append_redis_command(login, {"AUTH", server.user, server.password});
  QUIRE_RETURN_IF_ERROR(out->send(login, deadline));
  QUIRE_ASSIGN_OR_RETURN(const RedisReply reply, out->receive(deadline));
  if (reply.is_error())
    return Status(Code::kFailedPrecondition,
                  name_of(host) + " refuses user and password of remote.url: " + reply.text,
                  "remote.url");
  return out;
}

Status RedisConnection::send(std::string_view bytes, Clock::time_point deadline) {
  return stream_->write(bytes, deadline);
}

Result<RedisReply> RedisConnection::receive(Clock::time_point deadline) {
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(std::optional<RedisReply> reply, receive_now());
    if (reply) return std::move(*reply);
    QUIRE_RETURN_IF_ERROR(wait(deadline));
  }
}

Result<std::optional<RedisReply>> RedisConnection::receive_now(
    const RedisReplyStream::PlaceString& place) {
  return replies_.receive(
      [&](std::span<char> to, std::span<char> then) { return stream_->read_now(to, then); }, place);
}

Status RedisConnection::wait(Clock::time_point deadline) { return stream_->wait(deadline); }

int RedisConnection::socket() const { return stream_->fd(); }

const std::string& RedisConnection::peer() const { return stream_->peer(); }

std::chrono::microseconds RedisConnection::shortest_round_trip() const {
  return stream_->shortest_round_trip();
}

}  // namespace quire
