#include "cachestore/segment_table.h"

#include <algorithm>
#include <utility>

namespace quire {

SegmentTable::SegmentTable(StorePolicy policy, TenantQuotas quotas)
    : orders_(policy, std::move(quotas), &TenantQuota::disk_bytes) {}

void SegmentTable::set_callback(std::function<void()> on_reapable) {
  std::lock_guard lock(callback_mu_);
  on_reapable_ = std::move(on_reapable);
}
void SegmentTable::clear_callback() { set_callback(nullptr); }
void SegmentTable::notify() {
  // The callback only queues a task: it never waits on disk and never calls back
  std::lock_guard lock(callback_mu_);
  if (on_reapable_) on_reapable_();
}

void SegmentTable::add_refs(const DocumentManifest& document, std::int64_t used_ms) {
  std::lock_guard lock(mu_);
  for (const DocumentChunk& c : document.chunks)
    if (!c.key.is_zero()) add_ref(c.key, c.num_tokens, document.pinned, used_ms);
  for (const ContextKey& key : document.companions)
    if (!key.is_zero()) add_ref(key, 0, document.pinned, used_ms);
}

void SegmentTable::add_ref(const ContextKey& key, std::uint32_t tokens, bool pinned,
                           std::int64_t used_ms) {
  auto& state = keys_[key];
  missing_tokens_ -= state.missing_tokens();
  ++state.refs;
  if (tokens > 0) state.tokens = tokens;
  if (pinned && ++state.pinned_refs == 1 && state.live != 0) set_pinned(key, state, true);
  state.used_ms = std::max(state.used_ms, used_ms);
  missing_tokens_ += state.missing_tokens();
}

void SegmentTable::release_refs(std::span<const ContextKey> keys, bool pinned) {
  bool reap = false;
  {
    std::lock_guard lock(mu_);
    for (const auto& key : keys) {
      auto it = keys_.find(key);
      if (it == keys_.end() || it->second.refs == 0) continue;
      missing_tokens_ -= it->second.missing_tokens();
      --it->second.refs;
      if (pinned && it->second.pinned_refs > 0 && --it->second.pinned_refs == 0 &&
          it->second.live != 0)
        set_pinned(key, it->second, false);
      missing_tokens_ += it->second.missing_tokens();
      reap |= synchronize(key);
    }
  }
  if (reap) notify();
}

bool SegmentTable::is_referenced(const ContextKey& key) const {
  std::lock_guard lock(mu_);
  auto it = keys_.find(key);
  return it != keys_.end() && it->second.refs > 0;
}

Result<SegmentId> SegmentTable::begin(const ContextKey& key, std::string_view tenant_name,
                                      std::uint64_t bytes) {
  std::unique_lock lock(mu_);
  const auto known = keys_.find(key);
  if (known != keys_.end() && known->second.live != 0)
    return Status(Code::kAlreadyExists, "the KV of this context is stored already");
  if (known != keys_.end() && known->second.writing)
    return Status::unavailable("the KV of this context is being written");
  Orders::Tenant& tenant = orders_.of(tenant_name);
  const std::size_t doomed = reapable_.size();
  const Status room = make_room(tenant, tenant_name, bytes);
  const bool reap = reapable_.size() > doomed;
  const SegmentId id = next_id_;
  if (room.ok()) {
    ++next_id_;
    keys_[key].writing = true;
    writing_.insert(id);
    written_keys_[key] = {id, &tenant, bytes};
    orders_.add(tenant, bytes);
  }
  lock.unlock();
  if (reap) notify();
  QUIRE_RETURN_IF_ERROR(room);
  return id;
}

/// Dooms segments of a tenant until its quota has room.
Status SegmentTable::make_room(Orders::Tenant& tenant, std::string_view name, std::uint64_t bytes) {
  while (tenant.limit() > 0 && tenant.bytes() + bytes > tenant.limit()) {
    const auto victim = bytes > tenant.limit()
                            ? std::nullopt
                            : tenant.order().evict([&](const auto& k) { return is_evictable(k); });
    if (!victim)
      return Status::exhausted("the KV quota of '" + std::string(name) +
                               "' on disk is used up: a context needs " + std::to_string(bytes) +
                               " bytes, but " + std::to_string(tenant.bytes()) + " of " +
                               std::to_string(tenant.limit()) +
                               " are pinned, in use or being written; unpin or delete documents, "
                               "or raise disk_bytes in cache.quotas_file");
    doom(entries_.at(keys_.at(*victim).live), FreeReason::kBudget);
  }
  return {};
}

bool SegmentTable::is_evictable(const ContextKey& key) const {
  const auto& state = keys_.at(key);
  return state.pinned_refs == 0 && entries_.at(state.live).pins == 0;
}

/// Forgets that the key is being written, and what was promised for that.
std::optional<SegmentTable::Writing> SegmentTable::end_writing(const ContextKey& key) {
  const auto it = written_keys_.find(key);
  if (it == written_keys_.end()) return std::nullopt;
  const Writing writing = it->second;
  written_keys_.erase(it);
  writing_.erase(writing.id);
  orders_.subtract(*writing.tenant, writing.bytes);
  keys_[key].writing = false;
  return writing;
}

void SegmentTable::abandon(const ContextKey& key) {
  std::lock_guard lock(mu_);
  if (end_writing(key)) drop_if_empty(key);
}

SegmentHandle SegmentTable::publish(SegmentInfo info) {
  std::lock_guard lock(mu_);
  (void)end_writing(info.key);
  KeyState& state = keys_[info.key];
  return pin(enter(state, std::move(info)));
}

void SegmentTable::reserve(std::size_t segments) {
  std::lock_guard lock(mu_);
  keys_.reserve(segments);
  entries_.reserve(segments);
  orders_.reserve(segments);
}

bool SegmentTable::restore(SegmentInfo info) {
  std::lock_guard lock(mu_);
  const auto it = keys_.find(info.key);
  if (it == keys_.end()) return false;
  auto& state = it->second;
  if (state.refs == 0 || state.live != 0) return false;
  enter(state, std::move(info)).committed = true;
  return true;
}

/// Makes a segment the live one of its key.
SegmentTable::Entry& SegmentTable::enter(KeyState& state, SegmentInfo info) {
  const ContextKey key = info.key;
  missing_tokens_ -= state.missing_tokens();
  state.live = info.id;
  state.used_ms = std::max(state.used_ms, info.created_ms);
  ++num_live_;
  Entry& entry = entries_[info.id];
  entry.info = std::make_shared<const SegmentInfo>(std::move(info));
  entry.tenant = &orders_.of(entry.info->tenant);
  entry.tenant->order().insert(key, entry.info->disk_bytes);
  orders_.add(*entry.tenant, entry.info->disk_bytes);
  if (state.pinned_refs > 0) set_pinned(key, state, true);
  return entry;
}

/// The policy does not know pinned segments, so that looking for a victim never passes over them.
void SegmentTable::set_pinned(const ContextKey& key, const KeyState& state, bool pinned) {
  const Entry& entry = entries_.at(state.live);
  const std::uint64_t bytes = entry.info->disk_bytes;
  if (pinned && pinned_.insert(state.live).second) {
    pinned_bytes_ += bytes;
    entry.tenant->order().erase(key);
  } else if (!pinned && pinned_.erase(state.live) > 0) {
    pinned_bytes_ -= bytes;
    entry.tenant->order().insert(key, bytes);
  }
}

bool SegmentTable::is_known(SegmentId id) const {
  std::lock_guard lock(mu_);
  return entries_.contains(id) || writing_.contains(id);
}

std::optional<SegmentHandle> SegmentTable::find(const ContextKey& key,
                                                std::optional<std::int64_t> used_ms) {
  std::lock_guard lock(mu_);
  auto it = keys_.find(key);
  if (it == keys_.end() || it->second.live == 0) return std::nullopt;
  Entry& entry = entries_.at(it->second.live);
  if (used_ms) {
    entry.tenant->order().touch(key);
    it->second.used_ms = std::max(it->second.used_ms, *used_ms);
  }
  return pin(entry);
}

std::optional<SegmentHandle> SegmentTable::find_id(SegmentId id) {
  std::lock_guard lock(mu_);
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.doomed) return std::nullopt;
  return pin(it->second);
}

std::vector<std::shared_ptr<const SegmentInfo>> SegmentTable::uncommitted(
    std::span<const ContextKey> keys) const {
  std::vector<std::shared_ptr<const SegmentInfo>> out;
  std::lock_guard lock(mu_);
  for (const auto& key : keys) {
    auto it = keys_.find(key);
    if (it == keys_.end() || it->second.live == 0 || it->second.refs == 0) continue;
    const auto& entry = entries_.at(it->second.live);
    if (!entry.committed) out.push_back(entry.info);
  }
  return out;
}

void SegmentTable::set_committed(SegmentId id) {
  std::lock_guard lock(mu_);
  if (auto it = entries_.find(id); it != entries_.end()) it->second.committed = true;
}

bool SegmentTable::evict_one() {
  {
    std::lock_guard lock(mu_);
    const auto victim = orders_.evict([&](const ContextKey& key) { return is_evictable(key); });
    if (!victim) return false;
    doom(entries_.at(keys_.at(*victim).live), FreeReason::kBudget);
  }
  notify();
  return true;
}

void SegmentTable::enforce_quotas() {
  {
    std::lock_guard lock(mu_);
    for (auto& [name, tenant] : orders_.tenants()) (void)make_room(tenant, name, 0);
  }
  notify();
}

std::vector<SegmentTable::Candidate> SegmentTable::candidates() const {
  std::vector<Candidate> out;
  std::lock_guard lock(mu_);
  out.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) {
    if (entry.doomed) continue;
    const auto& state = keys_.at(entry.info->key);
    out.push_back({entry.info, state.used_ms, state.pinned_refs > 0, entry.pins > 0});
  }
  return out;
}

bool SegmentTable::evict(SegmentId id, bool force) {
  {
    std::lock_guard lock(mu_);
    const auto it = entries_.find(id);
    if (it == entries_.end() || it->second.doomed || it->second.pins > 0) return false;
    if (!force && keys_.at(it->second.info->key).pinned_refs > 0) return false;
    doom(it->second, FreeReason::kRequested);
  }
  notify();
  return true;
}

bool SegmentTable::doom_one(SegmentId id, FreeReason reason) {
  bool reap = false;
  {
    std::lock_guard lock(mu_);
    auto it = entries_.find(id);
    if (it == entries_.end() || it->second.doomed) return false;
    reap = doom(it->second, reason);
  }
  if (reap) notify();
  return true;
}

std::uint64_t SegmentTable::doom_unreferenced() {
  std::uint64_t n = 0;
  {
    std::lock_guard lock(mu_);
    for (auto& [id, entry] : entries_) {
      if (entry.doomed || entry.pins > 0) continue;
      if (keys_.at(entry.info->key).refs > 0) continue;
      doom(entry, FreeReason::kUnreferenced);
      ++n;
    }
  }
  if (n > 0) notify();
  return n;
}

std::vector<SegmentTable::Reapable> SegmentTable::take_reapable() {
  std::vector<Reapable> out;
  std::lock_guard lock(mu_);
  for (SegmentId id : reapable_) {
    auto it = entries_.find(id);
    out.push_back({it->second.info, *it->second.doomed, it->second.committed});
    entries_.erase(it);
  }
  reapable_.clear();
  return out;
}

bool SegmentTable::is_pinned_by_document(SegmentId id) const {
  std::lock_guard lock(mu_);
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.doomed) return false;
  auto key = keys_.find(it->second.info->key);
  return key != keys_.end() && key->second.pinned_refs > 0;
}

std::vector<std::shared_ptr<const SegmentInfo>> SegmentTable::all() const {
  std::vector<std::shared_ptr<const SegmentInfo>> out;
  std::lock_guard lock(mu_);
  for (const auto& [id, entry] : entries_) {
    if (!entry.doomed) out.push_back(entry.info);
  }
  return out;
}

std::uint64_t SegmentTable::pinned_bytes() const {
  std::lock_guard lock(mu_);
  return pinned_bytes_;
}

std::uint64_t SegmentTable::pinned_missing_tokens() const {
  std::lock_guard lock(mu_);
  return missing_tokens_;
}

std::uint64_t SegmentTable::bytes_of(std::string_view tenant) const {
  std::lock_guard lock(mu_);
  return orders_.bytes_of(tenant);
}

std::uint64_t SegmentTable::size() const {
  std::lock_guard lock(mu_);
  return num_live_;
}

SegmentHandle SegmentTable::pin(Entry& entry) {
  ++entry.pins;
  auto unpin_it = [table = shared_from_this(), keep = entry.info](const SegmentInfo* info) {
    table->unpin(info->id);
  };
  return SegmentHandle(std::shared_ptr<const SegmentInfo>(entry.info.get(), std::move(unpin_it)));
}

void SegmentTable::unpin(SegmentId id) {
  bool reap = false;
  {
    std::lock_guard lock(mu_);
    auto& entry = entries_.at(id);
    if (--entry.pins > 0) return;
    if (entry.doomed) {
      reapable_.push_back(id);
      reap = true;
    } else {
      reap = synchronize(entry.info->key);
    }
  }
  if (reap) notify();
}

bool SegmentTable::doom(Entry& entry, FreeReason reason) {
  const ContextKey key = entry.info->key;
  entry.doomed = reason;
  entry.tenant->order().erase(key);
  orders_.subtract(*entry.tenant, entry.info->disk_bytes);
  if (pinned_.erase(entry.info->id) > 0) pinned_bytes_ -= entry.info->disk_bytes;
  KeyState& state = keys_.at(key);
  state.live = 0;
  missing_tokens_ += state.missing_tokens();
  --num_live_;
  drop_if_empty(key);
  if (entry.pins > 0) return false;
  reapable_.push_back(entry.info->id);
  return true;
}

bool SegmentTable::synchronize(const ContextKey& key) {
  auto it = keys_.find(key);
  if (it == keys_.end()) return false;
  if (it->second.refs == 0 && it->second.live != 0) {
    auto& entry = entries_.at(it->second.live);
    if (entry.pins == 0) return doom(entry, FreeReason::kUnreferenced);
  }
  drop_if_empty(key);
  return false;
}

void SegmentTable::drop_if_empty(const ContextKey& key) {
  if (auto it = keys_.find(key); it != keys_.end() && it->second.empty()) keys_.erase(it);
}

}  // namespace quire
