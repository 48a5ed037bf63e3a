/// Bytes that come in parts, as a socket gives them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "base/status.h"
#include "cachestore/redis/redis_reply.h"

namespace quire::test {

/// Reads these bytes, at most `step` at a time. Every other time none have come yet. At their end
/// it fails with kUnavailable.
inline RedisReplyStream::ReadSome cut_source(std::string_view& bytes, std::size_t step) {
  return [&bytes, step, none = false](std::span<char> to,
                                      std::span<char> then) mutable -> Result<std::size_t> {
    if (none = !none; none) return std::size_t{0};
    if (bytes.empty()) return Status::unavailable("the end");
    std::size_t n = bytes.copy(to.data(), std::min(step, to.size()));
    bytes.remove_prefix(n);
    if (n == to.size()) {
      const std::size_t behind = bytes.copy(then.data(), std::min(step - n, then.size()));
      bytes.remove_prefix(behind);
      n += behind;
    }
    return n;
  };
}

}  // namespace quire::test
