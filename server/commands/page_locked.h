/// Page-locked memory of a device for the KV of the memory tier (cache.page_locked).
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/device/pinned_values.h"
#include "kernels/cuda/backend/ops.h"
#include "server/config/config.h"

namespace quire {

/// Checks "on" against what is known before a device is opened. Errors: kInvalidArgument with the
/// field (the CPU computes, or there is no memory tier).
Status check_page_locked(const Config& config, bool gpu_computes);
/// Returns memory of the device for StoreOptions::value_memory, as the settings say; null: there is
/// none. `ops` is null where the CPU computes. Errors: those of check_page_locked(), and for "on"
/// kInvalidArgument with the field where no memory can be locked.
Result<std::shared_ptr<PinnedValues>> page_locked_values(const Config& config,
                                                         std::shared_ptr<cuda::DeviceOps> ops);

}  // namespace quire
