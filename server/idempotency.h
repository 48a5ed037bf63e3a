/// Remembers the first reply to an Idempotency-Key and gives it again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "cachestore/key.h"
#include "server/http/http_message.h"

namespace quire {

/// Bounded in replies and bytes: the oldest go first. Kept in memory; a restart forgets.
/// Threads: every method may be called concurrently.
class IdempotencyStore {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::chrono::seconds keep{24 * 3600};
    std::size_t max_entries = 10000;
    std::size_t max_bytes = 64u << 20;
  };
  enum class Outcome : unsigned char { kFirst, kReplay, kInProgress, kMismatch };
  struct Lookup {
    Outcome outcome = Outcome::kFirst;
    std::shared_ptr<const HttpResponse> reply;  ///< kReplay
  };

  explicit IdempotencyStore(Options options, std::function<Clock::time_point()> now = Clock::now) : options_(options), now_(std::move(now)) {}

  /// `slot`: key + method + path + Idempotency-Key. kFirst: the caller works, and calls complete() or forget().
  Lookup begin(const std::string& slot, const Digest& body);
  void complete(const std::string& slot, HttpResponse reply);
  /// The work was not done: the next one with this key is the first again. A remembered reply stays.
  void forget(const std::string& slot);
  std::size_t size() const;

 private:
  struct Entry {
    Digest body;
    std::shared_ptr<const HttpResponse> reply;  ///< null: still running
    Clock::time_point at;
    std::list<std::string>::iterator age;
    std::size_t bytes = 0;
  };
  void erase(std::unordered_map<std::string, Entry>::iterator it);
  void shrink(Clock::time_point now);

  const Options options_;
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mu_;
  std::unordered_map<std::string, Entry> entries_;  // guarded by mu_
  std::list<std::string> ages_;                     // guarded by mu_: oldest first
  std::size_t bytes_ = 0;                           // guarded by mu_
};

}  // namespace quire
