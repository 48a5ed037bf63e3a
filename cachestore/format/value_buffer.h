/// This file declares one value in memory in its stored form (header and payload, contiguous). The
/// payload is aligned to 64 bytes, so the same buffer serves disk writes and the engine's reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "cachestore/format/record.h"
#include "cachestore/format/value_memory.h"

namespace quire {

class ValueBuffer {
 public:
  static constexpr std::size_t kAlign = 64;
  /// Room before the payload for the header and for bytes that a disk tier puts before it.
  static constexpr std::size_t kLead = 128;
  static constexpr std::size_t kPage = 4096;

  /// Allocates a buffer. Throws std::bad_alloc.
  explicit ValueBuffer(std::size_t payload_bytes)
      : ValueBuffer(kAlign, kLead, payload_bytes, kLead + payload_bytes) {}
  /// Returns a buffer for reading whole file pages. `memory()` is page-aligned, the payload starts
  /// `lead` bytes in (a multiple of 64, at least the header's 32), and there are `total` bytes.
  static std::shared_ptr<ValueBuffer> for_pages(std::size_t lead, std::size_t payload_bytes,
                                                std::size_t total) {
    return std::shared_ptr<ValueBuffer>(new ValueBuffer(kPage, lead, payload_bytes, total));
  }
  /// Returns a copy of the value in memory of the source; null: it has none. The copy counts with
  /// the allocated bytes of `value`, so that it can take its place.
  static std::shared_ptr<ValueBuffer> copy_into(const std::shared_ptr<ValueMemorySource>& source,
                                                const ValueBuffer& value) {
    ValueMemory memory(source->take(kLead + value.size_), {nullptr, 0, source});
    if (memory == nullptr) return nullptr;
    std::shared_ptr<ValueBuffer> copy(
        new ValueBuffer(std::move(memory), value.size_, value.allocated_));
    std::memcpy(copy->stored().data(), value.stored().data(), value.stored().size());
    return copy;
  }
  static constexpr std::size_t allocated_bytes(std::size_t payload_bytes) {
    return rounded(kLead + payload_bytes, kAlign) + kAlign;
  }

  std::size_t allocated_bytes() const { return allocated_; }
  std::byte* memory() { return data_; }
  std::span<std::byte> payload() { return {data_ + lead_, size_}; }
  std::span<const std::byte> payload() const { return {data_ + lead_, size_}; }
  /// Returns 32 bytes of header, then the payload.
  std::span<std::byte> stored() {
    return {data_ + lead_ - record::kValueHeaderBytes, record::kValueHeaderBytes + size_};
  }
  std::span<const std::byte> stored() const { return const_cast<ValueBuffer*>(this)->stored(); }

 private:
  static constexpr std::size_t rounded(std::size_t n, std::size_t unit) {
    return (n + unit - 1) / unit * unit;
  }
  ValueBuffer(std::size_t align, std::size_t lead, std::size_t payload_bytes, std::size_t total)
      : lead_(lead), size_(payload_bytes), allocated_(rounded(total, align) + align) {
    // Aligned by hand: memory of aligned_alloc() that comes and goes beside small allocations that
    // stay leaves gaps which later ones do not fit into (glibc before 2.38).
    block_ = allocate_value_memory(allocated_);
    const auto address = reinterpret_cast<std::uintptr_t>(block_.get());
    data_ = block_.get() + ((align - address % align) % align);
  }
  /// `block` is aligned and has kLead + payload_bytes.
  ValueBuffer(ValueMemory block, std::size_t payload_bytes, std::size_t counted)
      : block_(std::move(block)),
        data_(block_.get()),
        lead_(kLead),
        size_(payload_bytes),
        allocated_(counted) {}
  ValueMemory block_;
  std::byte* data_ = nullptr;  // within block_, aligned
  std::size_t lead_, size_, allocated_;
};

}  // namespace quire
