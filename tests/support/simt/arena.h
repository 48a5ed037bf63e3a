/// Memory of an emulated device that the host cannot touch: an access faults unless the device
/// works.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <map>

#include "base/status.h"

namespace quire::simt {

/// Arena gives out parts of one range of addresses. Threads: one at a time.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    QUIRE_CHECK(p != MAP_FAILED, "no range of addresses for an emulated device");
    base_ = static_cast<std::byte*>(p);
    free_.emplace(0, bytes);
  }
  ~Arena() { munmap(base_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns `bytes`, a multiple of the alignment that all parts get; null: there is no room.
  void* take(std::size_t bytes) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const auto [begin, size] = *it;
      free_.erase(it);
      if (size > bytes) free_.emplace(begin + bytes, size - bytes);
      return base_ + begin;
    }
    return nullptr;
  }
  void give(void* p, std::size_t bytes) {
    auto begin = static_cast<std::size_t>(static_cast<std::byte*>(p) - base_);
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        free_.erase(before);
      }
    }
    free_.emplace(begin, bytes);
  }

  /// The device works while an object of this class lives.
  class Open {
   public:
    explicit Open(Arena& arena) : arena_(arena), outermost_(!arena.open_) {
      if (outermost_) arena_.protect(PROT_READ | PROT_WRITE);
      arena_.open_ = true;
    }
    ~Open() {
      if (!outermost_) return;
      arena_.protect(PROT_NONE);
      arena_.open_ = false;
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    Arena& arena_;
    const bool outermost_;
  };

 private:
  void protect(int access) const {
    QUIRE_CHECK(mprotect(base_, bytes_, access) == 0, "protection of an emulated device's memory");
  }
  const std::size_t bytes_;
  std::byte* base_ = nullptr;
  std::map<std::size_t, std::size_t> free_;  ///< sizes by offset
  bool open_ = false;
};

}  // namespace quire::simt
