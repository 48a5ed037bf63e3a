/// This file declares DeviceOps on hardware, built only with QUIRE_CUDA.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "kernels/cuda/backend/matmul.h"
#include "kernels/cuda/backend/ops.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/guarded_driver.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/lanes.h"
#include "kernels/cuda/runtime/session_memory.h"

namespace quire::cuda {

/// One device with a stream per Lane, memory from pools (SessionMemory), and products on the
/// compute stream. Every call first makes the device current for its thread.
class Session final : public DeviceOps {
 public:
  /// Opens the device. Errors: those of choose_device() and open_device(), kResourceExhausted.
  static Result<std::unique_ptr<Session>> open(std::int64_t device_idx);
  ~Session() override;

  std::int32_t device() const { return device_.index; }
  /// Returns the stream of Lane::kCompute. Threads: any.
  StreamHandle stream() const { return lanes_.of(Lane::kCompute); }
  std::string description() const override { return describe(device_); }
  Result<MemoryInfo> memory() override;
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override;
  Status release(MemoryKind kind, void* p) override;
  Status synchronize() override;
  Status enqueue(OpCode code, const void* args, std::int64_t bytes) override;

 private:
  static constexpr std::size_t kMostGraphs = 48;
  Session(DeviceProperties device, std::unique_ptr<DeviceDriver> driver)
      : device_(std::move(device)), opened_(std::move(driver)), driver_(*opened_) {}
  Status start();

  const DeviceProperties device_;
  const std::unique_ptr<DeviceDriver> opened_;
  GuardedDriver driver_;
  LaneStreams lanes_;
  std::array<Event, kEvents> events_;
  GraphCache graphs_{driver_, kMostGraphs};
  std::optional<SessionMemory> memory_;
  void* workspace_ = nullptr;
  std::unique_ptr<Matmul> matmul_;
};

}  // namespace quire::cuda
