/// Takes from this process what a parser does not need, before it sees bytes from outside.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace quire {

struct SandboxLimits {
  std::uint64_t memory_bytes = 0;  ///< of address space
  std::uint32_t cpu_seconds = 0;
};

/// Gives up for good: new privileges, core dumps, being traced, sockets, new processes, programs,
/// files opened for writing, and memory that is made executable. Files may be opened for reading
/// only below /usr/share/poppler, whose tables name the characters of Asian fonts, and that only
/// where the kernel has Landlock; else none may be. Calls on standard input and output stay.
/// Under AddressSanitizer, which needs terabytes of address space, `memory_bytes` does not count.
/// Errors: kInternal (the kernel refuses; nothing from outside may be parsed then).
Status enter_sandbox(const SandboxLimits& limits);

}  // namespace quire
