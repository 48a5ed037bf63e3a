/// measure_memory_speed() measures the memory bandwidth of the engine's Compute, by which `auto`
/// decides.
#pragma once

#include "base/status.h"
#include "engine/compute/compute.h"
#include "engine/residency/transfer_streams.h"

namespace quire {

struct MemorySpeed {
  double read_bytes_per_ms = 0;  ///< of all computing threads or processors together
  /// Copy speed to the memory where retrievers keep rows, on a copy stream; to a device from pinned
  /// host memory.
  double copy_bytes_per_ms = 0;
};

/// Measures the speeds within some milliseconds. Errors: those of a device.
Result<MemorySpeed> measure_memory_speed(Compute& compute, TransferStreams& stream);

}  // namespace quire
