/// A driver that remembers that its context is lost.
#pragma once

#include <atomic>

#include "kernels/cuda/runtime/driver.h"

namespace quire::cuda {

/// Passes every call on, until one of them reports kDeviceLost: from then on every call gives that
/// first error without touching the device. Destroying and releasing succeed then and do nothing:
/// what a lost context held is gone with it.
///
/// Threads: as DeviceDriver, but lost() may be asked from any thread.
class GuardedDriver final : public DeviceDriver {
 public:
  /// `inner` must outlive it.
  explicit GuardedDriver(DeviceDriver& inner) : inner_(inner) {}
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// OK, or the first kDeviceLost.
  const Status& loss() const { return loss_; }

  Result<MemoryInfo> memory() override;
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override;
  Status release(MemoryKind kind, void* p) override;
  Result<StreamHandle> create_stream() override;
  Status destroy_stream(StreamHandle stream) override;
  Status wait_for(StreamHandle stream) override;
  Result<EventHandle> create_event() override;
  Status destroy_event(EventHandle event) override;
  Status record(EventHandle event, StreamHandle stream) override;
  Status hold(StreamHandle stream, EventHandle event) override;
  Result<bool> passed(EventHandle event) override;
  Status wait_for(EventHandle event) override;
  Status begin_capture(StreamHandle stream) override;
  Result<GraphHandle> end_capture(StreamHandle stream) override;
  Status launch(GraphHandle graph, StreamHandle stream) override;
  Status destroy_graph(GraphHandle graph) override;
  Status copy(void* to, const void* from, std::int64_t bytes, StreamHandle stream) override;

 private:
  template <class Call>
  auto guard(Call call) -> decltype(call());
  template <class Call>
  Status give_back(Call call);
  void look_at(const Status& status);

  DeviceDriver& inner_;
  Status loss_;  // the owner's thread alone
  std::atomic<bool> lost_{false};
};

}  // namespace quire::cuda
