/// Statuses of errors of the CUDA runtime. Plain C++ with the toolkit's headers.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"

namespace quire::cuda {

/// Returns kResourceExhausted for memory, kDeviceLost for errors that poison the context, else
/// kInternal or kUnavailable (no usable device). `what` names the failed action. After any error
/// the runtime's last one is cleared, so that no later call reports it again.
Status cuda_status(cudaError_t error, const char* what);

}  // namespace quire::cuda
