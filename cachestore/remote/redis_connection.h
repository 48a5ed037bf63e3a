/// This file holds one connection to a server that speaks the protocol of Redis, over TCP or TLS.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "cachestore/remote/redis_reply.h"
#include "cachestore/remote/remote_url.h"

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
  /// Returns the next reply, which may be an error of Redis. A string may go where `place` says.
  /// `behind`: about how many bytes of further replies are under way.
  Result<RedisReply> receive(Clock::time_point deadline,
                             const RedisReplyStream::PlaceString& place = {},
                             std::size_t behind = 0);
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
