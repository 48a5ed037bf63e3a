/// A small blocking HTTP/1.1 client for the command line. It sends one request and returns the
/// whole reply, or its pieces as they arrive.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/http/http_message.h"

namespace quire {

struct ServerAddress {
  std::string host = "127.0.0.1", port = "8080", prefix;
};
/// Parses "http://host:port/prefix", "host:port" or "host". Errors: kInvalidArgument; https is
/// kUnimplemented.
Result<ServerAddress> parse_server_url(const std::string& url);

struct ClientRequest {
  std::string method = "GET", target = "/", body, content_type;
  std::vector<std::pair<std::string, std::string>> headers;
  /// Supplies a body of unknown length instead of `body`, sent in chunks. It fills in the next
  /// piece; an empty one is the end, false is a failure.
  std::function<bool(std::string& piece)> body_source;
  std::chrono::milliseconds timeout{600'000};  ///< longest silence allowed
};

/// Makes one call. `on_piece`, if given, receives body bytes of a 2xx reply as they arrive (false:
/// stop reading), and the body stays empty. Errors: kUnavailable (cannot connect: says how to start
/// the server), kIo, kDeadlineExceeded.
Result<HttpResponse> http_call(const ServerAddress& server, const ClientRequest& request,
                               const std::function<bool(std::string_view)>& on_piece = {});

/// Reads the reply to `method` from a connected socket, as http_call() does after sending. The
/// caller keeps the socket. `server` appears in messages. Errors: kIo (not well formed, or closed
/// too early), kDeadlineExceeded.
Result<HttpResponse> read_reply(int fd, const ServerAddress& server, const std::string& method,
                                const std::function<bool(std::string_view)>& on_piece = {});

/// Splits a text/event-stream into events.
class SseReader {
 public:
  /// Calls `on_event(name, data)` for each event completed by `piece`, and skips comments. The
  /// callback returns false to stop.
  bool feed(std::string_view piece,
            const std::function<bool(const std::string&, const std::string&)>& on_event);

 private:
  std::string line_, name_, data_;
};

}  // namespace quire
