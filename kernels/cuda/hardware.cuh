/// This file holds the Device of device.h on a GPU, and the Launcher that starts kernels on a
/// stream. It is compiled only by nvcc.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/hardware_status.h"
#include "kernels/cuda/runtime/stream.h"

namespace quire::cuda {

class HardwareDevice {
 public:
  __device__ int thread_idx() const { return static_cast<int>(threadIdx.x); }
  __device__ int block_dim() const { return static_cast<int>(blockDim.x); }
  __device__ int lane() const { return static_cast<int>(threadIdx.x % 32); }
  __device__ int warp() const { return static_cast<int>(threadIdx.x / 32); }
  __device__ Dim3 block_idx() const { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
  __device__ Dim3 grid_dim() const { return {gridDim.x, gridDim.y, gridDim.z}; }

  __device__ void sync_threads() { __syncthreads(); }
  __device__ void sync_warp() { __syncwarp(); }
  template <class T>
  __device__ T shuffle(T value, int source_lane) {
    return __shfl_sync(kAllLanes, value, source_lane);
  }
  template <class T>
  __device__ T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(kAllLanes, value, mask);
  }
  __device__ std::uint32_t ballot(bool set) { return __ballot_sync(kAllLanes, set); }

  template <class T>
  __device__ T load(const T* p) {
    if constexpr (sizeof(T) == 16) {
      const uint4 bits = *reinterpret_cast<const uint4*>(p);
      T out;
      memcpy(&out, &bits, sizeof out);
      return out;
    } else {
      return *p;
    }
  }
  template <class T>
  __device__ T load_once(const T* p) {
    static_assert(sizeof(T) == 16);
    uint4 bits;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
        : "l"(__cvta_generic_to_global(p)));
    T out;
    memcpy(&out, &bits, sizeof out);
    return out;
  }
  template <class T>
  __device__ void store(T* p, std::type_identity_t<T> value) {
    if constexpr (sizeof(T) == 16) {
      uint4 bits;
      memcpy(&bits, &value, sizeof bits);
      *reinterpret_cast<uint4*>(p) = bits;
    } else {
      *p = value;
    }
  }

  template <class T>
  __device__ T* shared(std::int64_t byte_offset, std::int64_t) {
    extern __shared__ uint4 quire_shared_memory[];
    return reinterpret_cast<T*>(reinterpret_cast<char*>(quire_shared_memory) + byte_offset);
  }
  template <class T>
  __device__ T shared_atomic_add(T* array, std::int64_t i, T value) {
    return atomicAdd(array + i, value);
  }

  __device__ void atomic_add(double* p, double value) { atomicAdd(p, value); }
  template <class T>
  __device__ T atomic_add(T* p, std::type_identity_t<T> value) {
    static_assert(std::is_unsigned_v<T> && sizeof(T) >= 4);
    return atomicAdd(p, value);
  }

  template <class T>
  __device__ void copy_async(T* array, std::int64_t i, const T* from) {
    static_assert(sizeof(T) == 16);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(array + i))),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
  }
  template <class T>
  __device__ void copy_async_or_zero(T* array, std::int64_t i, const T* from, bool present) {
    static_assert(sizeof(T) == 16);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(array + i))),
                 "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
                 : "memory");
  }
  __device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int kPending>
  __device__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }

  __device__ void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                      F16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  __device__ void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                      BF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

  template <class T>
  __device__ void load_matrices(std::uint32_t (&d)[4], const T* array, std::int64_t i) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(array + i)))
                 : "memory");
  }
  template <class T>
  __device__ void load_matrices_transposed(std::uint32_t (&d)[4], const T* array, std::int64_t i) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(array + i)))
                 : "memory");
  }

  __device__ static float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ static float to_float(float x) { return x; }
  __device__ static float to_float(F16 x) { return __half2float(__ushort_as_half(x.bits)); }
  __device__ static float to_float(BF16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
  }
  __device__ static float to_float(F8 x) {
    return to_float(F16{static_cast<std::uint16_t>(widen(x.bits))});
  }
  __device__ static std::uint32_t widen(std::uint16_t two) {
#if __CUDA_ARCH__ >= 890
    std::uint32_t out;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(two));
    return out;
#else
    // In the place of an F16's exponent and fraction a value is 2^-8 times as large.
    const std::uint32_t apart = __byte_perm(two, 0, 0x1404), low = apart & 0x7f007f00u,
                        small = (apart & 0x80008000u) | low >> 1;
    __half2 wide;
    memcpy(&wide, &small, sizeof wide);
    wide = __hmul2(wide, __float2half2_rn(256.0f));
    std::uint32_t out;
    memcpy(&out, &wide, sizeof out);
    // All bits set is not a number, and 480 so far.
    const std::uint32_t none = (low + 0x01000100u) & 0x80008000u;
    return out | (none - (none >> 5));
#endif
  }
  template <class E>
  __device__ static E from_float(float x) {
    if constexpr (std::is_same_v<E, F16>)
      return {__half_as_ushort(__float2half_rn(x))};
    else if constexpr (std::is_same_v<E, BF16>)
      return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
    else if constexpr (std::is_same_v<E, F8>)
      return {static_cast<std::uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3))};
    else
      return x;
  }
  template <class E>
  __device__ static std::uint32_t from_floats(float low, float high) {
    std::uint32_t out;
    if constexpr (std::is_same_v<E, F16>) {
      const __half2 two = __floats2half2_rn(low, high);
      memcpy(&out, &two, sizeof out);
    } else {
      const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
      memcpy(&out, &two, sizeof out);
    }
    return out;
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffu;
};

/// Returns Kernel::kResident, or 0: the compiler chooses.
template <class Kernel>
constexpr int resident_blocks_wanted() {
  if constexpr (requires { Kernel::kResident; })
    return Kernel::kResident;
  else
    return 0;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, resident_blocks_wanted<Kernel>())
    run_kernel(const __grid_constant__ Kernel kernel) {
  HardwareDevice device;
  kernel(device);
}

/// Enqueues kernels on one stream. Errors: see kernels.h.
class HardwareLauncher {
 public:
  explicit HardwareLauncher(StreamHandle stream)
      : stream_(static_cast<cudaStream_t>(stream.stream)) {}

  template <class Kernel>
  Status launch(const LaunchShape& shape, const Kernel& kernel) {
    const Dim3& g = shape.grid;
    if (g.x == 0 || g.y == 0 || g.z == 0) return {};
    if (g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
      return Status::invalid("rows", "more work than one launch takes");
    if (shape.shared_bytes > kSharedWithoutAsking) {
      QUIRE_RETURN_IF_ERROR(cuda_status(
          cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shape.shared_bytes),
          "asking for shared memory"));
    }
    run_kernel<<<dim3(static_cast<unsigned>(g.x), static_cast<unsigned>(g.y),
                      static_cast<unsigned>(g.z)),
                 static_cast<unsigned>(shape.threads), static_cast<std::size_t>(shape.shared_bytes),
                 stream_>>>(kernel);
    return cuda_status(cudaGetLastError(), "launching a kernel");
  }

 private:
  static constexpr int kSharedWithoutAsking = 48 * 1024;
  cudaStream_t stream_;
};

}  // namespace quire::cuda
