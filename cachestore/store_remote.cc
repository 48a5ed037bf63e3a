// This file implements what StoreImpl does with the shared tiers: recalling and sharing segments.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

/// The longest wait for one context, whatever it would cost to compute.
constexpr double kLongestWaitMs = 600'000;

}  // namespace

void StoreImpl::recall_async(RecallRequest request, RecallDone done) {
  if (auto found = segments_->find(request.key, std::nullopt)) return done(std::move(*found));
  if (!recalls()) return done(Status::not_found("this store has no shared tier to read"));
  {
    const std::lock_guard lock(recall_mu_);
    auto& waiting = recalls_[request.key];
    waiting.push_back(std::move(done));
    if (waiting.size() > 1) return;
  }
  RemoteWanted wanted;
  wanted.key = request.key;
  wanted.fingerprint = request.fingerprint;
  wanted.layout = request.layout;
  wanted.value_bytes = request.value_bytes;
  const double ms = std::isfinite(request.worth_ms)
                        ? std::clamp(request.worth_ms, 0.0, kLongestWaitMs)
                        : kLongestWaitMs;
  wanted.deadline = Clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(ms * 1000));
  remote_->recall(std::move(wanted), [this, request](Result<RecalledSegment> recalled) {
    const auto segment = recalled.ok() ? take_recalled(request, std::move(*recalled))
                                       : Result<SegmentHandle>(recalled.status());
    std::vector<RecallDone> waiting;
    {
      const std::lock_guard lock(recall_mu_);
      const auto it = recalls_.find(request.key);
      waiting.swap(it->second);
      recalls_.erase(it);
    }
    for (const RecallDone& each : waiting) each(segment);
  });
}

Result<SegmentHandle> StoreImpl::take_recalled(const RecallRequest& request,
                                               RecalledSegment recalled) {
  const RemoteRecord& r = recalled.record;
  auto writer = begin_segment(request.key, r.layout, r.value_bytes() + r.sketch_bytes(),
                              request.tenant, request.fingerprint);
  if (writer.code() == Code::kAlreadyExists) {
    if (auto found = segments_->find(request.key, std::nullopt)) return std::move(*found);
  }
  QUIRE_RETURN_IF_ERROR(writer.status());
  for (std::uint64_t i = 0; i < r.num_values(); ++i)
    QUIRE_RETURN_IF_ERROR(
        (*writer)->take_value(static_cast<std::uint32_t>(i / r.layout.values_per_block),
                              static_cast<std::uint32_t>(i % r.layout.values_per_block),
                              std::move(recalled.values[to_size(i)])));
  for (std::uint32_t i = 0; i < r.layout.num_sketches; ++i)
    QUIRE_RETURN_IF_ERROR(
        (*writer)->put_sketch(i, recalled.values[to_size(r.num_values() + i)]->payload()));
  QUIRE_ASSIGN_OR_RETURN(SegmentHandle segment, (*writer)->finish());
  if (const auto kept = commit_segments(std::span(&segment, 1)); !kept.ok())
    log_warning("KV of a shared tier is not kept over a restart",
                {{"reason", quoted(kept.status())}});
  return segment;
}

void StoreImpl::share(std::span<const ContextKey> keys) {
  if (!remote_ || !remote_->writes()) return;
  for (const ContextKey& key : keys) {
    auto segment = segments_->find(key, std::nullopt);
    if (!segment) continue;
    remote_->write(*segment, [this, held = *segment](const record::ValueName& name) {
      ReadRequest read{held, name.block, name.group, ReadKind::kValue};
      if (name.part == record::Part::kSketch) read.kind = ReadKind::kSketch;
      return peek_value(read);
    });
  }
  if (options_.remote.write_through) remote_->wait_written();
}

}  // namespace quire
