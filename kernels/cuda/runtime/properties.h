/// This file declares the properties of a machine's accelerators, the choice among them, and the
/// launch shapes that follow from a device's properties.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire::cuda {

struct DeviceProperties {
  std::int32_t index = 0;
  std::string name;
  std::int32_t major = 0, minor = 0;  ///< compute capability
  std::int32_t multiprocessors = 0;
  std::int32_t threads_per_multiprocessor = 0;
  std::int64_t shared_bytes_per_block = 0;  ///< largest shared memory of a launch
  std::int64_t shared_bytes_per_multiprocessor = 0;
  std::int64_t l2_bytes = 0, total_bytes = 0;
};

/// Versions are 1000 * major + 10 * minor, as in CUDA; 0: none.
struct DeviceReport {
  std::int32_t driver_version = 0;   ///< newest CUDA version that the installed driver supports
  std::int32_t toolkit_version = 0;  ///< CUDA version of this build
  std::string error;                 ///< CUDA's message why devices cannot be listed; else empty
  std::vector<DeviceProperties> devices;
};

/// The kernels are built for compute capability 8.0 and newer.
inline constexpr std::int32_t kLeastMajor = 8;

/// Returns the version as text, for example "12.4".
std::string cuda_version_name(std::int32_t version);
/// Returns for example "NVIDIA H200 (device 0, compute capability 9.0, 139.7 GiB)".
std::string describe(const DeviceProperties& device);

/// Returns the device with that index. Errors, each with what to do: kUnavailable (no driver, a
/// driver older than the toolkit, no device, a device too old), kInvalidArgument (field
/// model.device: no device has that index).
Result<DeviceProperties> choose_device(const DeviceReport& report, std::int64_t index);

/// Returns how many blocks of a launch a multiprocessor can hold, as far as threads and shared
/// memory limit it; 0 if a block does not fit at all.
std::int32_t resident_blocks(const DeviceProperties& device, std::int32_t threads,
                             std::int64_t shared_bytes);

/// Returns the number of parts, 1..most, to split work into that has `blocks` blocks when left
/// whole. The device gets at least two waves of blocks, while a part keeps `least` of its `length`
/// items. It depends only on the arguments, so equal shapes give equal bits on a device.
std::int32_t split_parts(const DeviceProperties& device, std::int32_t resident, std::int64_t blocks,
                         std::int64_t length, std::int64_t least, std::int32_t most);

}  // namespace quire::cuda
