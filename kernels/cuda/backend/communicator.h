/// This file declares what devices that multiply together tell each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/backend/ops.h"

namespace quire::cuda {

/// Copies between the devices of a team, the ranks. Rank 0 leads. A copy is enqueued on
/// Lane::kCompute of every rank that takes part, so it is in order with their operations: it reads
/// what was enqueued before it wrote, and what is enqueued after it reads the copy.
///
/// Threads: any; calls are serialized, so that all ranks see the same order. Errors of every call:
/// kDeviceLost (a rank or the connection between ranks is gone; nothing works afterwards),
/// kInternal.
class Communicator {
 public:
  virtual ~Communicator() = default;
  /// Copies bytes of the leader to each other rank r at to[r]. to[0] is ignored.
  virtual Status broadcast(const void* from, std::span<void* const> to, std::int64_t bytes) = 0;
  /// A part of what the leader gathers: memory of its rank, and of the leader.
  struct Part {
    const void* from;
    void* to;
    std::int64_t bytes;  ///< 0: the rank has none
  };
  /// Copies part r of each rank to the leader. parts[0] is ignored.
  virtual Status gather(std::span<const Part> parts) = 0;
  /// Rank r has bytes [begin[r], begin[r + 1]) of an array at whole[r]; afterwards every rank has
  /// all of them. `begin` has one element more than there are ranks.
  virtual Status all_gather(std::span<std::byte* const> whole,
                            std::span<const std::int64_t> begin) = 0;
  /// Returns OK, or why the ranks lost each other. A call that waited for a device and returned OK
  /// is only right if this still says OK. Threads: any, without a lock.
  virtual Status status() const = 0;
};

/// Devices that compute together; the first leads. One device alone has no communicator.
struct DeviceTeam {
  std::vector<std::shared_ptr<DeviceOps>> devices;
  std::shared_ptr<Communicator> communicator;
};

}  // namespace quire::cuda
