/// How fast memory is where the engine computes: what `auto` decides by.
#pragma once

#include "engine/model/compute.h"
#include "engine/residency/transfer_lane.h"
#include "base/status.h"

namespace quire {

struct MemorySpeed {
  double read_bytes_per_ms = 0;  ///< by all that computes together
  double copy_bytes_per_ms = 0;  ///< to where retrievers keep rows: by a lane of copies, to a device from pinned memory of the host
};

/// Some milliseconds. Errors: those of a device.
Result<MemorySpeed> measure_memory_speed(Compute& compute, TransferLane& lane);

}  // namespace quire
