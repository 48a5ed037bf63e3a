/// This file declares streams, events and graphs that destroy themselves.
#pragma once

#include <utility>

#include "kernels/cuda/runtime/driver.h"

namespace quire::cuda {

/// Owns one handle of a driver, which must outlive it. Move-only; a moved-from object owns nothing.
template <class Handle, Status (DeviceDriver::*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(DeviceDriver& driver, Handle handle) : driver_(&driver), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), handle_(std::exchange(other.handle_, {})) {}
  Owned& operator=(Owned&& other) noexcept {
    Owned mine(std::move(*this));  // destroyed at the end
    driver_ = std::exchange(other.driver_, nullptr);
    handle_ = std::exchange(other.handle_, {});
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    // The next call that does real work reports a lost context
    if (driver_ != nullptr) (void)(driver_->*kDestroy)(handle_);
  }
  explicit operator bool() const { return driver_ != nullptr; }
  Handle get() const { return handle_; }

 private:
  DeviceDriver* driver_ = nullptr;
  Handle handle_{};
};

using Stream = Owned<StreamHandle, &DeviceDriver::destroy_stream>;
using Event = Owned<EventHandle, &DeviceDriver::destroy_event>;
using Graph = Owned<GraphHandle, &DeviceDriver::destroy_graph>;

inline Result<Stream> create_stream(DeviceDriver& driver,
                                    StreamPriority priority = StreamPriority::kNormal) {
  QUIRE_ASSIGN_OR_RETURN(const StreamHandle handle, driver.create_stream(priority));
  return Stream(driver, handle);
}
inline Result<Event> create_event(DeviceDriver& driver) {
  QUIRE_ASSIGN_OR_RETURN(const EventHandle handle, driver.create_event());
  return Event(driver, handle);
}

}  // namespace quire::cuda
