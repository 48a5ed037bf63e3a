/// This file reads and writes the protocol of Redis (RESP2). The reader is the door to hiredis.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct RedisReply {
  enum class Kind : std::uint8_t { kNil, kString, kStatus, kError, kInteger, kArray };
  Kind kind = Kind::kNil;
  std::string text;  ///< of a string, status or error
  std::int64_t integer = 0;
  std::vector<RedisReply> items;  ///< of an array

  bool is_error() const { return kind == Kind::kError; }
  /// Returns whether it is an error with this first word, such as "MOVED".
  bool is_error(std::string_view word) const;
};

/// Appends one command.
void append_redis_command(std::string& out, std::initializer_list<std::string_view> arguments);

/// Cuts a stream of bytes into replies. Threads: one at a time.
class RedisReplyReader {
 public:
  RedisReplyReader();
  ~RedisReplyReader();
  RedisReplyReader(const RedisReplyReader&) = delete;
  RedisReplyReader& operator=(const RedisReplyReader&) = delete;

  /// Takes more bytes. Errors: kIo (more bytes wait than the longest reply has).
  Status feed(std::string_view bytes);
  /// Returns the next whole reply; none: more bytes are needed. Errors: kIo (the bytes are no
  /// reply, or one that is too deep or too long); the reader then stays of no use.
  Result<std::optional<RedisReply>> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
