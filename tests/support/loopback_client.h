/// A bare TCP connection to a server on this machine, for tests that send what a well-behaved
/// client would not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quire::testing {

struct RawResponse {
  int status = 0;
  std::string head, body;
  /// Value of a header, by lower-case name.
  std::optional<std::string> header(const std::string& name) const;
};

class LoopbackClient {
 public:
  /// Connects to 127.0.0.1:port. Reads give up after `timeout_s`.
  explicit LoopbackClient(std::uint16_t port, int timeout_s = 20);
  ~LoopbackClient();
  LoopbackClient(const LoopbackClient&) = delete;
  LoopbackClient& operator=(const LoopbackClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(const std::string& bytes);
  /// One whole response (Content-Length, chunked, or until close); nothing at the end of the
  /// connection.
  std::optional<RawResponse> read_response(bool head_request = false);
  /// Head of a response; the body is left unread.
  std::optional<RawResponse> read_head();
  /// What arrives next, decoded from nothing; empty at the end or after the timeout.
  std::string read_some();
  /// Reads on until `text` was seen; everything read so far.
  std::string read_until(const std::string& text);
  bool at_end();
  void close();
  /// Closes with a reset.
  void reset();
  void shutdown_send();

 private:
  bool fill();
  int fd_ = -1;
  std::string data_;
};

/// method target body -> response, on a connection of its own.
RawResponse call(std::uint16_t port, const std::string& method, const std::string& target,
                 const std::string& body = {}, const std::vector<std::string>& headers = {},
                 const std::string& content_type = "application/json");

}  // namespace quire::testing
