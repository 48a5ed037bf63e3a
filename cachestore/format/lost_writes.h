/// What a start found missing in a store.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire {

/// Writes that are not in the store any more: its log was cut, lost or replaced. Their times are 0
/// where its end was torn, since a power failure tears only what was not acknowledged.
struct LostWrites {
  std::uint64_t count = 0;
  bool at_least = false;                   ///< more than `count` may be missing
  std::int64_t first_ms = 0, last_ms = 0;  ///< when they were acknowledged, Unix ms; 0: not known
  std::uint64_t torn = 0;                  ///< of `count`: in a torn end of the log
  bool note_damaged = false;               ///< what counted earlier ones cannot be read

  /// Adds those that another start found.
  void add(const LostWrites& more) {
    count += more.count;
    at_least = at_least || more.at_least;
    if (more.first_ms > 0)
      first_ms = first_ms == 0 ? more.first_ms : std::min(first_ms, more.first_ms);
    last_ms = std::max(last_ms, more.last_ms);
    torn += more.torn;
    note_damaged = note_damaged || more.note_damaged;
  }
};

}  // namespace quire
