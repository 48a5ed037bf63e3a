/// This file declares a driver that remembers that its context is lost.
#pragma once

#include <atomic>

#include "kernels/cuda/runtime/driver.h"

namespace quire::cuda {

/// Forwards every call until one reports kDeviceLost. From then on every call returns that first
/// error without touching the device. Destroy and release calls then succeed and do nothing,
/// because a lost context has freed everything that it held.
///
/// Threads: as DeviceDriver, except that any thread may call lost().
class GuardedDriver final : public DeviceDriver {
 public:
  /// `inner` must outlive it.
  explicit GuardedDriver(DeviceDriver& inner) : inner_(inner) {}
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// Returns OK, or the first kDeviceLost.
  const Status& loss() const { return loss_; }

  Result<MemoryInfo> memory() override;
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override;
  Status release(MemoryKind kind, void* p) override;
  Result<StreamHandle> create_stream(StreamPriority priority) override;
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
  Status loss_;  // used only by the owner's thread
  std::atomic<bool> lost_{false};
};

}  // namespace quire::cuda
