#include "engine/retrieve/choosing_memory.h"

#include <algorithm>
#include <utility>

#include "engine/compute/compute.h"
#include "engine/retrieve/retriever.h"

namespace quire {

Result<void*> ChoosingMemory::allocate(std::int64_t bytes, MemoryPlace place) {
  DeviceClaim claim(pool_);
  QUIRE_RETURN_IF_ERROR(claim.resize(bytes));
  QUIRE_ASSIGN_OR_RETURN(void* const p, memory_->allocate(bytes, place));
  const std::lock_guard lock(mu_);
  claims_.emplace(p, std::move(claim));
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return p;
}

void ChoosingMemory::release(void* p, MemoryPlace place) {
  memory_->release(p, place);
  const std::lock_guard lock(mu_);
  const auto claim = claims_.find(p);
  in_use_ -= claim->second.bytes();
  claims_.erase(claim);
}

std::int64_t ChoosingMemory::peak_bytes() const {
  const std::lock_guard lock(mu_);
  return peak_;
}

RetrieveShape shape_of(const SequenceContext& sequence, std::size_t num_contexts) {
  return {sequence.num_layers,
          sequence.num_heads,
          sequence.num_kv_heads,
          sequence.head_dim,
          static_cast<std::int64_t>(num_contexts),
          sequence.head};
}

std::shared_ptr<ChoosingMemory> choosing_memory(const SequenceContext& sequence) {
  if (sequence.compute->on_host()) return nullptr;
  QUIRE_CHECK(sequence.device != nullptr, "what choosing takes of a device is counted");
  return std::make_shared<ChoosingMemory>(*sequence.device, sequence.compute->memory());
}

}  // namespace quire
