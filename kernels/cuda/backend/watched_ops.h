/// This file declares a DeviceOps that reports when its device is lost.
#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/backend/communicator.h"
#include "kernels/cuda/backend/ops.h"

namespace quire::cuda {

/// Forwards every call to `inner`. The first kDeviceLost calls `on_lost` with it, once, on the
/// thread that received it. A lost device does not recover: the callback should stop admission,
/// drain and exit.
std::shared_ptr<DeviceOps> watch(std::shared_ptr<DeviceOps> inner,
                                 std::function<void(const Status&)> on_lost);

/// Watches all devices of a team and its communicator. `on_lost` is called once for all of them.
/// Where ranks lost each other, calls of the leader that would return OK return that loss, because
/// what they waited for is incomplete.
DeviceTeam watch(DeviceTeam inner, std::function<void(const Status&)> on_lost);

}  // namespace quire::cuda
