/// Telling somebody when a device is lost.
#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/backend/ops.h"

namespace quire::cuda {

/// Passes every call on to `inner`; the first kDeviceLost calls `on_lost` with it, once, on the
/// thread that met it. A lost device does not come back: whoever hears it stops admitting work,
/// lets what runs end, and exits.
std::shared_ptr<DeviceOps> watch(std::shared_ptr<DeviceOps> inner,
                                 std::function<void(const Status&)> on_lost);

}  // namespace quire::cuda
