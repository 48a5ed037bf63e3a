#include "engine/residency/memory_speed.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "base/index.h"
#include "engine/compute/compute.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_gather.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::max(1e-3, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
}

MemorySpeed of_host(TransferStreams& stream) {
  constexpr std::int64_t kBytes = std::int64_t{16} << 20, kPiece = std::int64_t{1} << 20;
  const std::vector<std::byte> from(kBytes);
  std::vector<std::byte> to(kBytes);
  MemorySpeed speed;
  for (int round = 0; round < 2; ++round) {  // the first maps the pages
    const auto started = Clock::now();
    parallel_for(kBytes, kPiece, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, to_size(end - begin));
    });
    speed.read_bytes_per_ms = 2 * kBytes / ms_since(started);
    const auto copied = stream.wait(stream.submit([&] {
      std::memcpy(to.data(), from.data(), kBytes);
      return Status();
    }));
    speed.copy_bytes_per_ms = kBytes / std::max(1e-3, copied.copy_ms);
  }
  return speed;
}

/// Pages holds pages of one KV head that rows are gathered from or to.
class Pages {
 public:
  static constexpr std::int32_t kDim = 128;
  static constexpr std::int64_t kRowBytes = kDim * 2, kPageBytes = 2 * kPageTokens * kRowBytes;

  static Result<Pages> allocate(const std::shared_ptr<ComputeMemory>& memory, std::int64_t bytes,
                                MemoryPlace place) {
    QUIRE_ASSIGN_OR_RETURN(void* const data, memory->allocate(bytes, place));
    Pages out;
    out.data_ = {data, [memory, place](void* p) { memory->release(p, place); }};
    for (std::int64_t at = 0; at + kPageBytes <= bytes; at += kPageBytes)
      out.pages_.push_back(static_cast<std::byte*>(data) + at);
    return out;
  }
  MutableKvView target() const {
    return {.pages = pages_.data(),
            .num_rows = count_of(pages_) * kPageTokens,
            .num_kv_heads = 1,
            .head_dim = kDim,
            .dtype = DType::kBF16,
            .kv_stride = kPageTokens * kRowBytes,
            .head_stride = kPageBytes,
            .token_stride = kRowBytes};
  }
  KvView source() const {
    const MutableKvView t = target();
    return {.pages = pages_.data(),
            .positions = nullptr,
            .num_rows = t.num_rows,
            .num_kv_heads = 1,
            .head_dim = kDim,
            .dtype = DType::kBF16,
            .kv_stride = t.kv_stride,
            .head_stride = t.head_stride,
            .token_stride = t.token_stride,
            .sorted = false};
  }

 private:
  std::shared_ptr<void> data_;
  std::vector<void*> pages_;
};

/// Returns the milliseconds in which a device's kernel copies `bytes` from `place` to its own
/// memory. It times the second copy, when the buffers are allocated.
Result<double> copy_ms(Compute& compute, std::int64_t bytes, MemoryPlace place) {
  QUIRE_ASSIGN_OR_RETURN(const Pages from, Pages::allocate(compute.memory(), bytes, place));
  QUIRE_ASSIGN_OR_RETURN(const Pages to,
                         Pages::allocate(compute.memory(), bytes, MemoryPlace::kDevice));
  std::vector<KvMove> moves;
  for (std::int32_t row = 0; row < to.target().num_rows; row += kPageTokens)
    moves.push_back({0, row, row, kPageTokens});
  double ms = 0;
  for (int round = 0; round < 2; ++round) {
    const auto started = Clock::now();
    QUIRE_RETURN_IF_ERROR(compute.kv().gather(
        {from.source(), to.target(), moves.data(), count_of(moves), kPageTokens}));
    QUIRE_RETURN_IF_ERROR(compute.synchronize());
    ms = ms_since(started);
  }
  return ms;
}

/// Increases the bytes until a copy takes long enough to be timed.
Result<double> bytes_per_ms(Compute& compute, MemoryPlace place) {
  constexpr std::int64_t kLeast = std::int64_t{256} << 10, kMost = std::int64_t{128} << 20;
  constexpr double kLongEnough = 1.0;
  for (std::int64_t bytes = kLeast;; bytes *= 8) {
    QUIRE_ASSIGN_OR_RETURN(const double ms, copy_ms(compute, bytes, place));
    if (ms >= kLongEnough || 8 * bytes > kMost) return static_cast<double>(bytes) / ms;
  }
}

}  // namespace

Result<MemorySpeed> measure_memory_speed(Compute& compute, TransferStreams& stream) {
  if (compute.on_host()) return of_host(stream);
  MemorySpeed speed;
  QUIRE_ASSIGN_OR_RETURN(const double both_ways, bytes_per_ms(compute, MemoryPlace::kDevice));
  speed.read_bytes_per_ms = 2 * both_ways;
  QUIRE_ASSIGN_OR_RETURN(speed.copy_bytes_per_ms, bytes_per_ms(compute, MemoryPlace::kPinned));
  return speed;
}

}  // namespace quire
