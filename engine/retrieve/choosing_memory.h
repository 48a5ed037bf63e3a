/// What choosing takes of the device that computes: scores, votes, lists, bounds, centroids, keys
/// of a head. Counted to the byte, beside the rows that are brought there.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/status.h"
#include "engine/api/choosing_need.h"
#include "engine/cache/compute_memory.h"
#include "engine/residency/device_pool.h"

namespace quire {

struct RetrieveInput;

/// Memory of a device, counted against a pool that is not where it comes from. Threads: as
/// ComputeMemory says.
class ChoosingMemory final : public ComputeMemory {
 public:
  /// The pool must outlive it.
  ChoosingMemory(DevicePool& pool, std::shared_ptr<ComputeMemory> memory)
      : pool_(pool), memory_(std::move(memory)) {}

  /// Errors: those of the memory, and kResourceExhausted where the pool has no room (nothing
  /// changes).
  Result<void*> allocate(std::int64_t bytes, MemoryPlace place) override;
  void release(void* p, MemoryPlace place) override;
  Status settle() override { return memory_->settle(); }
  Result<std::int64_t> budget(std::int64_t wanted, const char* setting) override {
    return memory_->budget(wanted, setting);
  }

  std::int64_t peak_bytes() const;

 private:
  DevicePool& pool_;
  const std::shared_ptr<ComputeMemory> memory_;
  mutable std::mutex mu_;
  std::unordered_map<void*, DeviceClaim> claims_;  // guarded by mu_, as are:
  std::int64_t in_use_ = 0, peak_ = 0;
};

RetrieveShape shape_of(const RetrieveInput& input);
/// Null where the host computes.
std::shared_ptr<ChoosingMemory> choosing_memory(const RetrieveInput& input);

}  // namespace quire
