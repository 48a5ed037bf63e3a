/// A bare TCP connection to a server on this machine, for tests that send what a well-behaved
/// client would not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct ssl_st;

namespace quire::testing {

struct RawResponse {
  int status = 0;
  std::string head, body;
  /// Returns the value of a header, given its lower-case name.
  std::optional<std::string> header(const std::string& name) const;
};

class LoopbackClient {
 public:
  /// Connects to 127.0.0.1:port. A read gives up after `timeout_s` seconds. `tls`: speaks TLS and
  /// trusts any certificate; a server that does not speak it leaves the client unconnected.
  explicit LoopbackClient(std::uint16_t port, int timeout_s = 20, bool tls = false);
  ~LoopbackClient();
  LoopbackClient(const LoopbackClient&) = delete;
  LoopbackClient& operator=(const LoopbackClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(const std::string& bytes);
  /// Reads one whole response (Content-Length, chunked, or until close). Returns nothing at the end
  /// of the connection.
  std::optional<RawResponse> read_response(bool head_request = false);
  /// Reads the head of a response and leaves the body unread.
  std::optional<RawResponse> read_head();
  /// Returns the bytes that arrive next, not decoded; empty at the end or after the timeout.
  std::string read_some();
  /// Reads on until `text` was seen and returns everything read so far.
  std::string read_until(const std::string& text);
  bool at_end();
  void close();
  /// Closes the connection with a reset, and without a word of TLS.
  void reset();
  /// Says that nothing more is sent; replies are still read.
  void shutdown_send();

 private:
  bool fill();
  int fd_ = -1;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;  ///< null: plain
  std::string data_;
};

/// Sends one request on a new connection and returns the response.
RawResponse call(std::uint16_t port, const std::string& method, const std::string& target,
                 const std::string& body = {}, const std::vector<std::string>& headers = {},
                 const std::string& content_type = "application/json");

}  // namespace quire::testing
