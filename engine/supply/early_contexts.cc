#include "engine/supply/early_contexts.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/index.h"

namespace quire {

EarlyContexts::EarlyContexts(QueryRun& run, const std::vector<Wanted>& wanted) : run_(run) {
  for (const Wanted& w : wanted) contexts_.push_back({.wanted = w});
}

Status EarlyContexts::step(double max_ms) {
  if (!left()) return {};
  Context& context = contexts_[next_];
  if (!computing_) {
    const ContextTokens tokens{run_.ids(context.wanted.context),
                               run_.left_context(context.wanted.context)};
    computing_ = std::make_unique<ContextPrefill>(run_.core, tokens, PrefillRecords::kAlways,
                                                  std::move(rows_));
  }
  const auto started = Clock::now();
  QUIRE_RETURN_IF_ERROR(computing_->step({.max_ms = max_ms}));
  const auto now = Clock::now();
  run_.stats.prefill_ms += ms_between(started, now);
  run_.add_span("compute_missing", started, now);
  if (!computing_->done()) return {};
  context.kv = computing_->take();
  rows_ = computing_->take_rows();
  computing_.reset();
  skip_dropped();
  return {};
}

void EarlyContexts::skip_dropped() {
  while (next_ < contexts_.size() && (contexts_[next_].kv || contexts_[next_].dropped)) ++next_;
}

EarlyContexts::Context* EarlyContexts::find(const ContextKey& key) {
  const auto found = std::ranges::find(contexts_, key,
                                       [](const Context& c) { return c.wanted.key; });
  return found == contexts_.end() ? nullptr : &*found;
}

void EarlyContexts::drop(const ContextKey& key) {
  Context* const context = find(key);
  if (context == nullptr || context->kv) return;
  context->dropped = true;
  if (computing_ && context == &contexts_[next_]) computing_.reset();
  skip_dropped();
}

std::shared_ptr<const ContextKv> EarlyContexts::take(const ContextKey& key) {
  Context* const context = find(key);
  return context == nullptr ? nullptr : std::move(context->kv);
}

std::int64_t EarlyContexts::held_bytes() const {
  return computing_ ? computing_->cache().bytes() + computing_->cache().bytes_out() : 0;
}

void EarlyContexts::suspend() {
  rows_.reset();  // the next context is computed anew rather than moved out and in
  if (computing_) computing_->cache().move_out();
}

Status EarlyContexts::resume() { return computing_ ? computing_->cache().move_in() : Status(); }

}  // namespace quire
