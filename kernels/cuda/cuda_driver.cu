// This file implements DeviceDriver with the CUDA runtime.
#include <string>

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/runtime/driver.h"

namespace quire::cuda {
namespace {

cudaStream_t native(StreamHandle stream) { return static_cast<cudaStream_t>(stream.stream); }
cudaEvent_t native(EventHandle event) { return static_cast<cudaEvent_t>(event.event); }
cudaGraphExec_t native(GraphHandle graph) { return static_cast<cudaGraphExec_t>(graph.graph); }

class CudaDriver final : public DeviceDriver {
 public:
  Result<MemoryInfo> memory() override {
    std::size_t free = 0, total = 0;
    QUIRE_RETURN_IF_ERROR(cuda_status(cudaMemGetInfo(&free, &total), "asking for free memory"));
    return MemoryInfo{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
  }

  Result<void*> allocate(MemoryKind kind, std::int64_t bytes) override {
    void* p = nullptr;
    const auto size = static_cast<std::size_t>(bytes);
    const cudaError_t error = kind == MemoryKind::kDevice
                                  ? cudaMalloc(&p, size)
                                  : cudaHostAlloc(&p, size, cudaHostAllocDefault);
    QUIRE_RETURN_IF_ERROR(cuda_status(error, "allocating"));
    return p;
  }
  Status release(MemoryKind kind, void* p) override {
    // cudaFree() synchronizes by itself
    if (kind != MemoryKind::kPinned) return cuda_status(cudaFree(p), "releasing memory");
    QUIRE_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "waiting for the device"));
    return cuda_status(cudaFreeHost(p), "releasing pinned memory");
  }

  Result<StreamHandle> create_stream(StreamPriority priority) override {
    int least = 0, greatest = 0;  // smaller numbers are higher priorities
    QUIRE_RETURN_IF_ERROR(cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                      "asking for stream priorities"));
    const int number = priority == StreamPriority::kLow    ? least
                       : priority == StreamPriority::kHigh ? greatest
                                                           : (least + greatest) / 2;
    cudaStream_t stream = nullptr;
    QUIRE_RETURN_IF_ERROR(cuda_status(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, number), "creating a stream"));
    return StreamHandle{stream};
  }
  Status destroy_stream(StreamHandle stream) override {
    return cuda_status(cudaStreamDestroy(native(stream)), "destroying a stream");
  }
  Status wait_for(StreamHandle stream) override {
    return cuda_status(cudaStreamSynchronize(native(stream)), "waiting for a stream");
  }

  Result<EventHandle> create_event() override {
    cudaEvent_t event = nullptr;
    QUIRE_RETURN_IF_ERROR(cuda_status(
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
        "creating an event"));
    return EventHandle{event};
  }
  Status destroy_event(EventHandle event) override {
    return cuda_status(cudaEventDestroy(native(event)), "destroying an event");
  }
  Status record(EventHandle event, StreamHandle stream) override {
    return cuda_status(cudaEventRecord(native(event), native(stream)), "recording an event");
  }
  Status hold(StreamHandle stream, EventHandle event) override {
    return cuda_status(cudaStreamWaitEvent(native(stream), native(event), 0), "holding a stream");
  }
  Result<bool> passed(EventHandle event) override {
    const cudaError_t error = cudaEventQuery(native(event));
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // an answer, not an error
      return false;
    }
    QUIRE_RETURN_IF_ERROR(cuda_status(error, "asking for an event"));
    return true;
  }
  Status wait_for(EventHandle event) override {
    return cuda_status(cudaEventSynchronize(native(event)), "waiting for an event");
  }

  Status begin_capture(StreamHandle stream) override {
    return cuda_status(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
                       "recording a graph");
  }
  Result<GraphHandle> end_capture(StreamHandle stream) override {
    cudaGraph_t graph = nullptr;
    QUIRE_RETURN_IF_ERROR(
        cuda_status(cudaStreamEndCapture(native(stream), &graph), "recording a graph"));
    cudaGraphExec_t exec = nullptr;
    const Status made = cuda_status(cudaGraphInstantiate(&exec, graph, 0), "instantiating a graph");
    const Status destroyed = cuda_status(cudaGraphDestroy(graph), "destroying a recording");
    QUIRE_RETURN_IF_ERROR(made);
    QUIRE_RETURN_IF_ERROR(destroyed);
    return GraphHandle{exec};
  }
  Status launch(GraphHandle graph, StreamHandle stream) override {
    return cuda_status(cudaGraphLaunch(native(graph), native(stream)), "launching a graph");
  }
  Status destroy_graph(GraphHandle graph) override {
    return cuda_status(cudaGraphExecDestroy(native(graph)), "destroying a graph");
  }

  Status copy(void* to, const void* from, std::int64_t bytes, StreamHandle stream) override {
    return cuda_status(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                                       native(stream)),
                       "copying");
  }
};

Result<DeviceProperties> read_properties(int index) {
  cudaDeviceProp p;
  QUIRE_RETURN_IF_ERROR(
      cuda_status(cudaGetDeviceProperties(&p, index), "reading a device's properties"));
  return DeviceProperties{
      .index = index,
      .name = p.name,
      .major = p.major,
      .minor = p.minor,
      .multiprocessors = p.multiProcessorCount,
      .threads_per_multiprocessor = p.maxThreadsPerMultiProcessor,
      .shared_bytes_per_block = static_cast<std::int64_t>(p.sharedMemPerBlockOptin),
      .shared_bytes_per_multiprocessor = static_cast<std::int64_t>(p.sharedMemPerMultiprocessor),
      .l2_bytes = p.l2CacheSize,
      .total_bytes = static_cast<std::int64_t>(p.totalGlobalMem)};
}

}  // namespace

DeviceReport probe_devices() {
  DeviceReport report;
  report.toolkit_version = CUDART_VERSION;
  if (cudaDriverGetVersion(&report.driver_version) != cudaSuccess) report.driver_version = 0;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    (void)cudaGetLastError();
    report.error = cudaGetErrorString(error);
    return report;
  }
  for (int i = 0; i < count; ++i) {
    auto properties = read_properties(i);
    if (properties.ok())
      report.devices.push_back(std::move(*properties));
    else
      report.error = properties.status().message();
  }
  return report;
}

Result<std::unique_ptr<DeviceDriver>> open_device(const DeviceProperties& device) {
  QUIRE_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device.index), "choosing the device"));
  QUIRE_RETURN_IF_ERROR(cuda_status(cudaFree(nullptr), "opening the device"));
  return std::unique_ptr<DeviceDriver>(new CudaDriver());
}

}  // namespace quire::cuda
