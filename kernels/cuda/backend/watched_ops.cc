#include "kernels/cuda/backend/watched_ops.h"

#include <atomic>
#include <utility>

namespace quire::cuda {
namespace {

class WatchedOps final : public DeviceOps {
 public:
  WatchedOps(std::shared_ptr<DeviceOps> inner, std::function<void(const Status&)> on_lost)
      : inner_(std::move(inner)), on_lost_(std::move(on_lost)) {}

  std::string description() const override { return inner_->description(); }
  Result<MemoryInfo> memory() override { return seen(inner_->memory()); }
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override {
    return seen(inner_->allocate(kind, bytes));
  }
  Status release(MemoryKind kind, void* p) override { return seen(inner_->release(kind, p)); }
  Status synchronize() override { return seen(inner_->synchronize()); }
  Status enqueue(OpCode code, const void* args, std::int64_t bytes) override {
    return seen(inner_->enqueue(code, args, bytes));
  }

 private:
  void look_at(const Status& status) {
    if (status.code() == Code::kDeviceLost && !told_.exchange(true)) on_lost_(status);
  }
  Status seen(Status status) {
    look_at(status);
    return status;
  }
  template <class T>
  Result<T> seen(Result<T> result) {
    if (!result.ok()) look_at(result.status());
    return result;
  }
  const std::shared_ptr<DeviceOps> inner_;
  const std::function<void(const Status&)> on_lost_;
  std::atomic<bool> told_{false};
};

}  // namespace

std::shared_ptr<DeviceOps> watch(std::shared_ptr<DeviceOps> inner,
                                 std::function<void(const Status&)> on_lost) {
  return std::make_shared<WatchedOps>(std::move(inner), std::move(on_lost));
}

}  // namespace quire::cuda
