/// A device for engine tests: DeviceOps whose kernels run under the emulation. Its memory is
/// registered buffer by buffer, and its work is really deferred.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/backend/ops.h"

namespace quire::simt {

/// When work beside the computation runs: as early or as late as events allow. Early, downloads run
/// before copies and these before the computation; late, all is the other way round. So of any two
/// streams each is once ahead of the other, and an event that is missing between them shows.
enum class Copies { kEarly, kLate };

struct EmulatedOpsOptions {
  /// The device's memory; beyond it, allocate() is kResourceExhausted.
  std::int64_t memory_bytes = std::int64_t{1} << 33;
  Copies copies = Copies::kLate;
  /// Shared by devices that send to each other; null: the device has its own.
  std::shared_ptr<std::recursive_mutex> lock;
};

/// Mail is what one device sends to others. Its sender must outlive the wait for it.
struct Mail {
  std::vector<std::byte> bytes;
  bool sent = false;
};

/// Nothing enqueued runs before synchronize(), so what the host reads or overwrites too early is
/// wrong or stale. A kernel that reads outside the device's memory is an error. Memory is filled
/// with bytes that make NaNs when it is allocated and when it is freed. Matrix products are plain
/// loops with f32 sums. A graph runs the operations that were recorded, whatever the caller would
/// enqueue now. Device memory faults when the host touches it.
class EmulatedOps : public cuda::DeviceOps {
 public:
  /// Returns how many operations of this code have run, for tests of what runs where.
  virtual std::int64_t runs(cuda::OpCode code) const = 0;
  /// Returns how often the device was waited for while something was enqueued.
  virtual std::int64_t waits() const = 0;
  virtual std::int64_t bytes_in_use() const = 0;
  /// Makes the n-th allocation from now fail; 0: the next, negative: none.
  virtual void fail_allocation(std::int64_t n) = 0;
  /// Makes the n-th copy beside the computation from now fail, counted as in fail_allocation().
  virtual void fail_copy(std::int64_t n) = 0;
  /// No graph can be recorded while this is set.
  virtual void fail_recording(bool fails) = 0;
  /// Returns the number of graphs recorded so far; runs(OpCode::kStep) counts those launched.
  virtual std::int64_t recordings() const = 0;
  /// Enqueue the sending of these bytes, and their receipt from another device, which runs as far
  /// as it must. Devices that wait for each other are an error.
  virtual Status send(const void* from, std::int64_t bytes, std::shared_ptr<Mail> mail) = 0;
  virtual Status receive(void* to, std::int64_t bytes, std::shared_ptr<Mail> mail,
                         EmulatedOps& sender) = 0;
  /// Runs what is enqueued up to the sending of this mail.
  virtual Status run_until_sent(const Mail& mail) = 0;
  /// Makes every later call return kDeviceLost.
  virtual void lose() = 0;
};

std::shared_ptr<EmulatedOps> make_emulated_ops(const EmulatedOpsOptions& options = {});

}  // namespace quire::simt
