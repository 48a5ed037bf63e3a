/// What is shown of a query that has not ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

/// Where a query is between query() and its on_done.
enum class RequestState : std::uint8_t {
  kWaiting,     ///< for its turn
  kPrefilling,  ///< runs: fetching, placing or computing its prompt
  kDecoding,    ///< runs: its answer is on the way
  kPreempted,   ///< gave its memory back; goes on by itself when there is room
};
std::string_view request_state_name(RequestState state);

/// One query that has not ended.
struct RequestInfo {
  std::string id, tenant;
  std::string strategy;  ///< asked for; once planned: the one in use
  RequestState state = RequestState::kWaiting;
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::chrono::milliseconds age{0};  ///< since query()
  std::int32_t queue_position = -1;  ///< 0: next; -1: it runs
};

}  // namespace quire
