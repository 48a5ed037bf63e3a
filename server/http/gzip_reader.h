/// Expands gzip bodies piece by piece.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace quire {

/// Reads a gzip file (RFC 1952) of one member or several. Its memory is bounded, whatever the
/// input. Threads: one object, one thread at a time.
class GzipReader {
 public:
  /// Takes expanded bytes; false ends the feed() that calls it.
  using Take = std::function<bool(std::string_view)>;

  GzipReader();
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Expands the next piece. Errors: kInvalidArgument: the bytes are no gzip, or are damaged.
  Status feed(std::string_view piece, const Take& take);
  /// Returns whether the last member has ended, or nothing came at all.
  bool complete() const { return complete_; }

 private:
  struct Stream;
  const std::unique_ptr<Stream> stream_;
  bool complete_ = true;
};

}  // namespace quire
