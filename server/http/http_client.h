/// A blocking HTTP client for the command line, over libcurl. It sends one request and returns the
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
  std::string scheme = "http", host = "127.0.0.1", port = "8080", prefix;
  /// PEM file with the authorities to trust; empty: SSL_CERT_FILE, else the system's.
  std::string ca_file;
};
/// Parses "http://host:port/prefix", "https://host", "host:port" or "host". Errors:
/// kInvalidArgument.
Result<ServerAddress> parse_server_url(const std::string& url);

struct ClientRequest {
  std::string method = "GET", target = "/", body, content_type;
  std::vector<std::pair<std::string, std::string>> headers;
  /// Supplies a body of unknown length instead of `body`, sent in chunks. It fills in the next
  /// piece; an empty one is the end, false is a failure.
  std::function<bool(std::string& piece)> body_source;
  std::chrono::milliseconds timeout{600'000};  ///< longest silence allowed
  /// Returns whether the call shall end; asked about once a second, also while the server is
  /// silent, on the thread that calls.
  std::function<bool()> stopped;
};

/// Makes one call. `on_piece`, if given, receives body bytes of a 2xx reply as they arrive (false:
/// stop reading), and the body stays empty. A call that was stopped returns what had come, with
/// status 0 before the head. A proxy of the environment (http_proxy, https_proxy) is used unless
/// the server is on this machine.
/// Errors: kUnavailable (cannot connect: says how to start the server), kIo (TLS, a reply that is
/// not well formed or ends too early), kDeadlineExceeded.
Result<HttpResponse> http_call(const ServerAddress& server, const ClientRequest& request,
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
