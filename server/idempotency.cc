#include "server/idempotency.h"

namespace quire {

IdempotencyStore::Lookup IdempotencyStore::begin(const std::string& slot, const Digest& body) {
  const auto now = now_();
  std::lock_guard lock(mu_);
  shrink(now);
  if (const auto it = entries_.find(slot); it != entries_.end()) {
    const Entry& e = it->second;
    if (e.body != body) return {Outcome::kMismatch, nullptr};
    if (!e.reply) return {Outcome::kInProgress, nullptr};
    return {Outcome::kReplay, e.reply};
  }
  ages_.push_back(slot);
  Entry e;
  e.body = body;
  e.at = now;
  e.age = std::prev(ages_.end());
  e.bytes = slot.size() + 256;
  bytes_ += e.bytes;
  entries_.emplace(slot, std::move(e));
  return {Outcome::kFirst, nullptr};
}

void IdempotencyStore::complete(const std::string& slot, HttpResponse reply) {
  std::lock_guard lock(mu_);
  const auto it = entries_.find(slot);
  if (it == entries_.end()) return;
  const std::size_t size = reply.body.size() + 512;
  it->second.bytes += size;
  bytes_ += size;
  it->second.reply = std::make_shared<const HttpResponse>(std::move(reply));
  shrink(now_());
}

void IdempotencyStore::forget(const std::string& slot) {
  std::lock_guard lock(mu_);
  if (const auto it = entries_.find(slot); it != entries_.end() && !it->second.reply) erase(it);
}

std::size_t IdempotencyStore::size() const {
  std::lock_guard lock(mu_);
  return entries_.size();
}

void IdempotencyStore::erase(std::unordered_map<std::string, Entry>::iterator it) {
  bytes_ -= it->second.bytes;
  ages_.erase(it->second.age);
  entries_.erase(it);
}

void IdempotencyStore::shrink(Clock::time_point now) {
  // Running entries are never dropped: dropping one would let its twin run beside it.
  for (auto age = ages_.begin(); age != ages_.end();) {
    const auto it = entries_.find(*age++);
    if (!it->second.reply) continue;
    const bool old = now - it->second.at > options_.keep;
    if (!old && entries_.size() <= options_.max_entries && bytes_ <= options_.max_bytes) break;
    erase(it);
  }
}

}  // namespace quire
