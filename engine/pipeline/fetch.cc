#include "engine/pipeline/fetch.h"

#include "kernels/base/log.h"

namespace quire {
namespace {

MissReason reason_of(const Status& status) {
  switch (status.code()) {
    case Code::kCorruption: return MissReason::kCorrupt;
    case Code::kNotFound: return MissReason::kEvicted;
    default: return MissReason::kTierUnavailable;
  }
}

}  // namespace

/// Outlives the Fetch: the store may still answer after a query was cancelled.
struct Fetch::Shared {
  struct Context {
    std::vector<std::size_t> items;
    std::size_t missing = 0;
    MissReason failure = MissReason::kNone;
  };
  mutable std::mutex mu;
  std::vector<Context> contexts;  // guarded by mu
  std::vector<Arrived> arrived;   // guarded by mu
};

Fetch::Fetch(std::int32_t num_contexts) : shared_(std::make_shared<Shared>()), started_(Clock::now()) {
  shared_->contexts.resize(static_cast<std::size_t>(num_contexts));
}

Fetch::~Fetch() { stop_.request_stop(); }

void Fetch::start(Store& store, std::shared_ptr<Waker> waker, std::span<const SegmentHandle> segments, std::vector<FetchItem> items) {
  started_ = Clock::now();
  if (items.empty()) return;
  std::vector<ReadRequest> reads;
  reads.reserve(items.size());
  {
    std::lock_guard lock(shared_->mu);
    shared_->arrived.resize(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const FetchItem& item = items[i];
      auto& context = shared_->contexts[static_cast<std::size_t>(item.context)];
      context.items.push_back(i);
      ++context.missing;
      shared_->arrived[i].item = item;
      reads.push_back({segments[static_cast<std::size_t>(item.context)], static_cast<std::uint32_t>(item.block),
                       static_cast<std::uint32_t>(item.group)});
    }
  }
  auto done = [shared = shared_, waker, started = started_](std::size_t index, Result<PinnedBytes> bytes, Tier tier) {
    bool settled = false;
    {
      std::lock_guard lock(shared->mu);
      Arrived& slot = shared->arrived[index];
      auto& context = shared->contexts[static_cast<std::size_t>(slot.item.context)];
      --context.missing;
      if (bytes.ok()) {
        slot.bytes = std::move(*bytes);
        slot.tier = tier;
        slot.ms = ms_between(started, Clock::now());
      } else if (context.failure == MissReason::kNone) {
        context.failure = reason_of(bytes.status());
        settled = true;
        if (bytes.code() != Code::kCancelled) {
          log_warning("cached block not readable, computing it again", {{"block", std::to_string(slot.item.block)}, {"error", bytes.status().to_string()}});
        }
      }
      settled = settled || context.missing == 0;
    }
    if (settled) waker->wake();
  };
  const Status queued = store.fetch_async(std::move(reads), std::move(done), stop_.get_token());
  if (!queued.ok()) {
    log_warning("the store takes no reads, computing the documents again", {{"error", queued.to_string()}});
    std::lock_guard lock(shared_->mu);
    for (auto& context : shared_->contexts) {
      if (!context.items.empty()) context.failure = MissReason::kTierUnavailable;
    }
  }
}

Fetch::State Fetch::state(std::int32_t context) const {
  std::lock_guard lock(shared_->mu);
  const auto& c = shared_->contexts[static_cast<std::size_t>(context)];
  if (c.failure != MissReason::kNone) return State::kFailed;
  return c.missing == 0 ? State::kReady : State::kPending;
}

MissReason Fetch::failure(std::int32_t context) const {
  std::lock_guard lock(shared_->mu);
  return shared_->contexts[static_cast<std::size_t>(context)].failure;
}

std::vector<Fetch::Arrived> Fetch::take(std::int32_t context) {
  std::lock_guard lock(shared_->mu);
  auto& c = shared_->contexts[static_cast<std::size_t>(context)];
  std::vector<Arrived> values;
  values.reserve(c.items.size());
  for (std::size_t i : c.items) values.push_back(std::move(shared_->arrived[i]));
  c.items.clear();
  return values;
}

}  // namespace quire
