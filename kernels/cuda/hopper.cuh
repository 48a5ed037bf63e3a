/// This file holds what sm_90a adds to the Device of device.h: barriers in shared memory, products
/// of whole warpgroups (wgmma) and the layout of their operands. It is compiled only by nvcc, for
/// sm_90a alone. Addresses are those of the shared window, in bytes.
///
/// Operands lie in shared memory in rows of 128 bytes, 64 elements of 16 bits, that start at a
/// multiple of 1,024 bytes. Of the eight 16-byte packs of row r, pack c lies at place c ^ (r % 8),
/// so that the same pack of eight rows covers all banks. Wider rows are split into such blocks of
/// columns. Products read a block in two ways:
///   rows are keys, 16 columns are summed    the next eight rows lie 1,024 bytes on, the next 16
///                                           columns 32 bytes (the hardware swizzles the address)
///   16 rows are summed, columns are outputs the next eight rows lie 1,024 bytes on; the next 64
///                                           columns are another block, as far as the caller says
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device.h"

namespace quire::cuda::hopper {

inline constexpr int kRowBytes = 128, kEightRows = 8 * kRowBytes;

/// Returns the byte of pack `pack`, 0..7, of row `row` within a block of columns.
QUIRE_HOST_DEVICE int swizzled(int row, int pack) {
  return row * kRowBytes + ((pack ^ (row % 8)) * 16);
}

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// ---- Barriers ------------------------------------------------------------------------------

/// A barrier's phase ends with the `arrivals`-th arrival; phases have parity 0, 1, 0, ...
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Arrives; what the thread wrote before is seen by those that wait for the phase.
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives as soon as all copies that the thread started have arrived. It counts as one of the
/// barrier's arrivals.
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Waits until the last phase of that parity has ended. A new barrier counts as one whose phase of
/// parity 1 has just ended.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
  __syncwarp();  // products are for whole warps
}
/// Meets `kMeeting` threads at hardware barrier `id`. Reached by whole warps.
template <int kMeeting>
__device__ __forceinline__ void meet(int id) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "n"(kMeeting) : "memory");
}
/// Makes writes to shared memory that the thread made, or has learnt of, visible to wgmma.
__device__ __forceinline__ void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Copies 16 bytes, or zeros if not present. No cache line is kept in the first level.
__device__ __forceinline__ void copy16(std::uint32_t to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ __forceinline__ void copy16_or_zero(std::uint32_t to, const char* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Gives registers of the calling warpgroup back to the block, or takes them.
template <int kRegisters>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Products ------------------------------------------------------------------------------

/// Describes an operand at `address` in the layout above. `next_block` is the distance of the next
/// 64 output columns; operands that are summed over columns do not use it.
QUIRE_HOST_DEVICE std::uint64_t describe_operand(std::uint32_t address, std::uint32_t next_block,
                                                 std::uint32_t next_eight_rows = kEightRows) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | std::uint64_t{next_eight_rows / 16} << 32 |
         std::uint64_t{next_block / 16} << 16 | ((address & 0x3ffff) / 16);
}
/// Returns the description of the operand `bytes` further on.
QUIRE_HOST_DEVICE std::uint64_t advanced(std::uint64_t operand, int bytes) {
  return operand + static_cast<std::uint64_t>(bytes / 16);
}

/// Orders what the thread did to registers before products that use them.
__device__ __forceinline__ void before_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes a group of products.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until all groups but the last kPending are done.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of registers across this place. Registers of products that
/// are under way must not be touched, which it cannot know.
template <int kCount>
__device__ __forceinline__ void pin(float (&x)[kCount]) {
  QUIRE_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&x)[kCount]) {
  QUIRE_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

__device__ __forceinline__ void pin(const char*& x) { asm volatile("" : "+l"(x)::"memory"); }
__device__ __forceinline__ void pin(std::int32_t& x) { asm volatile("" : "+r"(x)::"memory"); }

#define QUIRE_SUMS_8(d, i)                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define QUIRE_SUMS_32(d, i) \
  QUIRE_SUMS_8(d, i), QUIRE_SUMS_8(d, i + 8), QUIRE_SUMS_8(d, i + 16), QUIRE_SUMS_8(d, i + 24)
#define QUIRE_NAMES_32                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES_64                                                                           \
  QUIRE_NAMES_32                                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// A warpgroup computes 64 rows. Of output columns 8 * n to 8 * n + 7, warp w and lane l hold
// columns 2 * (l % 4) and that plus 1: of row 16 * w + l / 4 in d[4 * n] and d[4 * n + 1], of the
// row eight further on in d[4 * n + 2] and d[4 * n + 3]. A left operand in registers has the same
// layout, two blocks of eight columns in four words.

/// d = a * b^T, or d += with `accumulate`, over 16 columns of 64 rows at `a` and 128 rows at `b`.
#define QUIRE_ROWS_TIMES_ROWS(E, type)                                                           \
  __device__ __forceinline__ void multiply_rows(float(&d)[64], std::uint64_t a, std::uint64_t b, \
                                                int accumulate, E) {                             \
    asm volatile(                                                                                \
        "{\n"                                                                                    \
        ".reg .pred p;\n"                                                                        \
        "setp.ne.b32 p, %66, 0;\n"                                                               \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" QUIRE_NAMES_64         \
        "}, "                                                                                    \
        "%64, %65, p, 1, 1, 0, 0;\n"                                                             \
        "}"                                                                                      \
        : QUIRE_SUMS_32(d, 0), QUIRE_SUMS_32(d, 32)                                              \
        : "l"(a), "l"(b), "r"(accumulate));                                                      \
  }
QUIRE_ROWS_TIMES_ROWS(F16, "f16")
QUIRE_ROWS_TIMES_ROWS(BF16, "bf16")
#undef QUIRE_ROWS_TIMES_ROWS

/// d += a * b, of 16 columns of 64 rows in registers and 16 rows at `b` of 128 columns, or of 64.
#define QUIRE_ADD_ROWS(E, type)                                                                   \
  __device__ __forceinline__ void add_rows(float(&d)[64], std::uint32_t a0, std::uint32_t a1,     \
                                           std::uint32_t a2, std::uint32_t a3, std::uint64_t b,   \
                                           E) {                                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" QUIRE_NAMES_64 \
                 "}, "                                                                            \
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                         \
                 : QUIRE_SUMS_32(d, 0), QUIRE_SUMS_32(d, 32)                                      \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                                   \
  }                                                                                               \
  __device__ __forceinline__ void add_rows(float(&d)[32], std::uint32_t a0, std::uint32_t a1,     \
                                           std::uint32_t a2, std::uint32_t a3, std::uint64_t b,   \
                                           E) {                                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" QUIRE_NAMES_32  \
                 "}, "                                                                            \
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                         \
                 : QUIRE_SUMS_32(d, 0)                                                            \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                                   \
  }
QUIRE_ADD_ROWS(F16, "f16")
QUIRE_ADD_ROWS(BF16, "bf16")
#undef QUIRE_ADD_ROWS
#undef QUIRE_NAMES_64
#undef QUIRE_NAMES_32
#undef QUIRE_SUMS_32
#undef QUIRE_SUMS_8

}  // namespace quire::cuda::hopper
