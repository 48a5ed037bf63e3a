/// Keeps the last queries for /v1/queries and /explain.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/reply/query_record.h"

namespace quire {

/// Threads: any.
class ExplainRing {
 public:
  explicit ExplainRing(std::size_t capacity) : capacity_(capacity) {}
  void set_capacity(std::size_t capacity);
  void add(std::shared_ptr<const QueryRecord> record);
  /// Returns the query; null: unknown, of another namespace, or dropped from the ring.
  std::shared_ptr<const QueryRecord> find(const std::string& ns, const std::string& id) const;
  struct Page {
    std::vector<std::shared_ptr<const QueryRecord>> records;
    bool has_more = false, after_known = true;
  };
  Page list(const std::string& ns, const std::string& after, std::size_t limit,
            bool newest_first) const;

 private:
  void shrink();
  mutable std::mutex mu_;
  std::size_t capacity_;                                    // guarded by mu_
  std::deque<std::shared_ptr<const QueryRecord>> records_;  // guarded by mu_: oldest first
  std::unordered_map<std::string, std::shared_ptr<const QueryRecord>> by_id_;  // guarded by mu_
};

}  // namespace quire
