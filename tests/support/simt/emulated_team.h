/// Emulated devices that multiply together.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/backend/communicator.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire::simt {

/// A team whose copies between devices run as late as all their work, and in its order.
struct EmulatedTeam {
  std::vector<std::shared_ptr<EmulatedOps>> devices;
  cuda::DeviceTeam team;
};

/// Makes a team of so many devices, each with these options. One alone has no communicator.
EmulatedTeam make_emulated_team(std::int64_t ranks, EmulatedOpsOptions options = {});

}  // namespace quire::simt
