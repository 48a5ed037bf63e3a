#include "kernels/cuda/runtime/properties.h"

#include <algorithm>
#include <cstdio>

#include "kernels/cuda/runtime/driver.h"

namespace quire::cuda {

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kPinned:
      return "pinned";
  }
  return "device";
}

std::string cuda_version_name(std::int32_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string describe(const DeviceProperties& d) {
  char memory[32];
  std::snprintf(memory, sizeof memory, "%.1f GiB", static_cast<double>(d.total_bytes) / (1 << 30));
  return d.name + " (device " + std::to_string(d.index) + ", compute capability " +
         std::to_string(d.major) + "." + std::to_string(d.minor) + ", " + memory + ")";
}

Result<DeviceProperties> choose_device(const DeviceReport& report, std::int64_t index) {
  if (report.driver_version == 0)
    return Status::unavailable(
        "no NVIDIA driver is installed, or it cannot be reached from here: install one that runs "
        "CUDA " +
        cuda_version_name(report.toolkit_version));
  if (report.devices.empty()) {
    if (report.driver_version < report.toolkit_version && !report.error.empty()) {
      return Status::unavailable(
          "the NVIDIA driver runs CUDA " + cuda_version_name(report.driver_version) +
          " at most, this build needs " + cuda_version_name(report.toolkit_version) +
          ": update the driver, or build with an older toolkit (" + report.error + ")");
    }
    return Status::unavailable(
        "there is a driver but no GPU it can use: see nvidia-smi and CUDA_VISIBLE_DEVICES" +
        (report.error.empty() ? "" : " (" + report.error + ")"));
  }
  const auto found = std::find_if(report.devices.begin(), report.devices.end(),
                                  [index](const DeviceProperties& d) { return d.index == index; });
  if (found == report.devices.end()) {
    std::string all;
    for (const auto& d : report.devices)
      all += (all.empty() ? "" : ", ") + std::to_string(d.index) + " = " + d.name;
    return Status::invalid(
        "model.device", "there is no GPU number " + std::to_string(index) + "; there are: " + all);
  }
  if (found->major < kLeastMajor) {
    return Status::unavailable(describe(*found) +
                               " is too old: the kernels need compute capability " +
                               std::to_string(kLeastMajor) + ".0 (Ampere) or newer");
  }
  return *found;
}

std::int32_t resident_blocks(const DeviceProperties& d, std::int32_t threads,
                             std::int64_t shared_bytes) {
  constexpr std::int64_t kReservedShared = 1024;  // reserved per block by the system
  if (threads <= 0 || shared_bytes > d.shared_bytes_per_block) return 0;
  const std::int64_t by_threads = d.threads_per_multiprocessor / threads,
                     by_shared = d.shared_bytes_per_multiprocessor /
                                 (shared_bytes + kReservedShared);
  return static_cast<std::int32_t>(std::min(by_threads, by_shared));
}

std::int32_t split_parts(const DeviceProperties& d, std::int32_t resident, std::int64_t blocks,
                         std::int64_t length, std::int64_t least, std::int32_t most) {
  const std::int64_t wanted = 2 * std::int64_t{d.multiprocessors} * std::max(resident, 1);
  const std::int64_t parts = blocks > 0 ? (wanted + blocks - 1) / blocks : 1;
  const std::int64_t longest = std::max<std::int64_t>(length / std::max<std::int64_t>(least, 1), 1);
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(parts, 1, std::min<std::int64_t>(longest, most)));
}

}  // namespace quire::cuda
