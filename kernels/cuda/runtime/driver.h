/// What the device runtime asks of an accelerator: the one interface between its bookkeeping, which
/// any build compiles and tests, and CUDA.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "kernels/cuda/runtime/properties.h"
#include "kernels/cuda/stream.h"

namespace quire::cuda {

enum class MemoryKind : std::uint8_t {
  kDevice,  ///< memory of the accelerator
  kPinned,  ///< memory of the host that the accelerator copies from and to by itself
  /// Addressed by both: lies on the device, and moves to the host and back where the host touches
  /// it
  kShared,
};
const char* memory_kind_name(MemoryKind kind);

struct EventHandle {
  void* event = nullptr;
};
/// A captured graph, ready to launch.
struct GraphHandle {
  void* graph = nullptr;
};

struct MemoryInfo {
  /// Of the device; free counts what other processes hold as taken
  std::int64_t free_bytes = 0, total_bytes = 0;
};

/// One device and its context. Handles are valid until they are destroyed; what is enqueued on a
/// stream runs in order.
///
/// Threads: the thread that opened it, one thread for its whole life. Errors of every call:
/// kDeviceLost (the context is gone and does not come back: stop admission, drain, exit),
/// kResourceExhausted (memory), kInternal. An error may be that of work enqueued earlier.
class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  virtual Result<MemoryInfo> memory() = 0;
  /// At least `bytes` > 0 bytes, aligned to 256. Errors: kResourceExhausted, after which the device
  /// is as before.
  virtual Result<void*> allocate(MemoryKind kind, std::int64_t bytes) = 0;
  /// Waits for what uses the memory.
  virtual Status release(MemoryKind kind, void* p) = 0;

  virtual Result<StreamHandle> create_stream() = 0;
  virtual Status destroy_stream(StreamHandle stream) = 0;
  /// Blocks the calling thread until everything enqueued so far has run.
  virtual Status wait_for(StreamHandle stream) = 0;

  virtual Result<EventHandle> create_event() = 0;
  virtual Status destroy_event(EventHandle event) = 0;
  /// The event stands for everything enqueued on `stream` so far, instead of what it stood for.
  virtual Status record(EventHandle event, StreamHandle stream) = 0;
  /// Holds what is enqueued on `stream` from now on until the event. The calling thread goes on.
  virtual Status hold(StreamHandle stream, EventHandle event) = 0;
  /// Whether the event has passed; one never recorded has.
  virtual Result<bool> passed(EventHandle event) = 0;
  virtual Status wait_for(EventHandle event) = 0;

  /// Between the two nothing runs: what is enqueued on `stream` becomes the graph. end_capture()
  /// leaves the stream as it was before also when it fails.
  virtual Status begin_capture(StreamHandle stream) = 0;
  virtual Result<GraphHandle> end_capture(StreamHandle stream) = 0;
  virtual Status launch(GraphHandle graph, StreamHandle stream) = 0;
  /// A graph under way finishes first.
  virtual Status destroy_graph(GraphHandle graph) = 0;

  /// Enqueues a copy between pinned and device memory or within one of them, in any direction.
  virtual Status copy(void* to, const void* from, std::int64_t bytes, StreamHandle stream) = 0;
};

/// The devices of this machine and the versions of driver and toolkit. Opens none, never fails:
/// what is missing is in the report. Built with QUIRE_CUDA alone.
DeviceReport probe_devices();
/// Makes the device current for the calling thread and opens its context. Errors: kUnavailable,
/// kResourceExhausted, kDeviceLost. Built with QUIRE_CUDA alone.
Result<std::unique_ptr<DeviceDriver>> open_device(const DeviceProperties& device);

}  // namespace quire::cuda
