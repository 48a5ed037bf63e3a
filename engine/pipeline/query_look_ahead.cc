#include "engine/pipeline/query_look_ahead.h"

#include <algorithm>

namespace quire {
namespace {

/// As the target sees it: no context twice.
std::vector<std::int32_t> whole_prompt(const QueryRequest& request, const QueryPlan& plan) {
  std::vector<std::int32_t> ids = request.prefix_ids;
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    if (plan.plan.contexts[i].duplicate) continue;
    ids.insert(ids.end(), request.contexts[i].token_ids.begin(), request.contexts[i].token_ids.end());
  }
  ids.insert(ids.end(), request.suffix_ids.begin(), request.suffix_ids.end());
  return ids;
}

}  // namespace

QueryLookAhead::QueryLookAhead(EngineCore& core, const QueryRequest& request, const QueryPlan& plan, std::int32_t num_tokens)
    : patience_(core.draft_wait_ms), asked_(Clock::now()) {
  if (core.draft == nullptr) {
    settle(asked_, "no draft model is loaded (model.draft_path)");
    return;
  }
  DraftRequest asked;
  asked.prompt_ids = whole_prompt(request, plan);
  asked.max_tokens = num_tokens;
  asked.on_done = [waker = core.waker] { waker->wake(); };
  answer_ = core.draft->ask(std::move(asked));
}

QueryLookAhead::QueryLookAhead(std::vector<std::int32_t> token_ids, double draft_ms) : patience_(0), asked_(Clock::now()), earlier_ms_(draft_ms) {
  answer_ = std::make_shared<LookAhead>();
  answer_->finish(std::move(token_ids), {});
  settle(asked_, {});
}

QueryLookAhead::~QueryLookAhead() {
  if (answer_) answer_->cancel();
}

void QueryLookAhead::settle(Clock::time_point now, std::string reason) {
  settled_ = true;
  settled_at_ = now;
  reason_ = std::move(reason);
}

bool QueryLookAhead::settled(Clock::time_point now) {
  if (settled_) return true;
  if (!waited_since_) waited_since_ = now;
  if (answer_->done()) {
    settle(now, answer_->reason());
  } else if (now - *waited_since_ >= patience_) {
    answer_->cancel();
    settle(now, "the draft took longer than model.draft_wait_ms");
  }
  return settled_;
}

std::span<const std::int32_t> QueryLookAhead::tokens(std::int64_t most) const {
  if (!settled_ || !reason_.empty()) return {};
  const std::span<const std::int32_t> ids = answer_->token_ids();
  return ids.first(std::min(ids.size(), static_cast<std::size_t>(std::max<std::int64_t>(0, most))));
}

}  // namespace quire
