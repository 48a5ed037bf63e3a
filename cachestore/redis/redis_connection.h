/// This file holds one connection to a server that speaks the protocol of Redis, over TCP or TLS.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "cachestore/redis/redis_reply.h"
#include "cachestore/redis/redis_server.h"

namespace quire {

/// A connection that is logged in. After an error it is of no use, as replies may be outstanding.
/// Threads: one at a time. Errors of all: kDeadlineExceeded, kUnavailable (no connection, or it
/// broke), kIo (bytes out of protocol).
class RedisConnection {
 public:
  /// Connects to `host` with TLS and password of `server`. Further errors: kFailedPrecondition (the
  /// password or a certificate is refused), kInvalidArgument (a PEM file cannot be read). Once
  /// `stopping` is true, every wait ends with kUnavailable; it must outlive the connection.
  static Result<std::unique_ptr<RedisConnection>> open(const RemoteHost& host,
                                                       const RedisServer& server,
                                                       Clock::time_point deadline,
                                                       const std::atomic<bool>& stopping);
  ~RedisConnection();

  Status send(std::string_view bytes, Clock::time_point deadline);
  /// Returns the next reply, which may be an error of Redis.
  Result<RedisReply> receive(Clock::time_point deadline);
  /// The same without a wait; none: its end has not come yet. A string may go where `place` says,
  /// as in RedisReplyStream.
  Result<std::optional<RedisReply>> receive_now(const RedisReplyStream::PlaceString& place = {});
  /// Waits for more bytes after receive_now() returned none.
  Status wait(Clock::time_point deadline);
  /// Returns the socket, which can be read when receive_now() has something to do again.
  int socket() const;
  /// Returns host and port.
  const std::string& peer() const;
  /// Returns the shortest time that the server took to acknowledge bytes; 0: not known.
  std::chrono::microseconds shortest_round_trip() const;

 private:
  class Stream;
  class Tls;
  explicit RedisConnection(std::unique_ptr<Stream> stream);

  std::unique_ptr<Stream> stream_;
  RedisReplyStream replies_;
};

/// Reads the PEM files that the server's connections need, if it is reached over TLS. Errors:
/// kInvalidArgument, field `remote.url`.
Status check_tls_files(const RedisServer& server);

}  // namespace quire
