#include "engine/supply/fetch.h"

#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {

MissReason reason_of(const Status& status) {
  switch (status.code()) {
    case Code::kCorruption:
      return MissReason::kCorrupt;
    case Code::kNotFound:
      return MissReason::kEvicted;
    default:
      return MissReason::kTierUnavailable;
  }
}

std::string name_of(const FetchItem& item) {
  return item.group == FetchItem::kRecord
             ? "record " + std::to_string(item.block)
             : "block " + std::to_string(item.block) + ", group " + std::to_string(item.group);
}

}  // namespace

/// State that outlives the Fetch, as the store may still reply after a query was cancelled.
struct Fetch::Shared {
  struct Context {
    std::vector<std::size_t> missing;  ///< [group + 1]; records are at 0
    MissReason failure = MissReason::kNone;
  };
  std::size_t& missing(const FetchItem& item) {
    auto& counts = contexts[at(item.context)].missing;
    const auto at = to_size(item.group + 1);
    if (at >= counts.size()) counts.resize(at + 1);
    return counts[at];
  }
  mutable std::mutex mu;
  std::vector<Context> contexts;  // guarded by mu
  std::vector<Arrived> arrived;   // guarded by mu
};

Fetch::Fetch(Store& store, std::shared_ptr<Waker> waker, std::vector<SegmentHandle> segments)
    : store_(store),
      waker_(std::move(waker)),
      segments_(std::move(segments)),
      shared_(std::make_shared<Shared>()),
      started_(Clock::now()) {
  shared_->contexts.resize(segments_.size());
}

Fetch::~Fetch() { stop_.request_stop(); }

void Fetch::start(std::vector<FetchItem> items) {
  if (items.empty()) return;
  std::vector<ReadRequest> reads;
  reads.reserve(items.size());
  {
    std::lock_guard lock(shared_->mu);
    for (const FetchItem& item : items) {
      ++shared_->missing(item);
      const bool record = item.group == FetchItem::kRecord;
      reads.push_back({segments_[at(item.context)], static_cast<std::uint32_t>(item.block),
                       record ? 0u : static_cast<std::uint32_t>(item.group),
                       record ? ReadKind::kSketch : ReadKind::kValue});
    }
  }
  const auto asked = std::make_shared<const std::vector<FetchItem>>(std::move(items));
  auto done = [shared = shared_, waker = waker_, asked, started = started_](
                  std::size_t index, Result<PinnedBytes> bytes, Tier tier) {
    const FetchItem& item = (*asked)[index];
    bool settled = false;
    {
      std::lock_guard lock(shared->mu);
      auto& context = shared->contexts[at(item.context)];
      std::size_t& missing = shared->missing(item);
      --missing;
      settled = missing == 0;
      if (bytes.ok()) {
        shared->arrived.push_back(
            {item, std::move(*bytes), tier, ms_between(started, Clock::now())});
      } else if (context.failure == MissReason::kNone) {
        context.failure = reason_of(bytes.status());
        settled = true;
        if (bytes.code() != Code::kCancelled) {
          log_warning("cached KV not readable, computing it again",
                      {{"part", name_of(item)}, {"error", bytes.status().to_string()}});
        }
      }
    }
    if (settled) waker->wake();
  };
  const Status queued = store_.fetch_async(std::move(reads), std::move(done), stop_.get_token());
  if (!queued.ok()) {
    log_warning("the store takes no reads, computing the documents again",
                {{"error", queued.to_string()}});
    std::lock_guard lock(shared_->mu);
    for (const FetchItem& item : *asked)
      shared_->contexts[at(item.context)].failure = MissReason::kTierUnavailable;
  }
}

std::vector<Fetch::Arrived> Fetch::take() {
  std::lock_guard lock(shared_->mu);
  return std::exchange(shared_->arrived, {});
}

bool Fetch::complete(std::int32_t context, std::int32_t group) const {
  std::lock_guard lock(shared_->mu);
  const auto& counts = shared_->contexts[at(context)].missing;
  const auto at = to_size(group + 1);
  return at >= counts.size() || counts[at] == 0;
}

MissReason Fetch::failure(std::int32_t context) const {
  std::lock_guard lock(shared_->mu);
  return shared_->contexts[at(context)].failure;
}

}  // namespace quire
