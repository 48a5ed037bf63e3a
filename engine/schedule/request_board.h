/// This file publishes the state of every query between submission and end to threads other than
/// the engine thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/api/request_info.h"
#include "engine/api/requests.h"
#include "engine/query/query_resources.h"

namespace quire {

/// State of one query. The engine thread writes it, any thread reads it.
class RequestRecord {
 public:
  RequestRecord(const QueryRequest& request, Clock::time_point received);

  const std::string& id() const { return id_; }
  const std::shared_ptr<std::atomic<bool>>& cancelled() const { return cancelled_; }
  void set_state(RequestState state) { state_.store(state, std::memory_order_relaxed); }
  void set_completion_tokens(std::int64_t n) {
    completion_tokens_.store(n, std::memory_order_relaxed);
  }
  void set_queue_position(std::int32_t position) {
    queue_position_.store(position, std::memory_order_relaxed);
  }
  void set_strategy(const std::string& strategy);
  RequestInfo info(Clock::time_point now) const;

 private:
  const std::string id_, tenant_, ns_;
  const std::int64_t prompt_tokens_;
  const Clock::time_point received_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<RequestState> state_{RequestState::kWaiting};
  std::atomic<std::int64_t> completion_tokens_{0};
  std::atomic<std::int32_t> queue_position_{-1};
  mutable std::mutex mu_;
  std::string strategy_;  // guarded by mu_
};

/// Holds the records of queries that have not ended, oldest first. Threads: any.
class RequestBoard {
 public:
  std::shared_ptr<RequestRecord> add(const QueryRequest& request, Clock::time_point received);
  void remove(const RequestRecord& record);
  std::vector<RequestInfo> list(Clock::time_point now) const;
  /// Cancels every query with this id; returns false if there is none.
  bool cancel(const std::string& id);

 private:
  mutable std::mutex mu_;
  std::vector<std::shared_ptr<RequestRecord>> records_;  // guarded by mu_
};

}  // namespace quire
