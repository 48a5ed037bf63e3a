#include "engine/query/query_run.h"

#include "base/clock.h"

#include <algorithm>

namespace quire {

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
