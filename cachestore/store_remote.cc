// This file implements what StoreImpl does with the shared tiers: recalling and sharing segments.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/format/byte_io.h"
#include "cachestore/format/record.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

/// The longest wait for one context, whatever it would cost to compute.
constexpr double kLongestWaitMs = 600'000;

Clock::time_point after_ms(double ms) {
  return Clock::now() + std::chrono::microseconds(
                            static_cast<std::int64_t>(std::clamp(ms, 0.0, kLongestWaitMs) * 1000));
}

std::string encode_removal(const RemoteRemoval& removal) {
  ByteWriter w;
  w.digest(removal.key);
  w.text32(removal.name);
  w.text32(removal.tenant);
  return record::encode_opaque(w.take());
}

Result<RemoteRemoval> decode_removal(std::string_view stored) {
  QUIRE_ASSIGN_OR_RETURN(const std::string bytes, record::decode_opaque(stored));
  ByteReader r(bytes);
  RemoteRemoval removal;
  removal.key = r.digest();
  removal.name = r.text32();
  removal.tenant = r.text32();
  if (!r.ok() || !r.at_end())
    return Status::corruption("the record of a deletion in the shared tiers is damaged");
  return removal;
}

/// Returns the name of the record of this number; names are ordered as numbers are.
std::string removal_record(std::uint64_t number) {
  std::array<char, 17> digits{};
  (void)std::snprintf(digits.data(), digits.size(), "%016llx",
                      static_cast<unsigned long long>(number));
  return std::string(kRemovalPrefix) + digits.data();
}

std::string evicted_record(const ContextKey& key) {
  return std::string(kEvictedPrefix) + key.hex();
}

/// Ends the range of records of kRemovalPrefix.
std::string after_removals() {
  std::string end(kRemovalPrefix);
  ++end.back();
  return end;
}

RemoteCache::Turn turn_of(const RecallRequest& request) {
  return {remote_name(request.turn, request.fingerprint),
          remote_name(request.key, request.fingerprint)};
}

}  // namespace

void StoreImpl::recall_async(RecallRequest request, RecallDone done) {
  if (request.turn.is_zero() || !remote_ || !remote_->takes_turns())
    return recall(std::move(request), std::move(done));
  RecallRequest first = request;
  recall(std::move(first),
         [this, request = std::move(request), done = std::move(done)](Result<SegmentHandle> found) {
           // A tier that lacks the context has answered; without an answer there is no lease.
           if (found.code() != Code::kNotFound && found.code() != Code::kCorruption)
             return done(std::move(found));
           // Who computes may have begun late, and may compute something else first.
           const double ms = std::isfinite(request.worth_ms) ? 2 * request.worth_ms : 0;
           const auto until = after_ms(ms + static_cast<double>(options_.remote.lease.count()));
           const auto taken = [this, request, done](RemoteTurn turn) {
             if (turn == RemoteTurn::kStored) return recall(request, done);
             done(Status::not_found("no shared tier has this context"));
           };
           remote_->take_turn(turn_of(request), until, taken, request.unwanted);
         });
}

void StoreImpl::end_turn(const RecallRequest& request) {
  if (request.turn.is_zero() || !remote_) return;
  const RemoteCache::Turn turn = turn_of(request);
  if (!remote_->has_turn(turn)) return;
  // The document's commit may be far; who waits for the turn need not wait for that.
  if (const auto segment = segments_->find(request.key, std::nullopt)) queue_write(*segment);
  remote_->end_turn(turn);
}

void StoreImpl::recall(RecallRequest request, RecallDone done) {
  if (auto found = segments_->find(request.key, std::nullopt)) return done(std::move(*found));
  if (!recalls()) return done(Status::not_found("this store has no shared tier to read"));
  {
    const std::lock_guard lock(recall_mu_);
    auto& waiting = recalls_[request.key];
    waiting.push_back({std::move(done), request.unwanted});
    if (waiting.size() > 1) return;
  }
  RemoteWanted wanted;
  wanted.key = request.key;
  wanted.tenant = request.tenant;
  wanted.fingerprint = request.fingerprint;
  wanted.layout = request.layout;
  wanted.value_bytes = request.value_bytes;
  wanted.deadline = after_ms(std::isfinite(request.worth_ms) ? request.worth_ms : kLongestWaitMs);
  wanted.is_wanted = [this, key = request.key] {
    const std::lock_guard lock(recall_mu_);
    const auto it = recalls_.find(key);  // none: it was answered just now
    return it != recalls_.end() && std::ranges::any_of(it->second, [](const WaitingRecall& w) {
             return !w.unwanted.stop_requested();
           });
  };
  remote_->recall(std::move(wanted), [this, request](Result<RecalledSegment> recalled) {
    const auto segment = recalled.ok() ? take_recalled(request, std::move(*recalled))
                                       : Result<SegmentHandle>(recalled.status());
    std::vector<WaitingRecall> waiting;
    {
      const std::lock_guard lock(recall_mu_);
      const auto it = recalls_.find(request.key);
      waiting.swap(it->second);
      recalls_.erase(it);
    }
    for (const WaitingRecall& each : waiting) each.done(segment);
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
                {{"reason", kept.status().to_string()}});
  return segment;
}

void StoreImpl::share(std::span<const ContextKey> keys) {
  if (!remote_ || !remote_->writes()) return;
  for (const ContextKey& key : keys)
    if (const auto segment = segments_->find(key, std::nullopt)) queue_write(*segment);
  if (options_.remote.write_through) remote_->wait_written();
}

void StoreImpl::queue_write(const SegmentHandle& segment) {
  remote_->write(segment, [this, held = segment](const record::ValueName& name) {
    ReadRequest read{held, name.block, name.group, ReadKind::kValue};
    if (name.part == record::Part::kSketch) read.kind = ReadKind::kSketch;
    return peek_value(read);
  });
}

// ---- deletions ----

std::string StoreImpl::note_removal(const SegmentInfo& segment, std::vector<RecordWrite>* batch) {
  if (!remote_ || !remote_->writes()) return {};
  std::string record = removal_record(++last_removal_);
  batch->push_back({Family::kMeta, record, encode_removal(remote_->removal_of(segment))});
  batch->push_back({Family::kMeta, evicted_record(segment.key), std::nullopt});
  return record;
}

void StoreImpl::note_evicted(const SegmentInfo& segment, std::vector<RecordWrite>* batch) {
  if (!remote_ || !remote_->writes()) return;
  batch->push_back(
      {Family::kMeta, evicted_record(segment.key), encode_removal(remote_->removal_of(segment))});
}

void StoreImpl::remove_evicted(std::span<const ContextKey> keys) {
  if (!remote_ || !remote_->writes()) return;
  for (const ContextKey& key : keys) {
    if (segments_->is_referenced(key)) continue;
    const std::string evicted = evicted_record(key);
    const auto stored = disk_->get(Family::kMeta, evicted);
    if (!stored.ok()) continue;
    std::vector<RecordWrite> batch = {{Family::kMeta, evicted, std::nullopt}};
    auto removal = decode_removal(*stored);
    const std::string record = removal_record(++last_removal_);
    if (removal.ok()) batch.push_back({Family::kMeta, record, *stored});
    if (const Status s = disk_->write(batch, Sync::kNo); !s.ok())
      log_warning("the record of evicted KV was not replaced", {{"reason", s.to_string()}});
    if (removal.ok()) remove_shared(std::move(*removal), record);
  }
}

void StoreImpl::release_keys(std::span<const ContextKey> keys, bool pinned) {
  segments_->release_refs(keys, pinned);
  remove_evicted(keys);
}

void StoreImpl::remove_shared(RemoteRemoval removal, std::string record) {
  // The same context may belong to a document again by now.
  auto is_wanted = [segments = segments_, key = removal.key] {
    return segments->is_referenced(key);
  };
  auto settled = [this, record = std::move(record)] {
    const RecordWrite done{Family::kMeta, record, std::nullopt};
    // One that stays is carried out once more after the next start.
    if (const Status s = disk_->write(std::span(&done, 1), Sync::kNo); !s.ok())
      log_warning("the record of a deletion in the shared tiers was not deleted",
                  {{"record", record}, {"reason", s.to_string()}});
  };
  remote_->remove(std::move(removal), std::move(is_wanted), std::move(settled));
}

Status StoreImpl::find_last_removal() {
  return disk_->scan(Family::kMeta, kRemovalPrefix, after_removals(), /*descending=*/true,
                     [this](std::string_view key, std::string_view) {
                       std::uint64_t number = 0;
                       const std::string_view digits = key.substr(kRemovalPrefix.size());
                       (void)std::from_chars(digits.data(), digits.data() + digits.size(), number,
                                             16);
                       last_removal_ = number;
                       return false;
                     });
}

Status StoreImpl::resume_removals() {
  if (!remote_ || !remote_->writes()) return {};
  std::vector<std::pair<std::string, RemoteRemoval>> left;
  std::vector<RecordWrite> damaged;
  const auto take = [&](std::string_view record, std::string_view stored) {
    if (auto removal = decode_removal(stored); removal.ok()) {
      left.emplace_back(record, std::move(*removal));
    } else {
      damaged.push_back({Family::kMeta, std::string(record), std::nullopt});
    }
    return true;
  };
  QUIRE_RETURN_IF_ERROR(
      disk_->scan(Family::kMeta, kRemovalPrefix, after_removals(), /*descending=*/false, take));
  if (!damaged.empty()) QUIRE_RETURN_IF_ERROR(disk_->write(damaged, Sync::kNo));
  if (!left.empty())
    log_info("KV of deleted documents is still to be deleted in the shared tiers",
             {{"segments", std::to_string(left.size())}});
  for (auto& [record, removal] : left) remove_shared(std::move(removal), record);
  return {};
}

}  // namespace quire
