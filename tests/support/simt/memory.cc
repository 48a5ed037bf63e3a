#include "tests/support/simt/memory.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace quire::simt {

void GlobalMemory::add(std::string name, const void* p, std::size_t bytes, Access access) {
  if (bytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  const auto next = std::upper_bound(
      buffers_.begin(), buffers_.end(), begin,
      [](std::uintptr_t at, const Buffer& b) { return at < b.begin; });
  QUIRE_CHECK((next == buffers_.begin() || next[-1].end <= begin) &&
                  (next == buffers_.end() || begin + bytes <= next->begin),
              name + " overlaps another buffer");
  buffers_.insert(next, {begin, begin + bytes, access, std::move(name)});
}

void GlobalMemory::remove(const void* p) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  const auto found = std::lower_bound(
      buffers_.begin(), buffers_.end(), begin,
      [](const Buffer& b, std::uintptr_t at) { return b.begin < at; });
  QUIRE_CHECK(found != buffers_.end() && found->begin == begin,
              "a buffer is removed that was never added");
  buffers_.erase(found);
}

std::string GlobalMemory::refuse(const void* p, std::size_t bytes, Access access) const {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  if (at % bytes != 0) return "address is not a multiple of " + std::to_string(bytes);
  const auto next = std::upper_bound(
      buffers_.begin(), buffers_.end(), at,
      [](std::uintptr_t address, const Buffer& b) { return address < b.begin; });
  if (next == buffers_.begin())
    return std::to_string(bytes) + " bytes before every registered buffer";
  const Buffer& b = next[-1];
  if (at + bytes > b.end) {
    return std::to_string(bytes) + " bytes at offset " + std::to_string(at - b.begin) + " of " +
           b.name + ", which has " + std::to_string(b.end - b.begin);
  }
  if (access == Access::kReadWrite && b.access == Access::kRead)
    return "write to " + b.name + ", which is read only";
  return {};
}

void SharedMemory::start_block(std::size_t bytes, int num_warps) {
  bytes_ = bytes;
  if (data_.size() < bytes) {
    data_.resize(bytes);
    history_.resize(bytes);
  }
  warp_epoch_.assign(static_cast<std::size_t>(num_warps), 0);
  block_epoch_ = 0;
  ++block_number_;
}

bool SharedMemory::unordered(const Mark& before, int thread) const {
  if (before.thread == kNobody || before.thread == thread || before.block_epoch != block_epoch_)
    return false;
  const int warp = thread / 32;
  return before.warp != warp || before.warp_epoch == warp_epoch_[static_cast<std::size_t>(warp)];
}

void SharedMemory::set_pending(std::size_t offset, std::size_t bytes, bool pending) {
  for (std::size_t i = offset; i < offset + bytes; ++i) history_[i].pending = pending;
}

std::string SharedMemory::access(std::size_t offset, std::size_t bytes, int thread, Kind kind) {
  const int warp = thread / 32;
  const Mark now{thread, warp, block_epoch_, warp_epoch_[static_cast<std::size_t>(warp)],
                 kind == Kind::kAtomic};
  const auto race = [&](const char* what, const Mark& before) {
    return std::string(what) +
           (before.thread >= 0 ? " thread " + std::to_string(before.thread) : " several threads") +
           " without a barrier between";
  };
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    Byte& b = history_[i];
    if (b.block_number != block_number_) b = Byte{block_number_, {}, {}, false};
    if (kind != Kind::kWrite && b.write.thread == kNobody)
      return "read of byte " + std::to_string(i) + ", which nobody wrote";
    if (b.pending)
      return "access to byte " + std::to_string(i) +
             ", which an asynchronous copy has not brought yet";
    const bool both_atomic = kind == Kind::kAtomic && b.write.atomic;
    if (!both_atomic && unordered(b.write, thread))
      return race(kind == Kind::kRead ? "read of what was written by" : "write over a write by",
                  b.write);
    if (kind == Kind::kRead) {
      const bool same_time = b.read.thread != kNobody && b.read.block_epoch == now.block_epoch &&
                             (b.read.warp != warp || b.read.warp_epoch == now.warp_epoch);
      if (!same_time) {
        b.read = now;
      } else {
        if (b.read.warp != warp) b.read.warp = kSeveral;
        if (b.read.thread != thread) b.read.thread = kSeveral;
      }
    } else {
      if (unordered(b.read, thread)) return race("write over what was read by", b.read);
      b.write = now;
    }
  }
  return {};
}

}  // namespace quire::simt
