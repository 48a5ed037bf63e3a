/// make_team_compute() makes a Compute for several accelerators that multiply together (tensor
/// parallelism).
#pragma once

#include <memory>
#include <string>

#include "engine/compute/compute.h"
#include "engine/device/pinned_values.h"
#include "kernels/cuda/backend/communicator.h"

namespace quire {

struct TeamOptions {
  /// Each device has the KV of some heads and attends with those; else the leader has all.
  bool split_kv = false;
};

/// Makes a Compute of a team, of which the outputs of every matrix are cut over all devices.
/// Everything else lies and runs on the leader, whose memory is memory(), and which `values` is
/// pinned memory of; but KV with `split_kv`. Results are those of the leader alone
/// (make_device_compute()); products by cuBLASLt may round the last bits otherwise. Decode steps
/// are not recorded into graphs. A team of one device is that device.
std::shared_ptr<Compute> make_team_compute(cuda::DeviceTeam team, std::string name = "cuda",
                                           std::shared_ptr<PinnedValues> values = nullptr,
                                           TeamOptions options = {});

}  // namespace quire
