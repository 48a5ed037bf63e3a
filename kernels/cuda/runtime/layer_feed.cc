#include "kernels/cuda/runtime/layer_feed.h"

#include <string>

namespace quire::cuda {

Result<LayerFeed> LayerFeed::create(DeviceDriver& driver, MemoryPool& device, StreamHandle compute,
                                    std::int64_t layer_bytes) {
  if (layer_bytes <= 0)
    return Status::invalid("layer_bytes", "must be at least 1, is " + std::to_string(layer_bytes));
  LayerFeed feed(driver, compute, layer_bytes);
  QUIRE_ASSIGN_OR_RETURN(feed.copies_, create_stream(driver, StreamPriority::kLow));
  for (Slot& slot : feed.slots_) {
    QUIRE_ASSIGN_OR_RETURN(slot.arrived, create_event(driver));
    QUIRE_ASSIGN_OR_RETURN(slot.used, create_event(driver));
    // Reuse of the buffer is ordered by the compute stream, which uses it last.
    QUIRE_ASSIGN_OR_RETURN(slot.buffer, device.allocate(layer_bytes, compute));
    // This event covers earlier uses of the buffer's memory
    QUIRE_RETURN_IF_ERROR(driver.record(slot.used.get(), compute));
  }
  return feed;
}

LayerFeed::~LayerFeed() {
  if (!copies_) return;  // moved from
  for (Slot& slot : slots_) {
    // A context that fails here runs no more copies.
    if (slot.arrived && driver_->record(slot.arrived.get(), copies_.get()).ok())
      (void)driver_->hold(compute_, slot.arrived.get());
  }
}

Status LayerFeed::bring(std::span<const Piece> pieces) {
  if (brought_ == released_ + kBuffers)
    return Status::precondition("both buffers hold layers that are not released");
  for (const Piece& p : pieces) {
    if (p.bytes < 0 || p.to < 0 || p.to > layer_bytes_ - p.bytes) {
      return Status::invalid("pieces", std::to_string(p.bytes) + " bytes at " +
                                           std::to_string(p.to) + " are not inside a buffer of " +
                                           std::to_string(layer_bytes_));
    }
  }
  Slot& slot = slots_[brought_ % kBuffers];
  QUIRE_RETURN_IF_ERROR(driver_->hold(copies_.get(), slot.used.get()));
  for (const Piece& p : pieces) {
    if (p.bytes > 0)
      QUIRE_RETURN_IF_ERROR(driver_->copy(static_cast<std::byte*>(slot.buffer.data()) + p.to,
                                          p.from, p.bytes, copies_.get()));
  }
  QUIRE_RETURN_IF_ERROR(driver_->record(slot.arrived.get(), copies_.get()));
  ++brought_;
  return {};
}

Result<std::byte*> LayerFeed::take() {
  if (taken_ > released_) return Status::precondition("the layer taken before is not released");
  if (taken_ == brought_) return Status::precondition("no layer was brought");
  Slot& slot = slots_[taken_ % kBuffers];
  QUIRE_RETURN_IF_ERROR(driver_->hold(compute_, slot.arrived.get()));
  ++taken_;
  return static_cast<std::byte*>(slot.buffer.data());
}

Status LayerFeed::release() {
  if (taken_ == released_) return Status::precondition("no layer is taken");
  QUIRE_RETURN_IF_ERROR(driver_->record(slots_[released_ % kBuffers].used.get(), compute_));
  ++released_;
  return {};
}

}  // namespace quire::cuda
