#include "kernels/cuda/hardware.cuh"

namespace quire::cuda {
namespace {

/// cudaErrorContained, which the headers of CUDA 12.4 do not declare.
constexpr auto kErrorContained = static_cast<cudaError_t>(226);

}  // namespace

Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  // The runtime keeps an error until it is asked for its last one, which the next launch does and
  // would report as its own. Those that a context does not survive come back all the same.
  (void)cudaGetLastError();
  const std::string message = std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                              cudaGetErrorName(error) + ")";
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Status::exhausted(message);
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return Status::unavailable(message);
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case kErrorContained:
    case cudaErrorDevicesUnavailable:
      return Status(Code::kDeviceLost, message);
    default:
      return Status::internal(message);
  }
}

}  // namespace quire::cuda
