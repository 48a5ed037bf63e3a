#include "kernels/cuda/runtime/guarded_driver.h"

namespace quire::cuda {
namespace {

const Status& status_of(const Status& s) { return s; }
template <class T>
Status status_of(const Result<T>& r) {
  return r.status();
}

}  // namespace

void GuardedDriver::look_at(const Status& status) {
  if (status.code() != Code::kDeviceLost) return;
  loss_ = status;
  lost_.store(true, std::memory_order_release);
}

template <class Call>
auto GuardedDriver::guard(Call call) -> decltype(call()) {
  if (!loss_.ok()) return loss_;
  auto outcome = call();
  look_at(status_of(outcome));
  return outcome;
}

template <class Call>
Status GuardedDriver::give_back(Call call) {
  if (!loss_.ok()) return {};
  const Status outcome = call();
  look_at(outcome);
  return outcome;
}

Result<MemoryInfo> GuardedDriver::memory() {
  return guard([&] { return inner_.memory(); });
}
Result<void*> GuardedDriver::allocate(MemoryKind kind, std::int64_t bytes) {
  return guard([&] { return inner_.allocate(kind, bytes); });
}
Status GuardedDriver::release(MemoryKind kind, void* p) {
  return give_back([&] { return inner_.release(kind, p); });
}
Result<StreamHandle> GuardedDriver::create_stream(StreamPriority priority) {
  return guard([&] { return inner_.create_stream(priority); });
}
Status GuardedDriver::destroy_stream(StreamHandle stream) {
  return give_back([&] { return inner_.destroy_stream(stream); });
}
Status GuardedDriver::wait_for(StreamHandle stream) {
  return guard([&] { return inner_.wait_for(stream); });
}
Result<EventHandle> GuardedDriver::create_event() {
  return guard([&] { return inner_.create_event(); });
}
Status GuardedDriver::destroy_event(EventHandle event) {
  return give_back([&] { return inner_.destroy_event(event); });
}
Status GuardedDriver::record(EventHandle event, StreamHandle stream) {
  return guard([&] { return inner_.record(event, stream); });
}
Status GuardedDriver::hold(StreamHandle stream, EventHandle event) {
  return guard([&] { return inner_.hold(stream, event); });
}
Result<bool> GuardedDriver::passed(EventHandle event) {
  return guard([&] { return inner_.passed(event); });
}
Status GuardedDriver::wait_for(EventHandle event) {
  return guard([&] { return inner_.wait_for(event); });
}
Status GuardedDriver::begin_capture(StreamHandle stream) {
  return guard([&] { return inner_.begin_capture(stream); });
}
Result<GraphHandle> GuardedDriver::end_capture(StreamHandle stream) {
  return guard([&] { return inner_.end_capture(stream); });
}
Status GuardedDriver::launch(GraphHandle graph, StreamHandle stream) {
  return guard([&] { return inner_.launch(graph, stream); });
}
Status GuardedDriver::destroy_graph(GraphHandle graph) {
  return give_back([&] { return inner_.destroy_graph(graph); });
}
Status GuardedDriver::copy(void* to, const void* from, std::int64_t bytes, StreamHandle stream) {
  return guard([&] { return inner_.copy(to, from, bytes, stream); });
}

}  // namespace quire::cuda
