#include "cachestore/segment_table.h"

#include <algorithm>
#include <utility>

namespace quire {

SegmentTable::SegmentTable(StorePolicy policy) {
  if (policy == StorePolicy::kLru) {
    policy_ = std::make_unique<LruPolicy<ContextKey, DigestHash>>();
  } else {
    policy_ = std::make_unique<S3FifoPolicy<ContextKey, DigestHash>>();
  }
}

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

void SegmentTable::add_refs(std::span<const ContextKey> keys, bool pinned, std::int64_t used_ms) {
  std::lock_guard lock(mu_);
  for (const auto& key : keys) {
    auto& state = keys_[key];
    ++state.refs;
    if (pinned && ++state.pinned_refs == 1 && state.live != 0) set_pinned(key, state, true);
    state.used_ms = std::max(state.used_ms, used_ms);
  }
}

void SegmentTable::release_refs(std::span<const ContextKey> keys, bool pinned) {
  bool reap = false;
  {
    std::lock_guard lock(mu_);
    for (const auto& key : keys) {
      auto it = keys_.find(key);
      if (it == keys_.end() || it->second.refs == 0) continue;
      --it->second.refs;
      if (pinned && it->second.pinned_refs > 0 && --it->second.pinned_refs == 0 &&
          it->second.live != 0)
        set_pinned(key, it->second, false);
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

Result<SegmentId> SegmentTable::begin(const ContextKey& key) {
  std::lock_guard lock(mu_);
  auto& state = keys_[key];
  if (state.live != 0)
    return Status(Code::kAlreadyExists, "the KV of this context is stored already");
  if (state.writing) return Status::unavailable("the KV of this context is being written");
  state.writing = true;
  const SegmentId id = next_id_++;
  writing_.insert(id);
  writing_ids_[key] = id;
  return id;
}

void SegmentTable::abandon(const ContextKey& key) {
  std::lock_guard lock(mu_);
  auto it = writing_ids_.find(key);
  if (it == writing_ids_.end()) return;
  writing_.erase(it->second);
  writing_ids_.erase(it);
  keys_[key].writing = false;
  drop_if_empty(key);
}

SegmentHandle SegmentTable::publish(SegmentInfo info) {
  std::lock_guard lock(mu_);
  writing_.erase(info.id);
  writing_ids_.erase(info.key);
  auto& state = keys_[info.key];
  state.writing = false;
  return pin(enter(state, std::move(info)));
}

void SegmentTable::reserve(std::size_t segments) {
  std::lock_guard lock(mu_);
  keys_.reserve(segments);
  entries_.reserve(segments);
  policy_->reserve(segments);
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
  state.live = info.id;
  state.used_ms = std::max(state.used_ms, info.created_ms);
  ++num_live_;
  Entry& entry = entries_[info.id];
  entry.info = std::make_shared<const SegmentInfo>(std::move(info));
  policy_->insert(key, entry.info->disk_bytes);
  if (state.pinned_refs > 0) set_pinned(key, state, true);
  return entry;
}

/// The policy does not know pinned segments, so that looking for a victim never passes over them.
void SegmentTable::set_pinned(const ContextKey& key, const KeyState& state, bool pinned) {
  const std::uint64_t bytes = entries_.at(state.live).info->disk_bytes;
  if (pinned && pinned_.insert(state.live).second) {
    pinned_bytes_ += bytes;
    policy_->erase(key);
  } else if (!pinned && pinned_.erase(state.live) > 0) {
    pinned_bytes_ -= bytes;
    policy_->insert(key, bytes);
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
  if (used_ms) {
    policy_->touch(key);
    it->second.used_ms = std::max(it->second.used_ms, *used_ms);
  }
  return pin(entries_.at(it->second.live));
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
    auto victim = policy_->evict([&](const ContextKey& key) {
      const auto& state = keys_.at(key);
      return state.pinned_refs == 0 && entries_.at(state.live).pins == 0;
    });
    if (!victim) return false;
    doom(entries_.at(keys_.at(*victim).live), FreeReason::kBudget);
  }
  notify();
  return true;
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
  policy_->erase(key);
  if (pinned_.erase(entry.info->id) > 0) pinned_bytes_ -= entry.info->disk_bytes;
  keys_.at(key).live = 0;
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
