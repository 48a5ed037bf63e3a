/// This file declares the streams of a device that is computed on.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/runtime/handles.h"

namespace quire::cuda {

/// The streams of a device. kCompute runs operations in order. The others run concurrently with it
/// and with each other, each in order: kCopies copies much (stored rows, rows of layers that left
/// the device), kDownloads brings small results to the host, which wait behind none of that.
enum class Lane : std::uint32_t { kCompute, kCopies, kDownloads };
inline constexpr std::size_t kLanes = 3;

/// Owns a stream for each lane. The priority of kDownloads is the highest, that of kCopies the
/// lowest. CUDA heeds priorities where thread blocks of kernels wait for a multiprocessor; the
/// order of copies between host and device is the hardware's. Threads: as DeviceDriver.
class LaneStreams {
 public:
  /// Errors: those of create_stream(); no stream is left behind then.
  static Result<LaneStreams> create(DeviceDriver& driver);
  StreamHandle of(Lane lane) const { return streams_.at(static_cast<std::size_t>(lane)).get(); }
  /// Blocks until everything enqueued on any lane has run. Errors: the first one, after all were
  /// waited for.
  Status wait(DeviceDriver& driver) const;

 private:
  std::array<Stream, kLanes> streams_;
};

}  // namespace quire::cuda
