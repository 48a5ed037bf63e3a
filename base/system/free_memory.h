/// Memory that is free: how much there is, and how what was freed goes back to the system.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace quire {

/// Returns the bytes free for new allocations, page cache included; 0 if the system does not say.
/// A limit of the process's control groups counts, as that of a container or of systemd's
/// MemoryMax.
std::int64_t available_memory();

/// Gives the memory that the process has freed back to the system, at most once a second: further
/// calls return at once. It takes some milliseconds, in which other threads may wait for memory.
/// For the end of work that needed much. Threads: any.
inline void return_free_memory() {
  static std::atomic<std::int64_t> next_ms{0};
  const std::int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                               std::chrono::steady_clock::now().time_since_epoch())
                               .count();
  std::int64_t due = next_ms.load();
  if (now < due || !next_ms.compare_exchange_strong(due, now + 1000)) return;
#if defined(__GLIBC__)
  (void)::malloc_trim(0);
#endif
}

}  // namespace quire
