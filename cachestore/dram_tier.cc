#include "cachestore/dram_tier.h"

#include <utility>

namespace quire {

DramTier::DramTier(std::uint64_t capacity_bytes, StorePolicy policy,
                   std::function<bool(SegmentId)> is_pinned, TenantQuotas quotas,
                   std::shared_ptr<ValueMemorySource> memory)
    : capacity_(capacity_bytes),
      is_pinned_(std::move(is_pinned)),
      memory_(std::move(memory)),
      orders_(policy, std::move(quotas), &TenantQuota::dram_bytes) {
  stats_.capacity_bytes = capacity_bytes;
}

std::shared_ptr<const ValueBuffer> DramTier::find(const record::ValueName& name) {
  std::lock_guard lock(mu_);
  auto it = values_.find(name);
  if (it == values_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  stats_.read_bytes += it->second.buffer->payload().size();
  // Without quotas all tenants have one order, and the segment need not be looked up.
  auto& tenant = orders_.has_quotas() ? *of_segment_.at(name.segment).tenant : orders_.of({});
  tenant.order().touch(name);
  return it->second.buffer;
}

std::shared_ptr<const ValueBuffer> DramTier::peek(const record::ValueName& name) const {
  std::lock_guard lock(mu_);
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : it->second.buffer;
}

bool DramTier::contains(const record::ValueName& name) const {
  std::lock_guard lock(mu_);
  return values_.contains(name);
}

std::shared_ptr<const ValueBuffer> DramTier::keep(const record::ValueName& name,
                                                  std::shared_ptr<const ValueBuffer> buffer,
                                                  std::string_view tenant_name) {
  const std::uint64_t bytes = buffer->allocated_bytes();
  if (bytes > capacity_) return nullptr;
  std::unique_lock lock(mu_);
  if (const auto it = values_.find(name); it != values_.end()) return it->second.buffer;
  Orders::Tenant& tenant = orders_.of(tenant_name);
  if (!make_room(bytes, tenant)) return nullptr;
  Values& of = of_segment_[name.segment];
  of.names.insert(name);
  of.bytes += bytes;
  of.tenant = &tenant;
  values_.emplace(name, Value{buffer});
  tenant.order().insert(name, bytes);
  orders_.add(tenant, bytes);
  stats_.used_bytes += bytes;
  stats_.written_bytes += bytes;
  lock.unlock();
  // The host alone reads sketches and records.
  if (!memory_ || name.part != record::Part::kValue) return buffer;
  return move(name, std::move(buffer));
}

/// Puts a copy in the tier's own memory in place of a value that was just kept. No lock is held
/// while it is made: who asks for the value meanwhile gets the one that is there.
std::shared_ptr<const ValueBuffer> DramTier::move(const record::ValueName& name,
                                                  std::shared_ptr<const ValueBuffer> buffer) {
  std::shared_ptr<const ValueBuffer> copy = ValueBuffer::copy_into(memory_, *buffer);
  std::lock_guard lock(mu_);
  if (!copy) {
    ++moved_.unmoved;
    return buffer;
  }
  // It may be gone by now, or have come again, which another call moves.
  const auto it = values_.find(name);
  if (it == values_.end() || it->second.buffer != buffer) return copy;
  it->second = {copy, true};
  ++moved_.values;
  moved_.bytes += copy->allocated_bytes();
  return copy;
}

/// Evicts until the tier and the tenant's quota have room. Returns false if they cannot have it.
bool DramTier::make_room(std::uint64_t bytes, Orders::Tenant& tenant) {
  if (tenant.limit() > 0 && bytes > tenant.limit()) return false;
  // No new reference can be taken without mu_, so a buffer with one owner keeps one owner.
  const auto evictable = [&](const record::ValueName& n) {
    return values_.at(n).buffer.use_count() == 1 && !is_pinned_(n.segment);
  };
  for (;;) {
    const bool over_quota = tenant.limit() > 0 && tenant.bytes() + bytes > tenant.limit();
    if (!over_quota && stats_.used_bytes + bytes <= capacity_) return true;
    const auto victim = over_quota ? tenant.order().evict(evictable) : orders_.evict(evictable);
    if (!victim) return false;
    ++stats_.evictions;
    stats_.evicted_bytes += values_.at(*victim).buffer->allocated_bytes();
    remove(*victim);
  }
}

void DramTier::remove(const record::ValueName& name) {
  auto it = values_.find(name);
  if (it == values_.end()) return;
  const std::uint64_t bytes = it->second.buffer->allocated_bytes();
  stats_.used_bytes -= bytes;
  if (it->second.moved) {
    --moved_.values;
    moved_.bytes -= bytes;
  }
  values_.erase(it);
  auto of = of_segment_.find(name.segment);
  of->second.names.erase(name);
  of->second.bytes -= bytes;
  orders_.subtract(*of->second.tenant, bytes);
  if (of->second.names.empty()) of_segment_.erase(of);
}

void DramTier::erase(const record::ValueName& name) {
  of_segment_.at(name.segment).tenant->order().erase(name);
  remove(name);
}

void DramTier::erase_segment(SegmentId segment) {
  std::lock_guard lock(mu_);
  auto it = of_segment_.find(segment);
  if (it == of_segment_.end()) return;
  const NameSet names = it->second.names;
  for (const auto& name : names) erase(name);
}

DramTier::Held DramTier::held(SegmentId segment) const {
  Held held;
  std::unordered_set<std::uint32_t> blocks;
  std::lock_guard lock(mu_);
  const auto it = of_segment_.find(segment);
  if (it == of_segment_.end()) return held;
  held.bytes = it->second.bytes;
  for (const auto& name : it->second.names) {
    const auto& buffer = values_.at(name).buffer;
    held.in_use = held.in_use || buffer.use_count() > 1;
    if (name.part == record::Part::kValue) blocks.insert(name.block);
  }
  held.blocks = blocks.size();
  return held;
}

std::uint64_t DramTier::pinned_bytes() const {
  std::uint64_t bytes = 0;
  std::lock_guard lock(mu_);
  for (const auto& [segment, values] : of_segment_) bytes += is_pinned_(segment) ? values.bytes : 0;
  return bytes;
}

DramTier::Held DramTier::evict_segment(SegmentId segment) {
  Held gone;
  std::unordered_set<std::uint32_t> blocks;
  std::lock_guard lock(mu_);
  const auto it = of_segment_.find(segment);
  if (it == of_segment_.end()) return gone;
  const NameSet names = it->second.names;
  for (const auto& name : names) {
    const auto& buffer = values_.at(name).buffer;
    if (buffer.use_count() > 1) {
      gone.in_use = true;
      continue;
    }
    gone.bytes += buffer->allocated_bytes();
    if (name.part == record::Part::kValue) blocks.insert(name.block);
    erase(name);
    ++requested_evictions_;
  }
  gone.blocks = blocks.size();
  requested_bytes_ += gone.bytes;
  return gone;
}

std::pair<std::uint64_t, std::uint64_t> DramTier::requested() const {
  std::lock_guard lock(mu_);
  return {requested_evictions_, requested_bytes_};
}

TierStats DramTier::stats() const {
  std::lock_guard lock(mu_);
  TierStats s = stats_;
  s.num_values = values_.size();
  return s;
}

DramTier::Moved DramTier::moved() const {
  std::lock_guard lock(mu_);
  return moved_;
}

std::uint64_t DramTier::bytes_of(std::string_view tenant) const {
  std::lock_guard lock(mu_);
  return orders_.bytes_of(tenant);
}

}  // namespace quire
