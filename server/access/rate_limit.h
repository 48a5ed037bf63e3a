/// Limits the requests and tokens per minute of each key by token buckets that fill evenly.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

namespace quire {

struct RateState {
  std::int64_t limit = 0, remaining = 0;  ///< limit 0: none
  double reset_seconds = 0;               ///< until the bucket is full again
};

struct RateDecision {
  bool allowed = true;
  bool tokens_exhausted = false;  ///< the token limit refused, not the request limit
  std::int64_t retry_after_ms = 0;
  RateState requests, tokens;
};

/// Threads: every method may be called concurrently.
class RateLimiter {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RateLimiter(std::function<Clock::time_point()> now = Clock::now)
      : now_(std::move(now)) {}

  /// Takes one request from the key's buckets. It is refused while no request is left or the token
  /// bucket is not above zero.
  RateDecision take_request(const std::string& key, std::int64_t requests_per_minute,
                            std::int64_t tokens_per_minute);
  /// Takes tokens, which are known only after the work. The bucket may go below zero, which delays
  /// later requests.
  void charge_tokens(const std::string& key, std::int64_t tokens);

 private:
  struct Bucket {
    double level = 0, capacity = 0;
    Clock::time_point at{};
  };
  struct Buckets {
    Bucket requests, tokens;
  };
  static constexpr std::size_t kManyKeys = 4096;
  void forget_full(Clock::time_point now);
  static void refill(Bucket& bucket, double per_minute, Clock::time_point now);
  static RateState state(const Bucket& bucket);

  const std::function<Clock::time_point()> now_;
  std::mutex mu_;
  // Guarded by mu_. Past kManyKeys those that are full again are forgotten, as tokens may name
  // any number of callers.
  std::unordered_map<std::string, Buckets> buckets_;
};

}  // namespace quire
