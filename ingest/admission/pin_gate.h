/// Decides whether documents may be pinned, so that pins hold no more of a tier than allowed.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <utility>

#include "base/status.h"
#include "cachestore/store.h"

namespace quire {

/// Bytes of KV that a pin keeps from being evicted.
struct PinBytes {
  std::uint64_t disk = 0;
  std::uint64_t dram = 0;  ///< 0: the pin does not reserve memory
};

/// Returns the bytes on disk that a pin of these documents keeps: those in the store, and
/// `bytes_per_token` for chunks whose KV is to come; and what is in the store takes so much in
/// memory. Each context counts once.
PinBytes pin_bytes(Store& store, std::span<const DocumentManifest> documents,
                   std::uint64_t bytes_per_token);

/// PinGate asks whether pins may hold more, and reserves what was granted until the store counts it
/// as pinned. Threads: every method may be called concurrently.
class PinGate {
 public:
  /// Returns kResourceExhausted to refuse. It may wait on disk. Empty: always allowed.
  using Ask = std::function<Status(const PinBytes& more)>;

  explicit PinGate(Ask ask) : ask_(std::move(ask)) {}

  /// Releases what was granted when destroyed; the gate must outlive it.
  class Grant {
   public:
    Grant() = default;
    Grant(Grant&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), bytes_(other.bytes_) {}
    Grant& operator=(Grant&& other) noexcept {
      std::swap(gate_, other.gate_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Grant() {
      if (gate_) gate_->give_back(bytes_);
    }

   private:
    friend class PinGate;
    Grant(PinGate* gate, PinBytes bytes) : gate_(gate), bytes_(bytes) {}
    PinGate* gate_ = nullptr;
    PinBytes bytes_;
  };

  /// Reserves `bytes`. Errors: those of `Ask`, with the field "pinned".
  Result<Grant> grant(const PinBytes& bytes) {
    if (!ask_) return Grant();
    Grant grant(this, bytes);  // released again if refused
    PinBytes with_earlier;
    {
      const std::lock_guard lock(mu_);
      granted_.disk += bytes.disk;
      granted_.dram += bytes.dram;
      with_earlier = {granted_.disk, bytes.dram > 0 ? granted_.dram : 0};
    }
    if (const Status s = ask_(with_earlier); !s.ok()) return s.with_field("pinned");
    return grant;
  }

 private:
  void give_back(const PinBytes& bytes) {
    const std::lock_guard lock(mu_);
    granted_.disk -= bytes.disk;
    granted_.dram -= bytes.dram;
  }

  const Ask ask_;
  std::mutex mu_;
  PinBytes granted_;  // guarded by mu_: granted or requested, and not pinned yet
};

}  // namespace quire
