/// Runs CUDA kernel bodies on the host: blocks in turn, the threads of a block as fibers on the
/// calling thread (kernels/cuda/device.h).
///
/// A launch stops at the first fault that a GPU would miss or punish without a reason:
/// - an access outside the registered buffers, a misaligned one, or a write to a read-only buffer;
/// - shared memory that was not written or is in a data race;
/// - a barrier or warp operation that not all threads reach, or not at the same place;
/// - bytes of an asynchronous copy before it was waited for;
/// - a launch that no GPU accepts.
///
/// It cannot show speed, registers, or hardware rounding of the tensor cores.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>

#include "base/dtype.h"
#include "kernels/cuda/device.h"
#include "tests/support/simt/memory.h"

namespace quire::simt {

enum class Fault { kNone, kLaunch, kGlobalMemory, kSharedMemory, kDivergence };

struct Report {
  Fault fault = Fault::kNone;
  std::string message;  ///< the fault, its thread and block, and the place in the source
};

using Location = std::source_location;
class Block;

/// One array in the block's shared memory.
template <class T>
class SharedArray {
 public:
  class Cell {
   public:
    Cell(Block& block, std::size_t offset) : block_(block), offset_(offset) {}
    Cell(const Cell&) = default;
    operator T() const;  // NOLINT: reads like an element
    const Cell& operator=(T value) const;
    Cell& operator=(const Cell& other) {
      return static_cast<void>(*this = static_cast<T>(other)), *this;
    }
    const Cell& operator+=(T value) const { return *this = static_cast<T>(*this) + value; }

   private:
    Block& block_;
    std::size_t offset_;
  };
  SharedArray(Block& block, std::int64_t offset, std::int64_t count)
      : block_(&block), offset_(offset), count_(count) {}
  Cell operator[](std::int64_t i) const;

 private:
  template <class U>
  friend class SharedArray;
  friend class Device;
  Block* block_;
  std::int64_t offset_, count_;
};

/// The Device of device.h for one emulated thread.
class Device {
 public:
  Device(Block& block, int thread) : block_(block), thread_(thread) {}
  int thread_idx() const { return thread_; }
  int lane() const { return thread_ % 32; }
  int warp() const { return thread_ / 32; }
  int block_dim() const;
  cuda::Dim3 block_idx() const;
  cuda::Dim3 grid_dim() const;

  void sync_threads(Location at = Location::current());
  void sync_warp(Location at = Location::current());

  template <class T>
  T shuffle(T value, int source_lane, Location at = Location::current()) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    T out;
    std::memcpy(&out,
                exchange(&value, sizeof value, at) +
                    static_cast<std::size_t>(source_lane & 31) * kSlotBytes,
                sizeof out);
    return out;
  }
  template <class T>
  T shuffle_xor(T value, int mask, Location at = Location::current()) {
    return shuffle(value, lane() ^ mask, at);
  }
  std::uint32_t ballot(bool set, Location at = Location::current());

  template <class T>
  T load(const T* p, Location at = Location::current()) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
    touch(p, sizeof(T), Access::kRead, at);
    return *p;
  }
  template <class T>
  T load_once(const T* p, Location at = Location::current()) {
    static_assert(sizeof(T) == 16);
    return load(p, at);
  }
  template <class T>
  void store(T* p, std::type_identity_t<T> value, Location at = Location::current()) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
    touch(p, sizeof(T), Access::kReadWrite, at);
    *p = value;
  }

  template <class T>
  SharedArray<T> shared(std::int64_t byte_offset, std::int64_t count,
                        Location at = Location::current()) {
    check_shared(byte_offset, count, sizeof(T), at);
    return {block_, byte_offset, count};
  }
  template <class T>
  T shared_atomic_add(SharedArray<T> array, std::int64_t i, T value);

  void atomic_add(double* p, double value, Location at = Location::current()) {
    touch(p, sizeof *p, Access::kReadWrite, at);
    *p += value;
  }
  template <class T>
  T atomic_add(T* p, std::type_identity_t<T> value, Location at = Location::current()) {
    static_assert(std::is_unsigned_v<T> && sizeof(T) >= 4);
    touch(p, sizeof *p, Access::kReadWrite, at);
    return std::exchange(*p, *p + value);
  }

  /// The bytes arrive when the copy is waited for, not before.
  template <class T>
  void copy_async(SharedArray<T> array, std::int64_t i, const T* from,
                  Location at = Location::current()) {
    static_assert(sizeof(T) == 16);
    start_copy(array.offset_, i, array.count_, from, at);
  }
  template <class T>
  void copy_async_or_zero(SharedArray<T> array, std::int64_t i, const T* from, bool present,
                          Location at = Location::current()) {
    static_assert(sizeof(T) == 16);
    start_copy(array.offset_, i, array.count_, present ? from : nullptr, at);
  }
  void commit_copies();
  template <int kPending>
  void wait_copies() {
    finish_copies(kPending);
  }

  template <class E>
  void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], E,
           Location at = Location::current()) {
    mma(d, a, b, std::is_same_v<E, cuda::F16> ? DType::kF16 : DType::kBF16, at);
  }

  template <class T>
  void load_matrices(std::uint32_t (&d)[4], SharedArray<T> array, std::int64_t i,
                     Location at = Location::current()) {
    load_matrices(d, array.offset_, i, array.count_, sizeof(T), /*transposed=*/false, at);
  }
  template <class T>
  void load_matrices_transposed(std::uint32_t (&d)[4], SharedArray<T> array, std::int64_t i,
                                Location at = Location::current()) {
    load_matrices(d, array.offset_, i, array.count_, sizeof(T), /*transposed=*/true, at);
  }

  static float exp2_approx(float x) {
    const float y = std::exp2(x);
    return y < std::numeric_limits<float>::min() ? 0.0f : y;
  }
  static float to_float(float x) { return x; }
  static float to_float(cuda::F16 x) { return f16_to_f32(x.bits); }
  static float to_float(cuda::BF16 x) { return bf16_to_f32(x.bits); }
  static float to_float(cuda::F8 x) { return e4m3_to_f32(x.bits); }
  static std::uint32_t widen(std::uint16_t two) {
    const auto wide = [](int bits) {
      return std::uint32_t{f32_to_f16(e4m3_to_f32(static_cast<std::uint8_t>(bits)))};
    };
    return wide(two & 0xff) | wide(two >> 8) << 16;
  }
  template <class E>
  static E from_float(float x) {
    if constexpr (std::is_same_v<E, cuda::F16>)
      return {f32_to_f16(x)};
    else if constexpr (std::is_same_v<E, cuda::BF16>)
      return {f32_to_bf16(x)};
    else if constexpr (std::is_same_v<E, cuda::F8>)
      return {f32_to_e4m3(x)};
    else
      return x;
  }
  template <class E>
  static std::uint32_t from_floats(float low, float high) {
    return std::uint32_t{from_float<E>(low).bits} | std::uint32_t{from_float<E>(high).bits} << 16;
  }

  static constexpr std::size_t kSlotBytes = 32;

 private:
  /// Returns every lane's value once all lanes have arrived, kSlotBytes apart. It is valid until
  /// the lane's next warp operation.
  const std::byte* exchange(const void* value, std::size_t bytes, Location at);
  void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], DType type,
           Location at);
  void load_matrices(std::uint32_t (&d)[4], std::int64_t offset, std::int64_t index,
                     std::int64_t count, std::size_t size, bool transposed, Location at);
  /// A null `from` copies zeros.
  void start_copy(std::int64_t offset, std::int64_t index, std::int64_t count, const void* from,
                  Location at);
  void finish_copies(int most_pending);
  void touch(const void* p, std::size_t bytes, Access access, Location at);
  void check_shared(std::int64_t offset, std::int64_t count, std::size_t size, Location at);
  Block& block_;
  int thread_;
};

/// Returns the bytes of a shared array after checking the access by the running thread.
std::byte* shared_bytes(Block& block, std::int64_t offset, std::int64_t index, std::int64_t count,
                        std::size_t size, SharedMemory::Kind kind);

template <class T>
typename SharedArray<T>::Cell SharedArray<T>::operator[](std::int64_t i) const {
  // The access itself refuses an index outside the array, because it knows the running thread.
  return Cell(*block_,
              static_cast<std::size_t>(
                  i >= 0 && i < count_ ? offset_ + i * static_cast<std::int64_t>(sizeof(T)) : -1));
}
template <class T>
SharedArray<T>::Cell::operator T() const {
  T out;
  std::memcpy(&out,
              shared_bytes(block_, static_cast<std::int64_t>(offset_), 0, 1, sizeof(T),
                           SharedMemory::Kind::kRead),
              sizeof out);
  return out;
}
template <class T>
const typename SharedArray<T>::Cell& SharedArray<T>::Cell::operator=(T value) const {
  std::memcpy(shared_bytes(block_, static_cast<std::int64_t>(offset_), 0, 1, sizeof(T),
                           SharedMemory::Kind::kWrite),
              &value, sizeof value);
  return *this;
}
template <class T>
T Device::shared_atomic_add(SharedArray<T> array, std::int64_t i, T value) {
  std::byte* p = shared_bytes(block_, array.offset_, i, array.count_, sizeof(T),
                              SharedMemory::Kind::kAtomic);
  T before;
  std::memcpy(&before, p, sizeof before);
  const T after = static_cast<T>(before + value);
  std::memcpy(p, &after, sizeof after);
  return before;
}

/// Runs `body` in every thread of the launch.
Report run(const GlobalMemory& memory, const cuda::LaunchShape& shape, int most_threads,
           const std::function<void(Device&)>& body);

/// The Launcher of kernels/cuda launch functions. A fault becomes kInternal with the report's
/// message and stays in report().
class Launcher {
 public:
  explicit Launcher(const GlobalMemory& memory) : memory_(memory) {}
  template <class Kernel>
  Status launch(const cuda::LaunchShape& shape, const Kernel& kernel) {
    report_ = run(memory_, shape, Kernel::kThreads, [&kernel](Device& device) { kernel(device); });
    return report_.fault == Fault::kNone ? Status() : Status::internal(report_.message);
  }
  const Report& report() const { return report_; }

 private:
  const GlobalMemory& memory_;
  Report report_;
};

}  // namespace quire::simt
