/// This file declares what the body of a CUDA kernel may use and how it is launched.
///
/// A kernel is a struct of plain values with `static constexpr int kThreads` and
///   template <class Device> QUIRE_DEVICE void operator()(Device& device) const;
/// which every thread of a launch runs. A `static constexpr int kResident` says for how many blocks
/// a multiprocessor shall have registers; without it the compiler chooses. nvcc compiles it with
/// the Device of hardware.cuh. Any C++ compiler compiles it with the Device of tests/support/simt,
/// which runs threads as fibers and checks what a GPU does not. A Device offers to each thread:
///   int thread_idx(), block_dim()          one-dimensional blocks, a multiple of 32 threads
///   Dim3 block_idx(), grid_dim()
///   int lane(), warp()                     thread_idx % 32 and thread_idx / 32
///   void sync_threads(), sync_warp()       reached by all threads of the block, or of the warp
///   T shuffle(T, int lane), shuffle_xor(T, int mask); std::uint32_t ballot(bool)
///                                          reached by all lanes of the warp; T of 4 or 8 bytes
///   T load(const T*), void store(T*, T)    global memory, aligned to sizeof(T), at most 16 bytes
///   T load_once(const T*)                  the same load of 16 bytes that nobody writes meanwhile
///                                          and that is not needed again
///   shared<T>(byte_offset, count)          part of the launch's shared memory as an array; x[i] is
///                                          read and assigned. Name the type of a value read from
///                                          it (never auto)
///   T shared_atomic_add(array, i, T)       returns the previous value
///   atomic_add(double*, double)            global memory; the order of additions is open
///   T atomic_add(T*, T)                    the same for unsigned integers of 4 or 8 bytes; returns
///                                          the previous value
///   copy_async(array, i, const T*)         starts array[i] = *p for a T of 16 bytes
///   copy_async_or_zero(array, i, const T*, bool present)
///                                          the same; reads nothing and gives zeros if not present
///   commit_copies()                        closes a group of such copies
///   wait_copies<n>()                       waits until all groups but the last n have arrived, for
///                                          the thread that started them
///   mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], E)
///                                          d += a * b, 16x8x16, in the fragment layout of the PTX
///                                          instruction mma.m16n8k16; E is F16 or BF16
///   load_matrices(std::uint32_t (&d)[4], array, i), load_matrices_transposed(...)
///                                          four 8x8 matrices of 16-bit elements from shared
///                                          memory, as ldmatrix.x4 does. Lane 8 * m + r names row r
///                                          of matrix m: the 16 bytes at array[i]. In d[m] a lane
///                                          gets columns 2 * (lane % 4) and that plus 1 of row lane
///                                          / 4, or those rows of column lane / 4. Reached by all
///                                          lanes
///   float exp2_approx(float)               2^x to 2 units in the last place; results below the
///                                          smallest normal number are 0
///   float to_float(E), E from_float<E>(float)
///                                          E is float, F16, BF16 or F8; rounds to nearest even.
///                                          What is past the largest F8 becomes it
///   std::uint32_t widen(std::uint16_t)     two F8 as halves of a word, as two F16 with the same
///                                          values
///   std::uint32_t from_floats<E>(float low, float high)
///                                          two numbers rounded to F16 or BF16 as halves of a word
/// Bodies keep only trivially destructible objects. Mathematical functions are those of <math.h> in
/// f32.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/rows/kv_checks.h"

#ifdef __CUDACC__
#define QUIRE_DEVICE __device__ __forceinline__
#define QUIRE_HOST_DEVICE __host__ __device__ __forceinline__
#define QUIRE_UNROLL _Pragma("unroll")  // before loops over arrays that must stay in registers
#else
#define QUIRE_DEVICE inline
#define QUIRE_HOST_DEVICE inline
#define QUIRE_UNROLL
#endif

namespace quire::cuda {

struct Dim3 {
  std::int64_t x = 1, y = 1, z = 1;
};

struct LaunchShape {
  Dim3 grid;             ///< x < 2^31, y and z < 65536; an empty grid launches nothing
  int threads = 128;     ///< a multiple of 32
  int shared_bytes = 0;  ///< contents undefined at the start
};

struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};
/// E4M3 (base/dtype.h).
struct F8 {
  std::uint8_t bits;
};

/// The type as which tensor cores multiply elements of KV: E itself, and F16 for F8, which holds
/// all its values.
template <class E>
using ProductElement = std::conditional_t<std::is_same_v<E, F8>, F16, E>;

/// Holds the elements of one 16-byte access.
template <class E>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(E);
  E e[kCount];
};

inline constexpr float kInfinity = __builtin_huge_valf();

/// The shared memory that a block may have on every device from compute capability 8.0 on: 8.6, 8.9
/// and 12.0 have no more.
inline constexpr int kPortableSharedBytes = 99 * 1024;

/// Calls fn with a value of the element type that `dtype` names: f32, f16 or bf16. Errors:
/// kInvalidArgument (another dtype), those of fn.
template <class Fn>
Status with_element(DType dtype, const char* field, Fn fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float{});
    case DType::kF16:
      return fn(F16{});
    case DType::kBF16:
      return fn(BF16{});
    case DType::kI8:
    case DType::kF8:
      break;
  }
  return Status::invalid(field, "CUDA kernels take f32, f16 or bf16 here");
}

/// Calls fn with a value of the element type of KV in pages: those of with_element(), or f8.
/// Errors: kInvalidArgument (another dtype, or rows of f8 that are not whole pieces of 16 bytes),
/// those of fn.
template <class Fn>
Status with_kv_element(DType dtype, std::int32_t head_dim, const char* field, Fn fn) {
  if (dtype != DType::kF8) return with_element(dtype, field, fn);
  QUIRE_RETURN_IF_ERROR(quire::internal::check_kv_pieces(dtype, head_dim));
  return fn(F8{});
}

/// Calls fn with a value of the element type of results that a product reads: f32 or bf16. Errors:
/// as with_element().
template <class Fn>
Status with_product_input(DType dtype, const char* field, Fn fn) {
  if (dtype == DType::kF32) return fn(float{});
  if (dtype == DType::kBF16) return fn(BF16{});
  return Status::invalid(field, "products read f32 or bf16");
}
inline Status check_product_input(DType dtype, const char* field) {
  return with_product_input(dtype, field, [](auto) { return Status(); });
}

template <class Device>
QUIRE_DEVICE float warp_sum(Device& device, float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += device.shuffle_xor(x, mask);
  return x;
}

/// Returns the sum over the block, with the same bits in every thread. `scratch` holds one float
/// per warp and may be reused after the next sync_threads().
template <class Device, class SharedFloats>
QUIRE_DEVICE float block_sum(Device& device, float x, SharedFloats scratch) {
  x = warp_sum(device, x);
  if (device.lane() == 0) scratch[device.warp()] = x;
  device.sync_threads();
  float sum = 0;
  for (int w = 0; w < device.block_dim() / 32; ++w) sum += scratch[w];
  return sum;
}

/// Returns whether rows that start at p, ld floats apart, allow accesses of 16 bytes.
inline bool wide_rows(const void* p, std::int64_t ld) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

/// Writes sixteen F8, two in each element, as F16 to two packs of shared memory from `at` on.
template <class Device, class Packs>
QUIRE_DEVICE void store_widened(Device& device, const Pack<std::uint16_t>& from, Packs to,
                                std::int64_t at) {
  QUIRE_UNROLL
  for (int half = 0; half < 2; ++half) {
    Pack<std::uint32_t> pack;
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) pack.e[i] = device.widen(from.e[half * 4 + i]);
    to[at + half] = pack;
  }
}

/// Loads elements [0, 8) at p, which is aligned to 16 bytes, or to 8 for F8.
template <class E, class Device>
QUIRE_DEVICE void load8(Device& device, const void* p, float (&out)[8]) {
  if constexpr (std::is_same_v<E, F8>) {
    const std::uint64_t bits = device.load(static_cast<const std::uint64_t*>(p));
    for (int c = 0; c < 8; ++c)
      out[c] = device.to_float(F8{static_cast<std::uint8_t>(bits >> 8 * c)});
    return;
  } else {
    const auto* packs = static_cast<const Pack<E>*>(p);
    for (int i = 0; i < 8 / Pack<E>::kCount; ++i) {
      const Pack<E> pack = device.load(packs + i);
      for (int c = 0; c < Pack<E>::kCount; ++c)
        out[i * Pack<E>::kCount + c] = device.to_float(pack.e[c]);
    }
  }
}

}  // namespace quire::cuda
