/// This file reads and writes the protocol of Redis (RESP2). The reader is the door to hiredis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct RedisReply {
  enum class Kind : std::uint8_t { kNil, kString, kStatus, kError, kInteger, kArray };
  Kind kind = Kind::kNil;
  std::string text;     ///< of a string, status or error
  bool placed = false;  ///< a string whose bytes are where they were to go, not in `text`
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

/// Receives replies from a source of bytes, each as far as it has come. A long string may go where
/// it belongs at once, without a copy. Threads: one at a time.
class RedisReplyStream {
 public:
  /// Reads into `to`, and what comes behind it into `then`, if it likes to. Returns how many bytes;
  /// 0: none have come yet.
  using ReadSome = std::function<Result<std::size_t>(std::span<char> to, std::span<char> then)>;
  /// Returns where a string of so many bytes goes, of just that size; empty: into the reply.
  using PlaceString = std::function<std::span<std::byte>(std::size_t bytes)>;

  RedisReplyStream();
  /// Returns the next reply; none: its end has not come yet, and the next call goes on with it.
  /// `place` is asked once for a string that is the whole reply. Its memory must stay until the
  /// reply is there. Errors: those of `read` and of RedisReplyReader; the stream then stays of no
  /// use.
  Result<std::optional<RedisReply>> receive(const ReadSome& read, const PlaceString& place = {});

 private:
  enum class Part : std::uint8_t { kLine, kPlacedString, kString };

  /// Reads at most so many more bytes behind those that wait; returns whether some have come.
  Result<bool> fill(const ReadSome& read, std::size_t most);
  /// Returns the next line with its end, which waits in the buffer, and with at most so many bytes
  /// of what follows.
  Result<std::optional<std::string_view>> line(const ReadSome& read, std::size_t most);
  /// Go on with the string that comes next, and its end; they return whether it has come whole.
  Result<bool> read_placed(const ReadSome& read);
  Result<bool> read_string(const ReadSome& read);

  std::string buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what was read and not taken yet
  RedisReplyReader reader_;
  Part part_ = Part::kLine;   // what comes next
  bool begins_ = true;        // the line is the first one of a reply
  std::size_t searched_ = 0;  // kLine: of the bytes that wait, those without its end
  std::span<std::byte> to_;   // kPlacedString: where the rest goes
  std::size_t left_ = 0;      // kString: its bytes that have not been taken, and its end
};

}  // namespace quire
