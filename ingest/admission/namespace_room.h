/// Counts what documents in progress will take of the quota of their namespace.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace quire {

/// NamespaceRoom reserves bytes until the store counts them. It does not know the quota: a caller
/// looks at state(), then at the store, and reserves what fits. Threads: every method may be called
/// concurrently.
class NamespaceRoom {
 public:
  struct State {
    std::uint64_t bytes = 0;    ///< reserved in the namespace
    std::uint64_t changes = 0;  ///< of what is reserved anywhere
  };

  /// Releases what was reserved when destroyed; the room must outlive it.
  class Grant {
   public:
    Grant() = default;
    Grant(Grant&& other) noexcept
        : room_(std::exchange(other.room_, nullptr)),
          ns_(std::move(other.ns_)),
          bytes_(other.bytes_) {}
    Grant& operator=(Grant&& other) noexcept {
      std::swap(room_, other.room_);
      std::swap(ns_, other.ns_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Grant() {
      if (room_) room_->give_back(ns_, bytes_);
    }

   private:
    friend class NamespaceRoom;
    Grant(NamespaceRoom* room, std::string ns, std::uint64_t bytes)
        : room_(room), ns_(std::move(ns)), bytes_(bytes) {}
    NamespaceRoom* room_ = nullptr;
    std::string ns_;
    std::uint64_t bytes_ = 0;
  };

  State state(const std::string& ns) const {
    const std::lock_guard lock(mu_);
    const auto it = reserved_.find(ns);
    return {it == reserved_.end() ? 0 : it->second, changes_};
  }

  /// Reserves the bytes. Returns none if anything has changed since `seen`: the caller looks again,
  /// because the store may count by now what it did not count then.
  std::optional<Grant> reserve(const std::string& ns, std::uint64_t bytes, const State& seen) {
    const std::lock_guard lock(mu_);
    if (changes_ != seen.changes) return std::nullopt;
    reserved_[ns] += bytes;
    ++changes_;
    return Grant(this, ns, bytes);
  }

 private:
  void give_back(const std::string& ns, std::uint64_t bytes) {
    const std::lock_guard lock(mu_);
    ++changes_;
    const auto it = reserved_.find(ns);
    if (it == reserved_.end()) return;  // nothing of its own was in it
    it->second -= bytes;
    if (it->second == 0) reserved_.erase(it);
  }

  mutable std::mutex mu_;
  std::map<std::string, std::uint64_t> reserved_;  // guarded by mu_, by namespace
  std::uint64_t changes_ = 0;                      // guarded by mu_
};

}  // namespace quire
