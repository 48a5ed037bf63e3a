// Measures the device's ceilings: copying, reading, copies from pinned memory, bf16 products of
// cuBLASLt.
#include <cublasLt.h>

#include "bench/gpu/measure.h"
#include "kernels/cuda/hardware.cuh"

namespace quire::cuda::bench {
namespace {

__global__ void read_all(const uint4* from, std::int64_t n, unsigned* out) {
  unsigned sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const uint4 x = from[i];
    sum ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678u) *out = sum;  // keeps the compiler from removing the loads
}

Status blas_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Status::internal(std::string(what) + ": " + cublasLtGetStatusString(status));
}

/// C = A^T B, square, bf16 in and out, f32 sums.
class Matmul {
 public:
  Matmul(Bench& bench, std::int64_t n) : stream_(static_cast<cudaStream_t>(bench.stream().stream)) {
    a_ = bench.elements(n * n, DType::kBF16);
    b_ = bench.elements(n * n, DType::kBF16);
    c_ = bench.elements(n * n, DType::kBF16);
    workspace_ = bench.bytes(kWorkspace);
    Bench::check(blas_status(cublasLtCreate(&handle_), "cublasLtCreate"), "cuBLASLt");
    Bench::check(blas_status(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                             "cublasLtMatmulDescCreate"),
                 "cuBLASLt");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    Bench::check(blas_status(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                            &transposed, sizeof transposed),
                             "transposing"),
                 "cuBLASLt");
    Bench::check(
        blas_status(cublasLtMatrixLayoutCreate(&layout_, CUDA_R_16BF, static_cast<std::uint64_t>(n),
                                               static_cast<std::uint64_t>(n), n),
                    "cublasLtMatrixLayoutCreate"),
        "cuBLASLt");
    cublasLtMatmulPreference_t preference;
    Bench::check(
        blas_status(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"),
        "cuBLASLt");
    Bench::check(blas_status(cublasLtMatmulPreferenceSetAttribute(
                                 preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                 sizeof kWorkspace),
                             "workspace"),
                 "cuBLASLt");
    int found = 0;
    Bench::check(
        blas_status(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, layout_, layout_, layout_,
                                                   layout_, preference, 1, &choice_, &found),
                    "choosing an algorithm"),
        "cuBLASLt");
    cublasLtMatmulPreferenceDestroy(preference);
    if (found == 0)
      Bench::check(Status::internal("cuBLASLt has no algorithm for bf16"), "cuBLASLt");
  }
  ~Matmul() {
    cublasLtMatrixLayoutDestroy(layout_);
    cublasLtMatmulDescDestroy(operation_);
    cublasLtDestroy(handle_);
  }
  Status run() {
    const float one = 1, zero = 0;
    return blas_status(
        cublasLtMatmul(handle_, operation_, &one, a_, layout_, b_, layout_, &zero, c_, layout_, c_,
                       layout_, &choice_.algo, workspace_, kWorkspace, stream_),
        "cublasLtMatmul");
  }

 private:
  static constexpr std::size_t kWorkspace = 64u << 20;
  cudaStream_t stream_;
  void *a_, *b_, *c_, *workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

}  // namespace

Ceilings measure_ceilings(Bench& bench) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const auto stream = static_cast<cudaStream_t>(bench.stream().stream);
  Ceilings c;
  {
    void *from = bench.elements(kBytes, DType::kI8), *to = bench.bytes(kBytes);
    c.copy = bench.measure("ceiling copy", "1 GiB, device to device, read and written",
                           2.0 * kBytes, 0,
                           [&] { return bench.driver().copy(to, from, kBytes, bench.stream()); });
    auto* out = static_cast<unsigned*>(to);
    const auto blocks = static_cast<unsigned>(bench.device().multiprocessors * 16);
    c.read = bench.measure("ceiling read", "1 GiB", kBytes, 0, [&] {
      read_all<<<blocks, 256, 0, stream>>>(static_cast<const uint4*>(from), kBytes / 16, out);
      return cuda_status(cudaGetLastError(), "reading");
    });
    void* pinned = bench.bytes(kBytes / 4, MemoryKind::kPinned);
    c.host_to_device = bench.measure(
        "ceiling host to device", "256 MiB, pinned", kBytes / 4, 0,
        [&] { return bench.driver().copy(to, pinned, kBytes / 4, bench.stream()); });
    bench.release();
  }
  constexpr std::int64_t kN = 8192;
  {
    Matmul matmul(bench, kN);
    c.matmul = bench.measure("ceiling matmul", "8192^3 bf16, cuBLASLt", 0, 2.0 * kN * kN * kN,
                             [&] { return matmul.run(); });
  }
  bench.release();
  return c;
}

}  // namespace quire::cuda::bench
