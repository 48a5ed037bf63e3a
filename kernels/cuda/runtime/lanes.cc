#include "kernels/cuda/runtime/lanes.h"

namespace quire::cuda {

Result<LaneStreams> LaneStreams::create(DeviceDriver& driver) {
  constexpr std::array<StreamPriority, kLanes> kPriorities = {
      StreamPriority::kNormal, StreamPriority::kLow, StreamPriority::kHigh};
  LaneStreams lanes;
  for (std::size_t i = 0; i < kLanes; ++i) {
    QUIRE_ASSIGN_OR_RETURN(lanes.streams_[i], create_stream(driver, kPriorities[i]));
  }
  return lanes;
}

Status LaneStreams::wait(DeviceDriver& driver) const {
  Status first;
  for (const Stream& stream : streams_) {
    const Status status = driver.wait_for(stream.get());
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace quire::cuda
