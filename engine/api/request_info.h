/// This file describes a running or waiting query for status pages.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

/// State of a query between query() and its on_done.
enum class RequestState : std::uint8_t {
  kWaiting,     ///< waits for its turn
  kPrefilling,  ///< runs: it fetches, places or computes its prompt
  kDecoding,    ///< runs: it generates its answer
  kPreempted,   ///< gave its memory back; resumes by itself when there is room
};
std::string_view request_state_name(RequestState state);

/// Describes one query that has not ended.
struct RequestInfo {
  std::string id, tenant;
  std::string ns;        ///< of the caller; where namespaces share KV, all have one tenant
  std::string strategy;  ///< requested strategy; once planned, the one in use
  RequestState state = RequestState::kWaiting;
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::chrono::milliseconds age{0};  ///< time since query()
  std::int32_t queue_position = -1;  ///< 0: next; -1: running
};

}  // namespace quire
