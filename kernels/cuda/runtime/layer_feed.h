/// Brings to the device what each layer needs while the layers before it compute.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/memory_pool.h"

namespace quire::cuda {

/// Two device buffers and a stream of copies. Layers come in order: while compute reads one buffer
/// the next layer's copies run into the other, and neither side waits for more than the other's use
/// of that buffer. Nobody blocks the calling thread.
///
/// Threads: those of the driver.
class LayerFeed {
 public:
  static constexpr std::size_t kBuffers = 2;
  /// Bytes [from, from + bytes) of pinned memory (of the device works as well) that come to offset
  /// `to` of the layer's buffer. They must stay until the layer's copies are over, as they are once
  /// work that follows take() on the compute stream has run.
  struct Piece {
    const void* from;
    std::int64_t to, bytes;
  };

  /// Buffers of `layer_bytes` > 0 out of `device`; both it and the driver must outlive the feed,
  /// and `compute` what is enqueued here. Errors: those of the driver and the pool.
  static Result<LayerFeed> create(DeviceDriver& driver, MemoryPool& device, StreamHandle compute,
                                  std::int64_t layer_bytes);

  /// What is enqueued on compute afterwards runs once copies under way are over, so that the
  /// buffers may be used for something else there.
  ~LayerFeed();
  LayerFeed(LayerFeed&&) noexcept = default;
  LayerFeed& operator=(LayerFeed&&) = delete;

  /// Starts the copies of the next layer. Errors: kInvalidArgument (a piece is not inside the
  /// buffer; nothing was started), kFailedPrecondition (both buffers hold layers that are not
  /// released), those of the driver.
  Status bring(std::span<const Piece> pieces);
  /// The buffer of the first layer not taken yet. What is enqueued on compute from now on runs once
  /// its copies are over. Errors: kFailedPrecondition (none was brought, or the one taken before is
  /// not released), those of the driver.
  Result<std::byte*> take();
  /// Compute needs the layer no more than for what is enqueued so far. Errors: kFailedPrecondition
  /// (none is taken), those of the driver.
  Status release();

 private:
  struct Slot {
    Buffer buffer;
    Event arrived;  // recorded on the stream of copies
    Event used;     // recorded on compute
  };
  LayerFeed(DeviceDriver& driver, StreamHandle compute, std::int64_t layer_bytes)
      : driver_(&driver), compute_(compute), layer_bytes_(layer_bytes) {}

  DeviceDriver* driver_;
  StreamHandle compute_;
  std::int64_t layer_bytes_;
  Stream copies_;
  std::array<Slot, kBuffers> slots_;
  std::size_t brought_ = 0, taken_ = 0, released_ = 0;  // layers so far
};

}  // namespace quire::cuda
