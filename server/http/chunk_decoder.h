/// Decodes the chunked transfer coding (RFC 9112 section 7.1) strictly: anything that two parsers
/// could read differently is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

class ChunkDecoder {
 public:
  /// Consumes bytes of `data` up to the end of the body and appends decoded bytes to `body`.
  /// Returns how many it consumed: all of them unless done() or failed().
  std::size_t feed(std::string_view data, std::string& body);
  bool done() const { return state_ == State::kDone; }
  bool failed() const { return state_ == State::kFailed; }

  static constexpr std::size_t kMaxLineBytes = 1024;  ///< a size line with its extensions
  /// All trailer fields together; they are read and dropped.
  static constexpr std::size_t kMaxTrailerBytes = 8192;

 private:
  enum class State : std::uint8_t { kSize, kData, kDataEnd, kTrailer, kDone, kFailed };
  void end_of_line();
  bool begin_chunk();

  State state_ = State::kSize;
  std::uint64_t left_ = 0;  ///< bytes of the chunk not yet received
  std::size_t trailer_bytes_ = 0;
  std::string line_;  ///< the current line without its CRLF
  bool cr_ = false;   ///< the last byte was CR
};

}  // namespace quire
