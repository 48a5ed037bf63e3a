#include "cachestore/expiry_queue.h"

namespace quire {

void ExpiryQueue::set(const std::string& document, std::optional<std::int64_t> when_ms) {
  std::lock_guard lock(mu_);
  const auto it = times_.find(document);
  if (it != times_.end()) {
    if (when_ms == it->second) return;
    order_.erase({it->second, document});
    if (!when_ms) times_.erase(it);
  }
  if (!when_ms) return;
  times_[document] = *when_ms;
  order_.emplace(*when_ms, document);
}

std::vector<std::string> ExpiryQueue::due(std::int64_t now_ms, std::size_t at_most) const {
  std::vector<std::string> out;
  std::lock_guard lock(mu_);
  for (const auto& [when, document] : order_) {
    if (when > now_ms || out.size() >= at_most) break;
    out.push_back(document);
  }
  return out;
}

bool ExpiryQueue::contains(const std::string& document) const {
  std::lock_guard lock(mu_);
  return times_.contains(document);
}

std::size_t ExpiryQueue::size() const {
  std::lock_guard lock(mu_);
  return order_.size();
}

}  // namespace quire
