#include "engine/supply/early_contexts.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "engine/supply/write_computed.h"

namespace quire {
namespace {

/// Bytes of KV that may wait for the plans of all queries. What follows is placed as soon as it is
/// computed.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

}  // namespace

EarlyContexts::EarlyContexts(QueryRun& run, const std::vector<Wanted>& wanted) : run_(run) {
  for (const Wanted& w : wanted) contexts_.push_back({.wanted = w});
}

EarlyContexts::~EarlyContexts() { run_.core.early_bytes -= bytes_; }

void EarlyContexts::count(std::int64_t bytes) {
  bytes_ += bytes;
  run_.core.early_bytes += bytes;
}

bool EarlyContexts::left() const {
  return computing_ || (next_ < contexts_.size() && run_.core.early_bytes < kMostBytes);
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
  context.finished = true;
  count(context.kv->layout.total_bytes());
  if (context.wanted.writable) write_computed(run_, context.wanted.key, context.kv);
  rows_ = computing_->take_rows();
  computing_.reset();
  skip_dropped();
  return {};
}

void EarlyContexts::skip_dropped() {
  while (next_ < contexts_.size() && (contexts_[next_].finished || contexts_[next_].dropped))
    ++next_;
}

std::size_t EarlyContexts::index_of(const ContextKey& key) const {
  const auto found = std::ranges::find(contexts_, key,
                                       [](const Context& c) { return c.wanted.key; });
  return static_cast<std::size_t>(found - contexts_.begin());
}

bool EarlyContexts::finished(const ContextKey& key) const {
  const std::size_t i = index_of(key);
  return i < contexts_.size() && contexts_[i].finished;
}

void EarlyContexts::drop(const ContextKey& key) {
  const std::size_t i = index_of(key);
  if (i == contexts_.size() || contexts_[i].finished) return;
  contexts_[i].dropped = true;
  if (i == next_) computing_.reset();
  skip_dropped();
}

std::shared_ptr<const ContextKv> EarlyContexts::take(const ContextKey& key) {
  const std::size_t i = index_of(key);
  if (i == contexts_.size() || contexts_[i].kv == nullptr) return nullptr;
  count(-contexts_[i].kv->layout.total_bytes());
  return std::move(contexts_[i].kv);
}

std::int64_t EarlyContexts::held_bytes() const {
  return computing_ ? computing_->cache().bytes() + computing_->cache().bytes_out() : 0;
}

void EarlyContexts::suspend() {
  rows_.reset();  // the next context is computed anew rather than moved out and in
  if (computing_ && !computing_->cache().move_out().ok()) computing_.reset();
}

Status EarlyContexts::resume() { return computing_ ? computing_->cache().move_in() : Status(); }

}  // namespace quire
