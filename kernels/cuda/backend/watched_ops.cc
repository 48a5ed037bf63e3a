#include "kernels/cuda/backend/watched_ops.h"

#include <atomic>
#include <utility>

namespace quire::cuda {
namespace {

/// Watch tells of the first loss that any of the watched reports.
class Watch {
 public:
  explicit Watch(std::function<void(const Status&)> on_lost) : on_lost_(std::move(on_lost)) {}
  Status seen(Status status) {
    if (status.code() == Code::kDeviceLost && !told_.exchange(true)) on_lost_(status);
    return status;
  }

 private:
  const std::function<void(const Status&)> on_lost_;
  std::atomic<bool> told_{false};
};

class WatchedOps final : public DeviceOps {
 public:
  /// `communicator` is that of the team which `inner` leads, or null.
  WatchedOps(std::shared_ptr<DeviceOps> inner, std::shared_ptr<Watch> watch,
             std::shared_ptr<Communicator> communicator)
      : inner_(std::move(inner)),
        watch_(std::move(watch)),
        communicator_(std::move(communicator)) {}

  std::string description() const override { return inner_->description(); }
  Result<MemoryInfo> memory() override { return seen(inner_->memory()); }
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override {
    return seen(inner_->allocate(kind, bytes));
  }
  Status release(MemoryKind kind, void* p) override {
    return watch_->seen(inner_->release(kind, p));
  }
  Status synchronize() override { return seen(inner_->synchronize()); }
  Status enqueue(OpCode code, const void* args, std::int64_t bytes) override {
    return seen(inner_->enqueue(code, args, bytes));
  }

 private:
  Status connected() const { return communicator_ == nullptr ? Status() : communicator_->status(); }
  Status seen(Status status) {
    if (status.ok()) status = connected();
    return watch_->seen(std::move(status));
  }
  template <class T>
  Result<T> seen(Result<T> result) {
    if (!result.ok()) (void)watch_->seen(result.status());
    return result;
  }
  const std::shared_ptr<DeviceOps> inner_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Communicator> communicator_;
};

class WatchedCommunicator final : public Communicator {
 public:
  WatchedCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Watch> watch)
      : inner_(std::move(inner)), watch_(std::move(watch)) {}
  Status broadcast(const void* from, std::span<void* const> to, std::int64_t bytes) override {
    return watch_->seen(inner_->broadcast(from, to, bytes));
  }
  Status gather(std::span<const Part> parts) override {
    return watch_->seen(inner_->gather(parts));
  }
  Status all_gather(std::span<std::byte* const> whole,
                    std::span<const std::int64_t> begin) override {
    return watch_->seen(inner_->all_gather(whole, begin));
  }
  Status status() const override { return watch_->seen(inner_->status()); }

 private:
  const std::shared_ptr<Communicator> inner_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace

std::shared_ptr<DeviceOps> watch(std::shared_ptr<DeviceOps> inner,
                                 std::function<void(const Status&)> on_lost) {
  return std::make_shared<WatchedOps>(std::move(inner), std::make_shared<Watch>(std::move(on_lost)),
                                      nullptr);
}

DeviceTeam watch(DeviceTeam inner, std::function<void(const Status&)> on_lost) {
  const auto watch = std::make_shared<Watch>(std::move(on_lost));
  DeviceTeam out;
  for (std::shared_ptr<DeviceOps>& device : inner.devices) {
    const bool leads = out.devices.empty();
    out.devices.push_back(std::make_shared<WatchedOps>(std::move(device), watch,
                                                       leads ? inner.communicator : nullptr));
  }
  if (inner.communicator != nullptr)
    out.communicator = std::make_shared<WatchedCommunicator>(std::move(inner.communicator), watch);
  return out;
}

}  // namespace quire::cuda
