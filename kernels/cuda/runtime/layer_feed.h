/// This file declares a prefetcher that copies each layer's data to the device while earlier layers
/// compute.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/memory_pool.h"

namespace quire::cuda {

/// Double-buffers layers on the device with a separate copy stream. Layers come in order: while
/// compute reads one buffer, the next layer's copies run into the other. Each stream waits only for
/// the other's use of the same buffer. No call blocks the calling thread.
///
/// Threads: those of the driver.
class LayerFeed {
 public:
  static constexpr std::size_t kBuffers = 2;
  /// Bytes [from, from + bytes) of pinned or device memory that are copied to offset `to` of the
  /// layer's buffer. They must stay valid until the layer's copies finish. That is so once work
  /// that follows take() on the compute stream has run.
  struct Piece {
    const void* from;
    std::int64_t to, bytes;
  };

  /// Allocates buffers of `layer_bytes` > 0 from `device`, which must outlive the feed, as must the
  /// driver. `compute` must outlive the work enqueued here. Errors: those of the driver and the
  /// pool.
  static Result<LayerFeed> create(DeviceDriver& driver, MemoryPool& device, StreamHandle compute,
                                  std::int64_t layer_bytes);

  /// Makes later work on `compute` wait for running copies, so that the buffers may be reused on
  /// that stream.
  ~LayerFeed();
  LayerFeed(LayerFeed&&) noexcept = default;
  LayerFeed& operator=(LayerFeed&&) = delete;

  /// Starts the copies of the next layer. Errors: kInvalidArgument (a piece is outside the buffer;
  /// nothing was started), kFailedPrecondition (both buffers hold layers that are not released),
  /// those of the driver.
  Status bring(std::span<const Piece> pieces);
  /// Returns the buffer of the first layer not taken yet. Later work on `compute` runs after its
  /// copies. Errors: kFailedPrecondition (no layer was prefetched, or the one taken before is not
  /// released), those of the driver.
  Result<std::byte*> take();
  /// Releases the taken layer; only work already enqueued on `compute` still uses it. Errors:
  /// kFailedPrecondition (none is taken), those of the driver.
  Status release();

 private:
  struct Slot {
    Buffer buffer;
    Event arrived;  // recorded on the copy stream
    Event used;     // recorded on compute
  };
  LayerFeed(DeviceDriver& driver, StreamHandle compute, std::int64_t layer_bytes)
      : driver_(&driver), compute_(compute), layer_bytes_(layer_bytes) {}

  DeviceDriver* driver_;
  StreamHandle compute_;
  std::int64_t layer_bytes_;
  Stream copies_;
  std::array<Slot, kBuffers> slots_;
  std::size_t brought_ = 0, taken_ = 0, released_ = 0;  // numbers of layers so far
};

}  // namespace quire::cuda
