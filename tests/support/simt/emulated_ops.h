/// A device for engine tests: DeviceOps whose kernels run under the emulation, whose memory is
/// registered buffer by buffer, and whose work really waits.
#pragma once

#include <memory>

#include "kernels/cuda/backend/ops.h"

namespace quire::simt {

/// When copies beside the computation really run: as early or as late as marks let them.
enum class Copies { kEarly, kLate };

struct EmulatedOpsOptions {
  /// Of the device; beyond, allocate() is kResourceExhausted
  std::int64_t memory_bytes = std::int64_t{1} << 33;
  Copies copies = Copies::kLate;
};

/// Nothing enqueued runs before synchronize(), so what the host reads or overwrites too early is
/// wrong or stale, and what a kernel reads outside the device's memory is an error. Memory is
/// filled with bytes that make NaNs when it is given out and when it is taken back. Matrix products
/// are plain loops with f32 sums. A graph runs the operations that it was recorded with, whatever
/// the caller would do now.
class EmulatedOps : public cuda::DeviceOps {
 public:
  /// Operations run so far, by code; for tests of what runs where.
  virtual std::int64_t runs(cuda::OpCode code) const = 0;
  /// Times that the device was waited for while something was enqueued.
  virtual std::int64_t waits() const = 0;
  virtual std::int64_t bytes_in_use() const = 0;
  /// The n-th allocation from now on fails, n = 0 the next one; a negative number: none.
  virtual void fail_allocation(std::int64_t n) = 0;
  /// The n-th copy on the copies' lane from now on fails, as fail_allocation().
  virtual void fail_copy(std::int64_t n) = 0;
  /// No graph can be recorded as long as this is set.
  virtual void fail_recording(bool fails) = 0;
  /// Graphs recorded so far; runs(OpCode::kStep) counts those launched.
  virtual std::int64_t recordings() const = 0;
  /// Every call from now on is kDeviceLost.
  virtual void lose() = 0;
};

std::shared_ptr<EmulatedOps> make_emulated_ops(const EmulatedOpsOptions& options = {});

}  // namespace quire::simt
