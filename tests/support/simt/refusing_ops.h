/// A device that refuses memory and leaves out operations which a test says, and lets it act before
/// an operation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/backend/ops.h"

namespace quire::simt {

class RefusingOps final : public cuda::DeviceOps {
 public:
  explicit RefusingOps(std::shared_ptr<cuda::DeviceOps> ops) : ops_(std::move(ops)) {}

  std::string description() const override { return ops_->description(); }
  Result<cuda::MemoryInfo> memory() override { return ops_->memory(); }
  Result<void*> allocate(cuda::MemoryKind kind, std::int64_t bytes) override {
    if (at_allocation) QUIRE_RETURN_IF_ERROR(at_allocation(kind, bytes));
    return ops_->allocate(kind, bytes);
  }
  Status release(cuda::MemoryKind kind, void* p) override { return ops_->release(kind, p); }
  Status synchronize() override {
    if (at_synchronize) at_synchronize();
    return ops_->synchronize();
  }
  Status enqueue(cuda::OpCode code, const void* args, std::int64_t bytes) override {
    if (at_operation) at_operation(code);
    return leaves_out && leaves_out(code, args) ? Status() : ops_->enqueue(code, args, bytes);
  }

  /// Run before each operation is enqueued, and before each wait for all of them. Set them as
  /// at_allocation.
  std::function<void(cuda::OpCode code)> at_operation;
  std::function<void()> at_synchronize;
  /// Runs before each allocation, which its error ends. Set it on the engine thread, or while the
  /// engine has nothing to do.
  std::function<Status(cuda::MemoryKind kind, std::int64_t bytes)> at_allocation;
  /// Sees each operation, and says whether it is never enqueued. Set it as at_allocation.
  std::function<bool(cuda::OpCode code, const void* args)> leaves_out;

 private:
  const std::shared_ptr<cuda::DeviceOps> ops_;
};

}  // namespace quire::simt
