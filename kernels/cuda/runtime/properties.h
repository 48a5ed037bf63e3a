/// What is known of the accelerators of a machine, which of them to use, and the launch shapes that
/// follow from one's properties.
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
  std::int64_t shared_bytes_per_block = 0;  ///< the most a launch may ask for
  std::int64_t shared_bytes_per_multiprocessor = 0;
  std::int64_t l2_bytes = 0, total_bytes = 0;
};

/// Versions are 1000 * major + 10 * minor, as CUDA counts them; 0 when there is none.
struct DeviceReport {
  std::int32_t driver_version = 0;   ///< the newest CUDA that the installed driver runs
  std::int32_t toolkit_version = 0;  ///< the CUDA this build was made with
  std::string error;  ///< why the devices cannot be listed, in CUDA's words; empty when they can
  std::vector<DeviceProperties> devices;
};

/// The kernels are built for compute capability 8.0 and newer.
inline constexpr std::int32_t kLeastMajor = 8;

/// "12.4".
std::string cuda_version_name(std::int32_t version);
/// "NVIDIA H200 (device 0, compute capability 9.0, 139.7 GiB)".
std::string describe(const DeviceProperties& device);

/// The device of that index. Errors, each with what to do: kUnavailable (no driver, a driver older
/// than the toolkit, no device, a device too old), kInvalidArgument (field model.device: there is
/// no device of that number).
Result<DeviceProperties> choose_device(const DeviceReport& report, std::int64_t index);

/// How many blocks of a launch a multiprocessor runs at the same time, as far as threads and shared
/// memory limit it; 0 when a block does not fit at all.
std::int32_t resident_blocks(const DeviceProperties& device, std::int32_t threads,
                             std::int64_t shared_bytes);

/// In how many parts to cut work that gives `blocks` blocks when left whole, so that the device is
/// busy for at least two rounds of blocks, while a part keeps `least` of its `length` items: 1 ..
/// most. Depends on nothing but the arguments, so equal shapes give equal bits on a device.
std::int32_t split_parts(const DeviceProperties& device, std::int32_t resident, std::int64_t blocks,
                         std::int64_t length, std::int64_t least, std::int32_t most);

}  // namespace quire::cuda
