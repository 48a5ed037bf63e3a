/// ChoosingMemory counts, to the byte, the device memory that choosing takes besides the rows
/// copied to the device: scores, votes, lists, bounds, centroids, keys of a head.
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

struct SequenceContext;

/// ChoosingMemory allocates from a ComputeMemory and counts the bytes against a separate pool.
/// Threads: as ComputeMemory.
class ChoosingMemory final : public ComputeMemory {
 public:
  /// Makes the memory; the pool must outlive it.
  ChoosingMemory(DevicePool& pool, std::shared_ptr<ComputeMemory> memory)
      : pool_(pool), memory_(std::move(memory)) {}

  /// Allocates and counts. Errors: those of the memory, and kResourceExhausted if the pool has no
  /// room (nothing changes).
  Result<void*> allocate(std::int64_t bytes, MemoryPlace place) override;
  void release(void* p, MemoryPlace place) override;
  Status synchronize() override { return memory_->synchronize(); }
  Status gather(const KvGatherArgs& rows) override { return memory_->gather(rows); }
  Status read(const void* from, std::int64_t bytes, void* to) override {
    return memory_->read(from, bytes, to);
  }
  Status write(void* to, const void* from, std::int64_t bytes) override {
    return memory_->write(to, from, bytes);
  }
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

/// Returns the bytes of n values of T.
template <class T>
constexpr std::int64_t bytes_of(std::int64_t n) {
  return n * static_cast<std::int64_t>(sizeof(T));
}

RetrieveShape shape_of(const SequenceContext& sequence, std::size_t num_contexts);
/// Makes the memory of a request; null where the host computes.
std::shared_ptr<ChoosingMemory> choosing_memory(const SequenceContext& sequence);

}  // namespace quire
