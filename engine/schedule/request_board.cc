#include "engine/schedule/request_board.h"

namespace quire {
namespace {

std::int64_t prompt_tokens(const QueryRequest& request) {
  std::size_t n = request.prefix_ids.size() + request.suffix_ids.size();
  for (const QueryContext& c : request.contexts) n += c.token_ids.size();
  return static_cast<std::int64_t>(n);
}

}  // namespace

std::string_view request_state_name(RequestState state) {
  switch (state) {
    case RequestState::kWaiting:
      return "waiting";
    case RequestState::kPrefilling:
      return "prefilling";
    case RequestState::kDecoding:
      return "decoding";
    case RequestState::kPreempted:
      break;
  }
  return "preempted";
}

RequestRecord::RequestRecord(const QueryRequest& request, Clock::time_point received)
    : id_(request.id),
      tenant_(request.tenant),
      ns_(request.ns),
      prompt_tokens_(prompt_tokens(request)),
      received_(received),
      strategy_(request.cache.strategy) {}

void RequestRecord::set_strategy(const std::string& strategy) {
  std::lock_guard lock(mu_);
  strategy_ = strategy;
}

RequestInfo RequestRecord::info(Clock::time_point now) const {
  RequestInfo info;
  info.id = id_;
  info.tenant = tenant_;
  info.ns = ns_;
  info.state = state_.load(std::memory_order_relaxed);
  info.prompt_tokens = prompt_tokens_;
  info.completion_tokens = completion_tokens_.load(std::memory_order_relaxed);
  info.age = std::chrono::duration_cast<std::chrono::milliseconds>(now - received_);
  info.queue_position = queue_position_.load(std::memory_order_relaxed);
  std::lock_guard lock(mu_);
  info.strategy = strategy_;
  return info;
}

std::shared_ptr<RequestRecord> RequestBoard::add(const QueryRequest& request,
                                                 Clock::time_point received) {
  auto record = std::make_shared<RequestRecord>(request, received);
  std::lock_guard lock(mu_);
  records_.push_back(record);
  return record;
}

void RequestBoard::remove(const RequestRecord& record) {
  std::lock_guard lock(mu_);
  std::erase_if(records_, [&record](const auto& r) { return r.get() == &record; });
}

std::vector<RequestInfo> RequestBoard::list(Clock::time_point now) const {
  std::lock_guard lock(mu_);
  std::vector<RequestInfo> out;
  out.reserve(records_.size());
  for (const auto& r : records_) out.push_back(r->info(now));
  return out;
}

bool RequestBoard::cancel(const std::string& id) {
  std::lock_guard lock(mu_);
  bool found = false;
  for (const auto& r : records_) {
    if (r->id() != id) continue;
    r->cancelled()->store(true);
    found = true;
  }
  return found;
}

}  // namespace quire
