#include "server/http/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/index.h"

namespace quire {
namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Result<int> connect_to(const ServerAddress& server) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int rc = ::getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found);
      rc != 0)
    return Status::unavailable("cannot find the server '" + server.host + "': " + gai_strerror(rc));
  int last = 0;
  for (const addrinfo* a = found; a; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    if (::connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
      ::freeaddrinfo(found);
      const int one = 1;
      (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      return fd;
    }
    last = errno;
    ::close(fd);
  }
  ::freeaddrinfo(found);
  return Status::unavailable("no server answers at " + server.host + ":" + server.port + " (" +
                             std::strerror(last) +
                             "); start one with 'quire serve', or name another with --server");
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(to_size(n));
  }
  return true;
}

/// Reads with a buffer and a limit on silence.
class Reader {
 public:
  explicit Reader(int fd) : fd_(fd) {}
  /// Returns false at the end or on errors; status() says which.
  bool fill() {
    char buffer[16 << 10];
    const auto n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n > 0) {
      data_.append(buffer, to_size(n));
      return true;
    }
    if (n < 0 && errno == EINTR) return fill();
    if (n < 0)
      status_ = errno == EAGAIN
                    ? Status::deadline("the server is silent for too long")
                    : Status::io(std::string("reading the reply: ") + std::strerror(errno));
    return false;
  }
  Result<std::string> line() {
    for (;;) {
      if (const auto end = data_.find("\r\n"); end != std::string::npos) {
        std::string out = data_.substr(0, end);
        data_.erase(0, end + 2);
        return out;
      }
      if (!fill()) return failure();
    }
  }
  /// Returns up to `max` bytes, at least one.
  Result<std::string> some(std::size_t max) {
    if (data_.empty() && !fill()) return failure();
    std::string out = data_.substr(0, max);
    data_.erase(0, out.size());
    return out;
  }
  bool ended_cleanly() const { return status_.ok(); }
  Status failure() const {
    return status_.ok()
               ? Status::io("the server closed the connection before the reply was complete")
               : status_;
  }

 private:
  const int fd_;
  std::string data_;
  Status status_;
};

Status read_body(Reader& reader, const Headers& headers,
                 const std::function<bool(std::string_view)>& sink) {
  if (iequals(headers.get("transfer-encoding"), "chunked")) {
    for (;;) {
      QUIRE_ASSIGN_OR_RETURN(const auto size_line, reader.line());
      std::size_t left = 0;
      const auto [end, ec] = std::from_chars(size_line.data(), size_line.data() + size_line.size(),
                                             left, 16);
      if (ec != std::errc()) return Status::io("the reply is not well formed");
      if (left == 0) {
        (void)reader.line();  // the empty line at the end; its loss is harmless
        return {};
      }
      while (left > 0) {
        QUIRE_ASSIGN_OR_RETURN(const auto piece, reader.some(left));
        left -= piece.size();
        if (!sink(piece)) return {};
      }
      QUIRE_ASSIGN_OR_RETURN(const auto newline, reader.line());
    }
  }
  if (const auto* length = headers.find("content-length")) {
    std::size_t left = 0;
    (void)std::from_chars(length->data(), length->data() + length->size(), left);
    while (left > 0) {
      QUIRE_ASSIGN_OR_RETURN(const auto piece, reader.some(left));
      left -= piece.size();
      if (!sink(piece)) return {};
    }
    return {};
  }
  for (;;) {
    const auto piece = reader.some(64 << 10);
    if (!piece.ok()) return reader.ended_cleanly() ? Status() : piece.status();
    if (!sink(*piece)) return {};
  }
}

}  // namespace

Result<ServerAddress> parse_server_url(const std::string& url) {
  ServerAddress out;
  std::string rest = url;
  if (rest.starts_with("https://"))
    return Status::unimplemented("this client speaks http only; put a proxy in front for https")
        .with_field("--server");
  if (rest.starts_with("http://")) {
    rest = rest.substr(7);
    out.port = "80";
  }
  if (const auto slash = rest.find('/'); slash != std::string::npos) {
    out.prefix = rest.substr(slash);
    while (out.prefix.ends_with('/')) out.prefix.pop_back();
    rest.resize(slash);
  }
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string::npos)
      return Status::invalid("--server", "'" + url + "' is no address; write http://host:port");
    out.host = rest.substr(1, close - 1);
    rest = rest.substr(close + 1);
    if (rest.starts_with(':')) out.port = rest.substr(1);
  } else if (const auto colon = rest.rfind(':'); colon != std::string::npos) {
    out.host = rest.substr(0, colon);
    out.port = rest.substr(colon + 1);
  } else {
    out.host = rest;
  }
  if (out.host.empty() || out.port.empty() ||
      out.port.find_first_not_of("0123456789") != std::string::npos)
    return Status::invalid("--server", "'" + url + "' is no address; write http://host:port");
  return out;
}

Result<HttpResponse> http_call(const ServerAddress& server, const ClientRequest& request,
                               const std::function<bool(std::string_view)>& on_piece) {
  QUIRE_ASSIGN_OR_RETURN(const int fd, connect_to(server));
  const Socket socket(fd);
  const auto ms = request.timeout.count();
  const timeval limit{static_cast<time_t>(ms / 1000), static_cast<suseconds_t>(ms % 1000 * 1000)};
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  std::string out = request.method + " " + server.prefix + request.target +
                    " HTTP/1.1\r\nHost: " + server.host + ":" + server.port +
                    "\r\nConnection: close\r\n";
  if (!request.content_type.empty()) out += "Content-Type: " + request.content_type + "\r\n";
  if (request.body_source)
    out += "Transfer-Encoding: chunked\r\n";
  else if (!request.body.empty() || request.method == "POST" || request.method == "PUT")
    out += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  for (const auto& [name, value] : request.headers) out += name + ": " + value + "\r\n";
  out += "\r\n" + request.body;
  // A server that accepts no more bytes may have replied early, so its reply is read.
  bool taken = send_all(fd, out);
  while (taken && request.body_source) {
    std::string piece;
    if (!request.body_source(piece)) return Status::io("the body could not be read");
    char size[24];
    std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
    taken = send_all(fd, size + piece + "\r\n");
    if (piece.empty()) break;
  }
  return read_reply(fd, server, request.method, on_piece);
}

Result<HttpResponse> read_reply(int fd, const ServerAddress& server, const std::string& method,
                                const std::function<bool(std::string_view)>& on_piece) {
  Reader reader(fd);
  HttpResponse response;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const auto status_line, reader.line());
    if (status_line.size() < 12 || !status_line.starts_with("HTTP/1."))
      return Status::io("what answers at " + server.host + ":" + server.port +
                        " is no HTTP server");
    (void)std::from_chars(status_line.data() + 9, status_line.data() + 12, response.status);
    for (;;) {
      QUIRE_ASSIGN_OR_RETURN(const auto line, reader.line());
      if (line.empty()) break;
      const auto colon = line.find(':');
      if (colon == std::string::npos) continue;
      std::string value = line.substr(colon + 1);
      value.erase(0, std::min(value.find_first_not_of(" \t"), value.size()));
      response.headers.add(line.substr(0, colon), value);
    }
    if (response.status >= 200) break;
    response.headers = Headers();
  }
  response.content_type = std::string(response.headers.get("content-type"));
  if (method == "HEAD" || response.status == 204 || response.status == 304) return response;
  const bool piecewise = on_piece && response.status < 300;
  const Status s = read_body(reader, response.headers, [&](std::string_view piece) {
    if (piecewise) return on_piece(piece);
    response.body.append(piece);
    return true;
  });
  if (!s.ok()) return s;
  return response;
}

bool SseReader::feed(std::string_view piece,
                     const std::function<bool(const std::string&, const std::string&)>& on_event) {
  for (const char c : piece) {
    if (c == '\r') continue;
    if (c != '\n') {
      line_.push_back(c);
      continue;
    }
    if (line_.empty()) {
      const bool more = data_.empty() || on_event(name_, data_);
      name_.clear();
      data_.clear();
      if (!more) return false;
    } else if (line_.starts_with("event:")) {
      name_ = line_.substr(line_.size() > 6 && line_[6] == ' ' ? 7 : 6);
    } else if (line_.starts_with("data:")) {
      if (!data_.empty()) data_.push_back('\n');
      data_ += line_.substr(line_.size() > 5 && line_[5] == ' ' ? 6 : 5);
    }
    line_.clear();
  }
  return true;
}

}  // namespace quire
