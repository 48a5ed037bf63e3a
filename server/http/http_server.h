/// An HTTP/1.1 server: listener, connections, timeouts, limits, keep-alive, streaming, drain. The
/// HttpService decides what requests mean.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/http/exchange.h"
#include "server/http/http_message.h"

namespace quire {

class TlsCertificate;

/// BodySink takes a request body piece by piece, on an I/O thread, instead of one string.
class BodySink {
 public:
  virtual ~BodySink() = default;
  /// Takes a piece. A returned response ends the request; the rest of the body is not read.
  virtual std::optional<HttpResponse> write(std::string_view piece) = 0;
};

/// HeadDecision says how to continue with a request whose head was read.
struct HeadDecision {
  std::optional<HttpResponse> reject;  ///< reply with this and do not read the body
  std::uint64_t max_body_bytes = 0;
  std::string max_body_setting;    ///< that says max_body_bytes, for messages; empty: none does
  std::shared_ptr<BodySink> sink;  ///< null: the body is collected in request.body
};

/// Returns the setting that says max_body_bytes as the end of a message; empty: none does.
inline std::string setting_words(const HeadDecision& decision) {
  return decision.max_body_setting.empty() ? "" : " (" + decision.max_body_setting + ")";
}

struct ExchangeSummary {
  int status = 0;  ///< 499: the client left before the reply began
  bool client_gone = false;
  std::uint64_t request_bytes = 0, response_bytes = 0;  ///< sizes of the bodies
  std::chrono::steady_clock::duration duration{};
};

/// All methods run on I/O threads and must not block.
class HttpService {
 public:
  virtual ~HttpService() = default;
  virtual HeadDecision on_head(Exchange& exchange) = 0;
  /// Replies through the exchange, at once or later.
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  /// Returns the reply that the connection itself must send (400, 408, 413, 417, 431, 500, 501,
  /// 503, 505). `exchange` is null while no head has been read.
  virtual HttpResponse protocol_error(int status, const std::string& message,
                                      Exchange* exchange) = 0;
  /// Reports that the reply is complete or the client is gone.
  virtual void on_finished(Exchange& exchange, const ExchangeSummary& summary) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: any free port, see port()
  int threads = 1;
  int max_connections = 4096;
  std::uint32_t max_header_bytes = 16 << 10;
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds body_timeout{30'000};  ///< longest silence while a body is due
  std::uint64_t min_body_bytes_per_second = 1024;  ///< on average, after body_timeout
  /// Most bytes of all bodies that are held at a time, from their arrival to the end of their
  /// request; beyond it a request is refused with 503. Bodies of sinks do not count.
  std::uint64_t max_held_body_bytes = std::uint64_t{256} << 20;
  /// A client that takes no bytes of a reply for this long counts as gone.
  std::chrono::milliseconds write_timeout{30'000};
  std::uint64_t min_reply_bytes_per_second = 1024;  ///< on average, after write_timeout
  /// Set: every connection speaks TLS. Its handshake has header_timeout.
  std::shared_ptr<const TlsCertificate> certificate;
};

/// Threads: start() and stop() from one thread; the rest from any.
class HttpServer {
 public:
  virtual ~HttpServer() = default;  ///< calls stop(0) if still running
  virtual std::uint16_t port() const = 0;
  virtual int open_connections() const = 0;
  /// Closes the listener and idle connections, and waits at most `grace` for the others to finish
  /// their request. Then it closes those too and joins the threads. Returns whether all finished.
  virtual bool stop(std::chrono::milliseconds grace) = 0;
  /// Ends a stop() that is waiting (second signal). Threads: any.
  virtual void stop_now() = 0;
};

/// Binds and starts the server. `service` must outlive it. Errors: kInvalidArgument (server.host,
/// server.port), kIo.
Result<std::unique_ptr<HttpServer>> start_http_server(const HttpServerOptions& options,
                                                      HttpService& service);

}  // namespace quire
