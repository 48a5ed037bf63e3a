/// This file declares which documents expire next, so that expiry looks at due ones only.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quire {

/// Orders documents by the time of their expiry. A time may be too early: a use since then moves
/// the expiry of some documents, which their reader finds out. Documents that never expire take no
/// memory. Threads: all methods concurrently.
class ExpiryQueue {
 public:
  /// Sets or replaces when a document expires (Unix ms); empty: never.
  void set(const std::string& document, std::optional<std::int64_t> when_ms);
  /// Returns up to `at_most` documents whose time is not after `now_ms`, earliest first.
  std::vector<std::string> due(std::int64_t now_ms, std::size_t at_most) const;
  /// Returns whether the document expires at some time.
  bool contains(const std::string& document) const;
  std::size_t size() const;

 private:
  mutable std::mutex mu_;
  std::unordered_map<std::string, std::int64_t> times_;   // guarded by mu_
  std::set<std::pair<std::int64_t, std::string>> order_;  // guarded by mu_
};

}  // namespace quire
