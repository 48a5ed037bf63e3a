#include "engine/query/query_run.h"

#include <algorithm>

#include "base/clock.h"
#include "engine/plan/plan_builder.h"

namespace quire {

std::int32_t QueryRun::look_ahead_tokens() const {
  if (request.plan_only) return 0;
  return std::min<std::int32_t>(compressor->lookahead_tokens(), request.sampling.max_tokens);
}

void QueryRun::ask_draft(const QueryLookAhead::Wanted& wanted) {
  if (wanted.tokens == 0 && wanted.score_window == 0) return;
  const auto asked = std::make_shared<QueryLookAhead>(core, request, plan, wanted);
  if (wanted.score_window > 0) draft_scores = asked;
  if (wanted.tokens > 0) look_ahead = asked;
}

std::int64_t QueryRun::most_rows() const {
  const std::int64_t prompt = most_prompt_tokens(request);
  return std::min(prompt + request.sampling.max_tokens, std::max(core.facts.window, prompt));
}

std::int64_t QueryRun::choosing_bytes() const {
  return quire::choosing_bytes(core.facts.choosing, *retriever, std::ssize(request.contexts),
                               most_rows());
}

void QueryRun::add_span(std::string name, Clock::time_point from, Clock::time_point to) {
  auto& spans = plan.spans;
  const auto same = std::find_if(spans.begin(), spans.end(),
                                 [&](const Span& s) { return s.name == name; });
  const double start = ms_between(received, from), end = ms_between(received, to);
  if (same == spans.end()) {
    spans.push_back({std::move(name), start, end - start});
  } else {
    same->ms = end - same->start_ms;
  }
}

}  // namespace quire
