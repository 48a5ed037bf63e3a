/// FetchOps bring results of a Compute to ordinary memory without a synchronization between two
/// layers of a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace quire {

/// Enqueue what writes the values to place(), then call fetch(); its callback gets them in ordinary
/// memory by the next deliver() at the latest. Where the host computes, fetch() calls it at once,
/// and several threads may fetch. Order, threads and errors: as Compute.
class FetchOps {
 public:
  /// Fetched receives the fetched bytes in ordinary memory, valid for the call only.
  using Fetched = std::function<void(const std::byte*)>;
  virtual ~FetchOps() = default;
  /// Returns memory of the Compute, aligned to 64 bytes, for values to be fetched. Only one such
  /// buffer is open at a time, and the call may run deliver() when many bytes are pending.
  virtual Result<std::byte*> place(std::int64_t bytes) = 0;
  /// Fetches the last place(). deliver() calls `then` in the order of the fetches; everything that
  /// `then` uses must live until that call.
  virtual Status fetch(std::int64_t bytes, Fetched then) = 0;
  /// Synchronizes and calls the callbacks that are left. After an error it calls none and discards
  /// all pending fetches; except that where operations of the caller's decode step were refused, it
  /// calls all of them before it says so, because other passes may have fetched.
  virtual Status deliver() = 0;
  /// Returns how often fetches were discarded, or a callback threw. Whoever fetched and let others
  /// deliver compares it, because only they were told.
  virtual std::uint64_t discarded() const { return 0; }
};

}  // namespace quire
