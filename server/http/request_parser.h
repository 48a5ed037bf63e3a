/// HTTP/1.x request parsing, fed piece by piece. Wraps the parser of Boost.Beast and adds what
/// smuggling checks need.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_message.h"

namespace quire {

struct ParserLimits {
  std::uint32_t header_bytes = 16 << 10;  ///< request line and fields together
};

/// Why a request cannot be read on. `http_status` is what to answer; the connection must be closed
/// afterwards.
struct ProtocolError {
  int http_status = 400;
  std::string message;
};

/// One request. Threads: one at a time.
///
/// Feed bytes until head_done(); the request line and fields are then in head(). Go on feeding
/// until done(); body bytes are appended to the string given. Bytes not consumed belong to the next
/// request (pipelining).
class RequestParser {
 public:
  explicit RequestParser(ParserLimits limits = {});
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  /// Consumes some of `data` and returns how many bytes; 0 with no error: more bytes are needed.
  /// Stops at the end of the head. `body` receives decoded body bytes. After an error() the parser
  /// is spent.
  std::size_t feed(std::string_view data, std::string& body);
  const std::optional<ProtocolError>& error() const;
  bool head_done() const;
  bool done() const;

  /// The head, valid once head_done(). Not const: the caller moves it out.
  HttpRequest& head();
  bool has_body() const;
  bool expects_continue() const;
  /// Empty for chunked bodies.
  std::optional<std::uint64_t> content_length() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
