/// What a start found missing in a store.
#pragma once

#include <cstdint>

namespace quire {

/// Writes that are not in the store any more: its log was cut, lost or replaced. Their times are 0
/// where its end was torn, since a power failure tears only what was not acknowledged.
struct LostWrites {
  std::uint64_t count = 0;
  bool at_least = false;                   ///< more than `count` may be missing
  std::int64_t first_ms = 0, last_ms = 0;  ///< when they were acknowledged, Unix ms; 0: not known
};

}  // namespace quire
