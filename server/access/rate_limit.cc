#include "server/access/rate_limit.h"

#include <algorithm>
#include <cmath>

namespace quire {

void RateLimiter::refill(Bucket& b, double per_minute, Clock::time_point now) {
  if (b.capacity != per_minute) {  // new, or the limit was changed by a reload
    b.level = b.capacity == 0 ? per_minute : std::min(b.level, per_minute);
    b.capacity = per_minute;
  } else {
    b.level = std::min(b.capacity, b.level + std::chrono::duration<double>(now - b.at).count() *
                                                 per_minute / 60.0);
  }
  b.at = now;
}

RateState RateLimiter::state(const Bucket& b) {
  RateState s;
  s.limit = static_cast<std::int64_t>(b.capacity);
  s.remaining = std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(b.level)));
  s.reset_seconds = b.capacity > 0 ? (b.capacity - b.level) * 60.0 / b.capacity : 0;
  return s;
}

void RateLimiter::forget_full(Clock::time_point now) {
  const auto full = [now](const Bucket& b) {
    const double more = std::chrono::duration<double>(now - b.at).count() * b.capacity / 60.0;
    return b.level + more >= b.capacity;
  };
  std::erase_if(buckets_,
                [&](const auto& b) { return full(b.second.requests) && full(b.second.tokens); });
}

RateDecision RateLimiter::take_request(const std::string& key, std::int64_t requests_per_minute,
                                       std::int64_t tokens_per_minute) {
  RateDecision d;
  if (requests_per_minute <= 0 && tokens_per_minute <= 0) return d;
  const auto now = now_();
  std::lock_guard lock(mu_);
  if (buckets_.size() >= kManyKeys && !buckets_.contains(key)) forget_full(now);
  Buckets& b = buckets_[key];
  refill(b.requests, static_cast<double>(std::max<std::int64_t>(0, requests_per_minute)), now);
  refill(b.tokens, static_cast<double>(std::max<std::int64_t>(0, tokens_per_minute)), now);
  double wait_s = 0;
  if (requests_per_minute > 0 && b.requests.level < 1)
    wait_s = (1 - b.requests.level) * 60.0 / b.requests.capacity;
  if (tokens_per_minute > 0 && b.tokens.level <= 0) {
    const double w = (1 - b.tokens.level) * 60.0 / b.tokens.capacity;
    d.tokens_exhausted = w > wait_s;
    wait_s = std::max(wait_s, w);
  }
  d.allowed = wait_s == 0;
  d.retry_after_ms = static_cast<std::int64_t>(std::ceil(wait_s * 1000));
  if (d.allowed && requests_per_minute > 0) b.requests.level -= 1;
  d.requests = state(b.requests);
  d.tokens = state(b.tokens);
  return d;
}

void RateLimiter::charge_tokens(const std::string& key, std::int64_t tokens) {
  std::lock_guard lock(mu_);
  const auto it = buckets_.find(key);
  if (it != buckets_.end() && it->second.tokens.capacity > 0)
    it->second.tokens.level -= static_cast<double>(tokens);
}

}  // namespace quire
