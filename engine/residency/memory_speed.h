/// How fast memory is where the engine computes: what `auto` decides by.
#pragma once

#include "base/status.h"
#include "engine/model/compute.h"
#include "engine/residency/transfer_lane.h"

namespace quire {

struct MemorySpeed {
  double read_bytes_per_ms = 0;  ///< by all that computes together
  /// To where retrievers keep rows: by a lane of copies, to a device from pinned memory of the host
  double copy_bytes_per_ms = 0;
};

/// Some milliseconds. Errors: those of a device.
Result<MemorySpeed> measure_memory_speed(Compute& compute, TransferLane& lane);

}  // namespace quire
