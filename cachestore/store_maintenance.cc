// This file implements the maintenance half of StoreImpl: verify, gc, stats.
#include <algorithm>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

void add_problem(VerifyReport* report, std::string line) {
  if (report->problems.size() < 100) report->problems.push_back(std::move(line));
}

}  // namespace

Status StoreImpl::verify_records(VerifyReport* report) {
  // What lies behind a part that cannot be read is looked at by a repair.
  const auto noted = [&](Status s) {
    if (s.code() != Code::kCorruption) return s;
    ++integrity_failures_;
    ++report->bad_documents;
    add_problem(report,
                "a part of the record cannot be read, 'quire store repair' says what of it "
                "can be saved: " +
                    s.message());
    return Status();
  };
  for (const Family family : {Family::kCatalog, Family::kJobs, Family::kMeta}) {
    QUIRE_RETURN_IF_ERROR(
        noted(disk_->scan(family, {}, {}, false, [&](std::string_view key, std::string_view value) {
          report->bytes += value.size();
          // Entries of the index are keys only.
          if (family == Family::kCatalog && key.starts_with(kTermKind)) return true;
          Status s = record::check_envelope(value);
          const bool is_head = family == Family::kCatalog && key.starts_with(kHeadKind);
          if (is_head) {
            ++report->documents;
            auto m = record::decode_head(value);
            s = m.status();
            if (s.ok() && catalog_key(kHeadKind, m->ns, m->id) != key)
              s = Status::corruption("a document record is under the wrong key");
          }
          if (s.ok()) return true;
          ++integrity_failures_;
          if (family == Family::kCatalog) ++report->bad_documents;
          std::string name(key.substr(family == Family::kCatalog ? 1 : 0));
          for (char& c : name) c = static_cast<unsigned char>(c) < 32 ? '/' : c;
          add_problem(report, "record '" + name + "': " + s.message());
          return true;
        })));
  }
  // A document needs all of its three records.
  std::vector<std::pair<std::string, std::string>> names;
  const Status heads = disk_->scan(Family::kCatalog, std::string(1, kHeadKind),
                                   std::string(1, kHeadKind + 1), false,
                                   [&](std::string_view, std::string_view value) {
                                     if (auto m = record::decode_head(value); m.ok())
                                       names.emplace_back(m->ns, m->id);
                                     return true;
                                   });
  if (!heads.ok() && heads.code() != Code::kCorruption) return heads;  // else it is noted above
  for (const auto& [ns, id] : names) {
    Status s = get_document(ns, id).status();
    if (s.ok()) s = get_text(ns, id).status();
    if (s.ok() || s.code() == Code::kNotFound) continue;
    ++report->bad_documents;
    add_problem(report, s.message());
  }
  return {};
}

Status StoreImpl::verify_segments(VerifyReport* report, std::vector<ContextKey>* bad,
                                  const std::function<bool(const VerifyReport&)>& progress,
                                  bool* go_on) {
  const auto all = segments_->all();
  report->total_segments = all.size();
  for (const auto& info : all) {
    const auto handle = segments_->find(info->key, std::nullopt);
    if (!handle || (*handle)->id != info->id) continue;  // deleted meanwhile
    ++report->segments;
    const auto& l = info->layout;
    const std::uint64_t num_values = std::uint64_t{l.num_blocks} * l.values_per_block;
    for (std::uint64_t i = 0; i < num_values + l.num_sketches; ++i) {
      const auto v = static_cast<std::uint32_t>(i < num_values ? i : i - num_values);
      const record::ValueName name = i < num_values
                                         ? record::ValueName{info->id, record::Part::kValue,
                                                             v / l.values_per_block,
                                                             v % l.values_per_block}
                                         : record::ValueName{info->id, record::Part::kSketch, v, 0};
      auto read = read_checked(name);
      const Status s = read.status();
      if (s.ok()) {
        ++report->values;
        report->bytes += (*read)->payload().size();
        continue;
      }
      if (s.code() == Code::kCorruption || s.code() == Code::kNotFound) quarantine(*handle, s);
      ++report->bad_segments;
      bad->push_back(info->key);
      add_problem(report, "segment " + std::to_string(info->id) + ": " + s.message());
      break;
    }
    if (progress && !progress(*report)) {
      *go_on = false;
      return {};
    }
  }
  return {};
}

Result<VerifyReport> StoreImpl::verify(const std::function<bool(const VerifyReport&)>& progress) {
  std::vector<ContextKey> bad;
  return verify_contexts(bad, progress);
}

Result<VerifyReport> StoreImpl::verify_contexts(
    std::vector<ContextKey>& bad, const std::function<bool(const VerifyReport&)>& progress) {
  VerifyReport report;
  bool go_on = true;
  QUIRE_RETURN_IF_ERROR(verify_records(&report));
  if (progress) go_on = progress(report);
  if (go_on) QUIRE_RETURN_IF_ERROR(verify_segments(&report, &bad, progress, &go_on));
  report.complete = go_on;
  return report;
}

Result<EvictReport> StoreImpl::evict(const EvictRequest& request) {
  if (request.tier != Tier::kDram && request.tier != Tier::kDisk)
    return Status::invalid(
        "tier",
        "this store has no tier '" + std::string(tier_name(request.tier)) + "'; use dram or disk");
  if (request.tier == Tier::kDisk) QUIRE_RETURN_IF_ERROR(check_writable());
  const std::unordered_set<ContextKey, DigestHash> keys =
      request.keys
          ? std::unordered_set<ContextKey, DigestHash>(request.keys->begin(), request.keys->end())
          : std::unordered_set<ContextKey, DigestHash>();
  auto candidates = segments_->candidates();
  std::erase_if(candidates, [&](const auto& c) {
    return (request.keys && !keys.contains(c.info->key)) ||
           (request.tenant && c.info->tenant != *request.tenant) ||
           (request.unused_since_ms && c.used_ms > *request.unused_since_ms);
  });
  std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return std::pair(a.used_ms, a.info->id) < std::pair(b.used_ms, b.info->id);
  });
  EvictReport report;
  for (const auto& c : candidates) {
    if (request.target_bytes > 0 && report.bytes >= request.target_bytes) break;
    const bool dram = request.tier == Tier::kDram;
    DramTier::Held held;
    if (dram) held = dram_->held(c.info->id);
    if (dram && held.bytes == 0) continue;
    if (c.pinned && !request.force) {
      ++report.kept_pinned;
      continue;
    }
    bool gone = dram ? !held.in_use : !c.in_use;
    if (dram && !request.dry_run) {
      held = dram_->evict_segment(c.info->id);
      gone = !held.in_use;
    } else if (!dram && !request.dry_run) {
      gone = segments_->evict(c.info->id, request.force);
    }
    if (!gone) ++report.kept_in_use;
    if (!gone && (!dram || request.dry_run)) continue;
    report.contexts += gone ? 1 : 0;
    report.blocks += dram ? held.blocks : c.info->layout.num_blocks;
    report.bytes += dram ? held.bytes : c.info->disk_bytes;
  }
  if (request.tier == Tier::kDisk && !request.dry_run) (void)reap_all();
  return report;
}

Result<std::size_t> StoreImpl::move_some(MoveReport* report, bool reserves) {
  constexpr std::size_t kAtOnce = 64;
  constexpr std::uint64_t kMoveRoomBytes = 64u << 10;  // slots, records, rounding
  const std::lock_guard one_mover(move_mu_);
  std::size_t moved = 0;
  for (const SegmentId id : disk_->segments_to_move(kAtOnce)) {
    const auto handle = segments_->find_id(id);
    if (!handle) {  // nothing refers to it, or it is being deleted
      if (!segments_->is_known(id)) QUIRE_RETURN_IF_ERROR(disk_->delete_segment(id));
      continue;
    }
    Reservation room;
    // Where deleted bytes wait for a move, the working room holds what is moved.
    if (reserves && disk_->usage().pending_delete_bytes == 0) {
      auto reserved = reserve((*handle)->disk_bytes + kMoveRoomBytes, "a segment to be moved",
                              /*may_move=*/false);
      if (!reserved.ok()) return reserved.status();
      room = std::move(*reserved);
    }
    const auto bytes = disk_->move_segment(handle->info());
    if (bytes.code() == Code::kCorruption || bytes.code() == Code::kNotFound) {
      quarantine(*handle, bytes.status());
      ++report->bad;
      ++moved;  // it is out of the way
      continue;
    }
    QUIRE_RETURN_IF_ERROR(bytes.status());
    ++moved;
    ++report->moved;
    report->bytes += *bytes;
  }
  return moved;
}

Result<MoveReport> StoreImpl::move_segments(
    const std::function<bool(const MoveReport&)>& progress) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  MoveReport report;
  report.left = disk_->segments_to_move(SIZE_MAX).size();
  while (!progress || progress(report)) {
    QUIRE_ASSIGN_OR_RETURN(const std::size_t moved, move_some(&report, /*reserves=*/true));
    if (moved == 0) break;
    // The background may move some too.
    report.left -= std::min<std::uint64_t>(report.left, moved);
  }
  report.left = disk_->segments_to_move(SIZE_MAX).size();
  return report;
}

/// Moves a few segments at a time on the store's pool, so that reads come between.
void StoreImpl::move_in_background() {
  if (disk_->segments_to_move(1).empty()) return;
  {
    std::lock_guard lock(mu_);
    if (moving_) return;
    moving_ = true;
  }
  pool_->post_background([this] {
    MoveReport report;
    const auto moved = move_some(&report, /*reserves=*/true);
    if (!moved.ok())
      log_warning("segments were not moved; the next start tries again",
                  {{"reason", moved.status().to_string()}});
    {
      std::lock_guard lock(mu_);
      moving_ = false;
    }
    if (moved.ok() && *moved > 0) move_in_background();
  });
}

/// Deletes named texts that neither wait nor belong to a document: those of damaged documents that
/// were posted again or deleted.
Status StoreImpl::drop_lost_texts() {
  std::unordered_set<std::string> lost;
  const auto scan = [&](char kind, const DiskTier::ScanFn& fn) {
    return disk_->scan(Family::kCatalog, std::string(1, kind),
                       std::string(1, static_cast<char>(kind + 1)), false, fn);
  };
  // A text first waits and then belongs to a document, so looking in this order misses none.
  QUIRE_RETURN_IF_ERROR(scan(kNamedTextKind, [&](std::string_view key, std::string_view) {
    lost.emplace(key.substr(1));
    return true;
  }));
  if (lost.empty()) return {};
  QUIRE_RETURN_IF_ERROR(scan(kWaitingKind, [&](std::string_view key, std::string_view) {
    lost.erase(std::string(key.substr(1)));
    return true;
  }));
  bool damaged = false;
  QUIRE_RETURN_IF_ERROR(scan(kHeadKind, [&](std::string_view, std::string_view value) {
    const auto m = record::decode_head(value);
    damaged = damaged || !m.ok();
    if (m.ok()) lost.erase(m->text_name);
    return true;
  }));
  if (damaged) return {};  // what a damaged document has is not known
  std::vector<RecordWrite> batch;
  for (const std::string& name : lost)
    batch.push_back({Family::kCatalog, named_key(kNamedTextKind, name), std::nullopt});
  return batch.empty() ? Status() : disk_->write(batch, Sync::kNo);
}

Result<GcReport> StoreImpl::gc() {
  QUIRE_RETURN_IF_ERROR(check_writable());
  GcReport report;
  const std::uint64_t before = disk_->usage().total();
  QUIRE_RETURN_IF_ERROR(flush_uses());
  QUIRE_ASSIGN_OR_RETURN(report.documents_expired, expire(now_ms()));
  segments_->doom_unreferenced();
  report.segments_freed = reap_all();
  QUIRE_ASSIGN_OR_RETURN(const auto stored, disk_->list_segments());
  for (const auto& s : stored) {
    if (segments_->is_known(s.id)) continue;
    QUIRE_RETURN_IF_ERROR(disk_->delete_segment(s.id));
    ++report.files_freed;
  }
  QUIRE_RETURN_IF_ERROR(drop_lost_texts());
  QUIRE_RETURN_IF_ERROR(disk_->compact_records());
  const std::uint64_t after = disk_->usage().total();
  report.bytes_freed = before > after ? before - after : 0;
  return report;
}

Status StoreImpl::flush() {
  QUIRE_RETURN_IF_ERROR(check_writable());
  QUIRE_RETURN_IF_ERROR(flush_uses());
  return disk_->flush_records();
}

std::optional<TenantUse> StoreImpl::tenant_use(std::string_view tenant) {
  if (!options_.quotas.enabled) return std::nullopt;
  return TenantUse{dram_->bytes_of(tenant), segments_->bytes_of(tenant)};
}

StoreAdminStats StoreImpl::admin_stats() {
  StoreAdminStats s;
  s.disk.pinned_bytes = segments_->pinned_bytes();
  s.dram.pinned_bytes = dram_->pinned_bytes();
  if (!catalog_) s.pinned_missing_tokens = segments_->pinned_missing_tokens();
  s.disk.requested_evictions = evicted_request_;
  s.disk.requested_bytes = evicted_request_bytes_;
  std::tie(s.dram.requested_evictions, s.dram.requested_bytes) = dram_->requested();
  s.read_errors = read_errors_;
  s.write_errors = write_errors_;
  s.delete_errors = delete_errors_;
  s.disk_read = read_clock_.times();
  s.disk_write = write_clock_.times();
  s.disk_delete = delete_clock_.times();
  return s;
}

StoreStats StoreImpl::stats() {
  StoreStats s;
  const DiskUsage usage = disk_->usage();
  s.dram = dram_->stats();
  s.disk.capacity_bytes = options_.max_bytes;
  s.disk.used_bytes = usage.total();
  s.segments = s.disk.num_values = segments_->size();
  s.disk.hits = disk_reads_;
  s.disk.misses = segment_misses_;
  s.disk.read_bytes = disk_read_bytes_;
  s.disk.written_bytes = disk_written_bytes_;
  s.disk.evictions = s.segments_evicted_budget = evicted_budget_;
  s.disk.evicted_bytes = evicted_bytes_;
  s.dram_unpooled_bytes = unpooled_bytes_;
  s.dram_moves = options_.value_memory != nullptr;
  const DramTier::Moved moved = dram_->moved();
  s.dram_moved_values = moved.values;
  s.dram_moved_bytes = moved.bytes;
  s.dram_unmoved_values = moved.unmoved;
  s.segment_bytes = usage.segment_bytes;
  s.catalog_bytes = usage.catalog_bytes;
  s.pending_delete_bytes = usage.pending_delete_bytes;
  s.segment_hits = segment_hits_;
  s.segment_misses = segment_misses_;
  s.segments_freed_delete = freed_delete_;
  s.segments_quarantined = quarantined_;
  s.documents_expired = documents_expired_;
  s.integrity_failures = integrity_failures_;
  s.io_errors = read_errors_ + write_errors_ + delete_errors_;
  s.remote = remote_stats();
  s.catalog = catalog_stats();
  s.lost = disk_->lost_writes();
  s.record_copy = disk_->record_copy();
  s.salvaged = salvaged_;
  std::lock_guard lock(mu_);
  s.reserved_bytes = reserved_bytes_;
  for (const auto& [name, n] : namespaces_) s.documents += n.documents;
  return s;
}

}  // namespace quire
