/// Parses an HTTP/1.x request piece by piece. It wraps the parser of Boost.Beast and adds the
/// checks against request smuggling.
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

/// ProtocolError says why a request cannot be read further. The reply has `http_status`, and the
/// connection must be closed afterwards.
struct ProtocolError {
  int http_status = 400;
  std::string message;
};

/// RequestParser reads one request. Threads: one at a time.
///
/// The caller feeds bytes until head_done(), which makes the request line and fields available in
/// head(). It feeds on until done(); body bytes are appended to the given string. Bytes not
/// consumed belong to the next request (pipelining).
class RequestParser {
 public:
  explicit RequestParser(ParserLimits limits = {});
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  /// Consumes some of `data` and returns how many bytes; 0 without an error: it needs more bytes.
  /// It stops at the end of the head. `body` receives decoded body bytes. After an error() the
  /// parser must not be used again.
  std::size_t feed(std::string_view data, std::string& body);
  const std::optional<ProtocolError>& error() const;
  bool head_done() const;
  bool done() const;

  /// Returns the head, valid once head_done(). It is not const, so that the caller can move it out.
  HttpRequest& head();
  bool has_body() const;
  bool expects_continue() const;
  /// Returns the length; none: the body is chunked.
  std::optional<std::uint64_t> content_length() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
