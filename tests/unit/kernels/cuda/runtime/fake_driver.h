/// A device of bytes and counters. Streams run their work when a test says so, and any call can be
/// made to fail.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/driver.h"

namespace quire::cuda {

/// Time is the number of streams' steps: an event recorded on a stream passes with finish(stream)
/// or when it is waited for. Handles are checked: an unknown or destroyed one aborts the test.
class FakeDriver : public DeviceDriver {
 public:
  explicit FakeDriver(std::int64_t capacity_bytes) : capacity_(capacity_bytes) {}
  ~FakeDriver() override {
    QUIRE_CHECK(handles_.empty() && allocations_.empty(), "handles or memory are left behind");
  }

  /// Makes the `nth` call (from 1) of that name from now fail with `status`; later ones succeed.
  void fail(const std::string& call, int nth, Status status) {
    failures_[call] = {nth, std::move(status)};
  }
  /// Runs everything enqueued on the stream so far.
  void finish(StreamHandle stream) { done_[stream.stream] = enqueued_[stream.stream]; }
  std::int64_t given_bytes(MemoryKind kind) const {
    std::int64_t sum = 0;
    for (const auto& [p, a] : allocations_) sum += a.kind == kind ? a.bytes : 0;
    return sum;
  }
  /// Returns the bytes allocated on the card.
  std::int64_t card_bytes() const { return given_bytes(MemoryKind::kDevice); }
  std::int64_t num_handles() const { return static_cast<std::int64_t>(handles_.size()); }
  /// Forgets memory that could not be released, as it goes with the device.
  void forget_memory() { allocations_.clear(); }
  /// Forgets everything, as after the loss of the device.
  void forget_everything() {
    handles_.clear();
    allocations_.clear();
  }
  const std::vector<std::string>& calls() const { return calls_; }
  bool capturing() const { return capturing_; }
  StreamPriority priority(StreamHandle stream) const { return priorities_.at(stream.stream); }
  /// Returns whether everything enqueued on the stream has run.
  bool finished(StreamHandle stream) { return done_[stream.stream] == enqueued_[stream.stream]; }

  Result<MemoryInfo> memory() override {
    QUIRE_RETURN_IF_ERROR(enter("memory"));
    return MemoryInfo{capacity_ - card_bytes(), capacity_};
  }
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override {
    QUIRE_RETURN_IF_ERROR(enter("allocate"));
    if ((kind == MemoryKind::kPinned ? given_bytes(kind) : card_bytes()) + bytes > capacity_)
      return Status::exhausted("the fake device is full");
    Allocation a{kind, bytes, std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes))};
    void* p = a.data.get();
    allocations_.emplace(p, std::move(a));
    return p;
  }
  Status release(MemoryKind kind, void* p) override {
    QUIRE_RETURN_IF_ERROR(enter("release"));
    const auto found = allocations_.find(p);
    QUIRE_CHECK(found != allocations_.end() && found->second.kind == kind,
                "releases what it gave, once");
    allocations_.erase(found);
    return {};
  }
  Result<StreamHandle> create_stream(StreamPriority priority) override {
    QUIRE_RETURN_IF_ERROR(enter("create_stream"));
    const StreamHandle stream{new_handle()};
    priorities_[stream.stream] = priority;
    return stream;
  }
  Status destroy_stream(StreamHandle stream) override {
    return destroy("destroy_stream", stream.stream);
  }
  Status wait_for(StreamHandle stream) override {
    QUIRE_RETURN_IF_ERROR(enter("wait_for_stream"));
    finish(stream);
    return {};
  }
  Result<EventHandle> create_event() override {
    QUIRE_RETURN_IF_ERROR(enter("create_event"));
    return EventHandle{new_handle()};
  }
  Status destroy_event(EventHandle event) override {
    recorded_.erase(event.event);
    return destroy("destroy_event", event.event);
  }
  Status record(EventHandle event, StreamHandle stream) override {
    QUIRE_RETURN_IF_ERROR(enter("record"));
    QUIRE_CHECK(handles_.contains(event.event), "an event that lives");
    recorded_[event.event] = {stream.stream, ++enqueued_[stream.stream]};
    return {};
  }
  Status hold(StreamHandle, EventHandle) override { return enter("hold"); }
  Result<bool> passed(EventHandle event) override {
    QUIRE_RETURN_IF_ERROR(enter("passed"));
    const auto at = recorded_.find(event.event);
    return at == recorded_.end() || done_[at->second.stream] >= at->second.step;
  }
  Status wait_for(EventHandle event) override {
    QUIRE_RETURN_IF_ERROR(enter("wait_for_event"));
    const auto at = recorded_.find(event.event);
    if (at != recorded_.end())
      done_[at->second.stream] = std::max(done_[at->second.stream], at->second.step);
    return {};
  }
  Status begin_capture(StreamHandle) override {
    QUIRE_RETURN_IF_ERROR(enter("begin_capture"));
    QUIRE_CHECK(!capturing_, "one capture at a time");
    capturing_ = true;
    return {};
  }
  Result<GraphHandle> end_capture(StreamHandle) override {
    QUIRE_CHECK(capturing_, "a capture was begun");
    capturing_ = false;
    QUIRE_RETURN_IF_ERROR(enter("end_capture"));
    return GraphHandle{new_handle()};
  }
  Status launch(GraphHandle graph, StreamHandle) override {
    QUIRE_RETURN_IF_ERROR(enter("launch"));
    QUIRE_CHECK(handles_.contains(graph.graph) && !capturing_,
                "a graph that lives, outside a capture");
    launched_.push_back(graph.graph);
    return {};
  }
  Status destroy_graph(GraphHandle graph) override { return destroy("destroy_graph", graph.graph); }
  Status copy(void* to, const void* from, std::int64_t bytes, StreamHandle) override {
    QUIRE_RETURN_IF_ERROR(enter("copy"));
    std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
    return {};
  }
  const std::vector<void*>& launched() const { return launched_; }

 protected:
  /// Counts a call, and fails it if a test said so. Every call begins with it.
  Status enter(const std::string& call) {
    calls_.push_back(call);
    const auto found = failures_.find(call);
    if (found == failures_.end() || --found->second.nth > 0) return {};
    const Status status = found->second.status;
    failures_.erase(found);
    return status;
  }

 private:
  struct Allocation {
    MemoryKind kind;
    std::int64_t bytes;
    std::unique_ptr<std::byte[]> data;
  };
  struct Failure {
    int nth;
    Status status;
  };
  struct Recorded {
    void* stream;
    std::int64_t step;
  };

  void* new_handle() {
    void* p = reinterpret_cast<void*>(++last_handle_);  // never reused, unlike addresses
    handles_.insert(p);
    return p;
  }
  Status destroy(const char* call, void* handle) {
    QUIRE_RETURN_IF_ERROR(enter(call));
    QUIRE_CHECK(handles_.erase(handle) == 1, "destroys what it made, once");
    return {};
  }

  const std::int64_t capacity_;
  std::map<void*, Allocation> allocations_;
  std::set<void*> handles_;
  std::uintptr_t last_handle_ = 0;
  std::map<void*, StreamPriority> priorities_;
  std::map<void*, Recorded> recorded_;
  std::map<void*, std::int64_t> enqueued_, done_;
  std::map<std::string, Failure> failures_;
  std::vector<std::string> calls_;
  std::vector<void*> launched_;
  bool capturing_ = false;
};

}  // namespace quire::cuda
