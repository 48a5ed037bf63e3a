/// This file declares what the device runtime needs of an accelerator. It is the only interface
/// between the runtime's bookkeeping, which any build compiles and tests, and CUDA.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "kernels/cuda/runtime/properties.h"
#include "kernels/cuda/runtime/stream.h"

namespace quire::cuda {

enum class MemoryKind : std::uint8_t {
  kDevice,  ///< memory of the accelerator
  kPinned,  ///< pinned host memory that the accelerator reads and writes by itself
};
const char* memory_kind_name(MemoryKind kind);

struct EventHandle {
  void* event = nullptr;
};
/// A captured and instantiated graph.
struct GraphHandle {
  void* graph = nullptr;
};

struct MemoryInfo {
  /// Device memory in bytes; free_bytes excludes what other processes hold
  std::int64_t free_bytes = 0, total_bytes = 0;
};

/// Whose thread blocks run first where those of several streams wait. Levels that a device lacks
/// are one.
enum class StreamPriority : std::uint8_t { kLow, kNormal, kHigh };

/// One device and its context. Handles are valid until they are destroyed; work on a stream runs in
/// order.
///
/// Threads: only the thread that opened it. Errors of every call: kDeviceLost (the context is lost
/// for good: stop admission, drain, exit), kResourceExhausted (memory), kInternal. An error may
/// come from work enqueued earlier.
class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  virtual Result<MemoryInfo> memory() = 0;
  /// Allocates at least `bytes` > 0 bytes, aligned to 256. Errors: kResourceExhausted, which leaves
  /// the device unchanged.
  virtual Result<void*> allocate(MemoryKind kind, std::int64_t bytes) = 0;
  /// Frees the memory after synchronizing with the work that uses it.
  virtual Status release(MemoryKind kind, void* p) = 0;

  virtual Result<StreamHandle> create_stream(StreamPriority priority) = 0;
  virtual Status destroy_stream(StreamHandle stream) = 0;
  /// Blocks the calling thread until everything enqueued so far has run.
  virtual Status wait_for(StreamHandle stream) = 0;

  virtual Result<EventHandle> create_event() = 0;
  virtual Status destroy_event(EventHandle event) = 0;
  /// Records everything enqueued on `stream` so far, replacing an earlier recording.
  virtual Status record(EventHandle event, StreamHandle stream) = 0;
  /// Makes later work on `stream` wait for the event. Does not block the calling thread.
  virtual Status hold(StreamHandle stream, EventHandle event) = 0;
  /// Returns whether the event has completed; an event that was never recorded has.
  virtual Result<bool> passed(EventHandle event) = 0;
  virtual Status wait_for(EventHandle event) = 0;

  /// Captures what is enqueued on `stream` between the two calls into a graph without running it.
  /// end_capture() takes the stream out of capture even if it fails.
  virtual Status begin_capture(StreamHandle stream) = 0;
  virtual Result<GraphHandle> end_capture(StreamHandle stream) = 0;
  virtual Status launch(GraphHandle graph, StreamHandle stream) = 0;
  /// Destroys the graph; a running launch finishes first.
  virtual Status destroy_graph(GraphHandle graph) = 0;

  /// Enqueues a copy between pinned and device memory or within one of them, in any direction.
  virtual Status copy(void* to, const void* from, std::int64_t bytes, StreamHandle stream) = 0;
};

/// Returns the devices of this machine and the versions of driver and toolkit. It opens no device
/// and never fails; the report says what is missing. Built only with QUIRE_CUDA.
DeviceReport probe_devices();
/// Makes the device current for the calling thread and opens its context. Errors: kUnavailable,
/// kResourceExhausted, kDeviceLost. Built only with QUIRE_CUDA.
Result<std::unique_ptr<DeviceDriver>> open_device(const DeviceProperties& device);

}  // namespace quire::cuda
