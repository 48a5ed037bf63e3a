#include "bench/gpu/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/hardware.cuh"

namespace quire::cuda::bench {
namespace {

/// Fills with even, small and reproducible values: a hash of the index.
__global__ void fill(void* out, std::int64_t n, DType dtype) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint32_t h = static_cast<std::uint32_t>(i) * 2654435761u;
    h ^= h >> 15;
    const float x = static_cast<float>(h % 2001u) / 1000.0f - 1.0f;
    switch (dtype) {
      case DType::kF32:
        static_cast<float*>(out)[i] = x;
        break;
      case DType::kF16:
        static_cast<F16*>(out)[i] = HardwareDevice::from_float<F16>(x);
        break;
      case DType::kBF16:
        static_cast<BF16*>(out)[i] = HardwareDevice::from_float<BF16>(x);
        break;
      case DType::kI8:
        static_cast<std::int8_t*>(out)[i] = static_cast<std::int8_t>(x * 127.0f);
        break;
      case DType::kF8:
        static_cast<F8*>(out)[i] = HardwareDevice::from_float<F8>(x);
        break;
    }
  }
}

class Timer {
 public:
  Timer() {
    Bench::check(cuda_status(cudaEventCreate(&begin_), "creating an event"), "timing");
    Bench::check(cuda_status(cudaEventCreate(&end_), "creating an event"), "timing");
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  double microseconds(cudaStream_t stream, int calls, const std::function<Status()>& work) {
    Bench::check(cuda_status(cudaEventRecord(begin_, stream), "recording"), "timing");
    for (int i = 0; i < calls; ++i) Bench::check(work(), "the operation");
    Bench::check(cuda_status(cudaEventRecord(end_, stream), "recording"), "timing");
    Bench::check(cuda_status(cudaEventSynchronize(end_), "waiting"), "timing");
    float ms = 0;
    Bench::check(cuda_status(cudaEventElapsedTime(&ms, begin_, end_), "reading events"), "timing");
    return ms * 1e3 / calls;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

void Bench::check(const Status& status, const std::string& what) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s: %s\n", what.c_str(), status.to_string().c_str());
  std::exit(1);
}

Bench::Bench(std::int64_t device_idx, bool quick, bool once) : quick_(quick), once_(once) {
  auto device = choose_device(probe_devices(), device_idx);
  check(device.status(), "choosing the device");
  device_ = *device;
  auto driver = open_device(device_);
  check(driver.status(), "opening the device");
  driver_ = std::move(*driver);
  auto stream = create_stream(*driver_);
  check(stream.status(), "creating a stream");
  stream_ = std::move(*stream);
  const auto memory = driver_->memory();
  check(memory.status(), "asking for memory");
  const auto budget = pool_budget(*memory, 0, "memory");
  check(budget.status(), "memory of the benchmark");
  pools_[0] = std::make_unique<MemoryPool>(*driver_, MemoryKind::kDevice, *budget);
  pools_[1] = std::make_unique<MemoryPool>(*driver_, MemoryKind::kPinned, std::int64_t{2} << 30);
}

void* Bench::bytes(std::int64_t n, MemoryKind kind) {
  auto buffer = pools_[kind == MemoryKind::kDevice ? 0 : 1]->allocate(n, stream());
  check(buffer.status(), "memory");
  buffers_.push_back(std::move(*buffer));
  return buffers_.back().data();
}

void* Bench::elements(std::int64_t n, DType dtype) {
  void* p = bytes(std::max<std::int64_t>(n, 1) * static_cast<std::int64_t>(dtype_bytes(dtype)));
  fill<<<1024, 256, 0, static_cast<cudaStream_t>(stream().stream)>>>(p, n, dtype);
  check(cuda_status(cudaGetLastError(), "filling memory"), "filling");
  return p;
}

float* Bench::floats(std::int64_t n) { return static_cast<float*>(elements(n, DType::kF32)); }

void* Bench::upload_bytes(const void* data, std::int64_t size) {
  void* p = bytes(size);
  check(cuda_status(cudaMemcpy(p, data, static_cast<std::size_t>(size), cudaMemcpyHostToDevice),
                    "uploading"),
        "uploading");
  return p;
}

KvView Bench::paged_kv(std::int64_t rows, std::int32_t kv_heads, std::int32_t head_dim,
                       DType dtype) {
  const auto e = static_cast<std::int64_t>(dtype_bytes(dtype));
  const std::int64_t pages = (rows + kPageTokens - 1) / kPageTokens,
                     half = std::int64_t{kPageTokens} * kv_heads * head_dim * e;
  auto* memory = static_cast<std::byte*>(elements(pages * 2 * half / e, dtype));
  std::vector<const void*> starts;
  std::vector<std::int32_t> positions;
  for (std::int64_t p = 0; p < pages; ++p) starts.push_back(memory + p * 2 * half);
  for (std::int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<std::int32_t>(r));
  return {upload(starts), upload(positions),          rows,         kv_heads, head_dim, dtype,
          half,           kPageTokens * head_dim * e, head_dim * e, true};
}

std::int64_t Bench::turns(double bytes) const {
  const double all = 4.0 * static_cast<double>(device_.l2_bytes);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(all / bytes)), 1, 64);
}

Row Bench::measure(std::string name, std::string shape, double bytes, double flops,
                   const std::function<Status()>& work) {
  const auto stream = static_cast<cudaStream_t>(this->stream().stream);
  Timer timer;
  if (once_) {
    const double us = timer.microseconds(stream, 1, work);
    return {std::move(name), std::move(shape), bytes, flops, us, us, us};
  }
  (void)timer.microseconds(stream, 3, work);  // warm-up: code is loaded and clocks rise
  const double once = timer.microseconds(stream, 3, work);
  const double sample_us = quick_ ? 2'000 : 10'000;
  const int calls = static_cast<int>(std::clamp(sample_us / std::max(once, 0.1), 1.0, 2000.0)),
            samples = quick_ ? 9 : 25;
  std::vector<double> us;
  for (int s = 0; s < samples; ++s) us.push_back(timer.microseconds(stream, calls, work));
  std::sort(us.begin(), us.end());
  Row row{std::move(name), std::move(shape),      bytes, flops, us[us.size() / 2],
          us.front(),      us[us.size() * 9 / 10]};
  std::fprintf(stderr, "%-24s %-44s %10.1f us  %8.1f GB/s  %7.1f TFLOP/s\n", row.name.c_str(),
               row.shape.c_str(), row.median_us, row.gb_per_s(), row.tflop_per_s());
  return row;
}

}  // namespace quire::cuda::bench
