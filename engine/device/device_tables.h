/// DeviceTables holds the RoPE tables that a device knows. Internal to engine/device.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "engine/device/device_memory.h"
#include "kernels/cuda/args.h"
#include "kernels/rows/rope.h"

namespace quire {

/// Threads: any.
class DeviceTables : public std::enable_shared_from_this<DeviceTables> {
 public:
  explicit DeviceTables(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}
  /// Uploads the table. Operations find it for as long as the returned object lives.
  Result<std::shared_ptr<const void>> add(const RopeTable& table);
  /// Returns a table that add() uploaded.
  cuda::DeviceRopeTable of(const RopeTable& table);

 private:
  const std::shared_ptr<DeviceMemory> memory_;
  std::mutex mu_;
  std::map<const RopeTable*, cuda::DeviceRopeTable> tables_;  // guarded by mu_
};

}  // namespace quire
