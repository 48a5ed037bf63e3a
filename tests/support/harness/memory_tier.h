/// A disk tier in memory with faults.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cachestore/disk/disk_tier.h"

namespace quire::test {

/// The contents of a disk, so that a tier can be "reopened" over it.
struct MemoryDisk {
  std::mutex mu;
  std::map<std::pair<Family, std::string>, std::string> records;  // guarded by mu
  // Guarded by mu.
  std::map<SegmentId,
           std::map<std::tuple<int, std::uint32_t, std::uint32_t>, std::vector<std::byte>>>
      segments;
  // The bytes of that many records; guarded by mu.
  std::size_t records_counted = 0;
  std::uint64_t record_bytes = 0;
  std::set<SegmentId> to_move;  ///< segments that the tier wants moved; guarded by mu
  std::atomic<std::uint64_t> free{1ull << 40};
  std::atomic<int> calls{0};
  std::atomic<int> fail_at{-1};      ///< this call fails
  std::atomic<bool> fail_on{false};  ///< all calls after `fail_at` fail too
  Status failure = Status::io("injected failure");
  std::atomic<int> writes{0};
  std::atomic<std::uint64_t> looked_at{0};  ///< records returned by get() and scan()
  /// The disk is full from this writing call on, as a file system reports it.
  std::atomic<int> full_from{-1};
  Status full = Status::exhausted("cannot write to the store: the disk is full");  ///< what it says
  std::vector<std::vector<RecordWrite>> failed;  ///< writes of records that failed; guarded by mu
  std::atomic<bool> undecided{false};            ///< whether these are made is not known yet

  /// Makes what failed, as records may have it that are opened again after an error.
  void make_failed() {
    const std::lock_guard lock(mu);
    for (const auto& batch : failed) {
      for (const RecordWrite& w : batch) {
        if (w.value)
          records[{w.family, w.key}] = *w.value;
        else
          records.erase({w.family, w.key});
      }
    }
    failed.clear();
    records_counted = SIZE_MAX;
  }
};

/// Implements the disk tier's contract in memory. Its n-th call fails on request.
class MemoryTier final : public DiskTier {
 public:
  explicit MemoryTier(std::shared_ptr<MemoryDisk> disk) : d_(std::move(disk)) {}

  Status write(std::span<const RecordWrite> writes, Sync) override {
    if (Status s = writing_call(); !s.ok()) {
      const std::lock_guard lock(d_->mu);
      d_->failed.emplace_back(writes.begin(), writes.end());
      return s;
    }
    std::lock_guard lock(d_->mu);
    (void)record_bytes();  // counts what a test has changed
    for (const auto& w : writes) {
      const auto it = d_->records.find({w.family, w.key});
      if (it != d_->records.end()) d_->record_bytes -= it->second.size();
      if (w.value) {
        d_->records[{w.family, w.key}] = *w.value;
        d_->record_bytes += w.value->size();
      } else if (it != d_->records.end()) {
        d_->records.erase(it);
      }
    }
    d_->records_counted = d_->records.size();
    return {};
  }
  Result<std::string> get(Family family, std::string_view key) override {
    QUIRE_RETURN_IF_ERROR(call());
    ++d_->looked_at;
    std::lock_guard lock(d_->mu);
    auto it = d_->records.find({family, std::string(key)});
    if (it == d_->records.end()) return Status::not_found("no record");
    return it->second;
  }
  Status scan(Family family, std::string_view begin, std::string_view end, bool descending,
              const ScanFn& fn) override {
    QUIRE_RETURN_IF_ERROR(call());
    std::string from(begin), to(end);
    for (bool more = to.empty() || from < to; more;) {
      // Records are copied a few at a time, because fn runs without the lock.
      std::vector<std::pair<std::string, std::string>> rows;
      {
        std::lock_guard lock(d_->mu);
        const auto first = d_->records.lower_bound({family, from}),
                   last = to.empty() ? d_->records.lower_bound(
                                           {static_cast<Family>(static_cast<int>(family) + 1), ""})
                                     : d_->records.lower_bound({family, to});
        constexpr std::size_t kAtOnce = 64;
        if (descending) {
          for (auto it = last; it != first && rows.size() < kAtOnce;) {
            --it;
            rows.emplace_back(it->first.second, it->second);
          }
        } else {
          for (auto it = first; it != last && rows.size() < kAtOnce; ++it)
            rows.emplace_back(it->first.second, it->second);
        }
        more = rows.size() == kAtOnce;
      }
      for (const auto& [k, v] : rows) {
        ++d_->looked_at;
        if (!fn(k, v)) return {};
      }
      if (more)
        (descending ? to : from) = rows.back().first + (descending ? "" : std::string(1, 0));
    }
    return {};
  }
  Result<std::uint64_t> write_segment(SegmentId id, std::span<const Value> values) override {
    QUIRE_RETURN_IF_ERROR(writing_call());
    std::lock_guard lock(d_->mu);
    for (const auto& v : values) {
      if (v.name.segment != id) return Status::internal("a value of another segment");
      d_->segments[id][{static_cast<int>(v.name.part), v.name.block, v.name.group}].assign(
          v.buffer->stored().begin(), v.buffer->stored().end());
    }
    return bytes_of(id);
  }
  Result<std::shared_ptr<ValueBuffer>> read(const record::ValueName& n) override {
    QUIRE_RETURN_IF_ERROR(call());
    std::lock_guard lock(d_->mu);
    auto seg = d_->segments.find(n.segment);
    if (seg == d_->segments.end()) return Status::not_found("no segment");
    auto it = seg->second.find({static_cast<int>(n.part), n.block, n.group});
    if (it == seg->second.end()) return Status::not_found("no value");
    auto out = std::make_shared<ValueBuffer>(it->second.size() - record::kValueHeaderBytes);
    std::memcpy(out->stored().data(), it->second.data(), it->second.size());
    return out;
  }
  Status delete_segment(SegmentId id) override {
    QUIRE_RETURN_IF_ERROR(call());
    std::lock_guard lock(d_->mu);
    d_->segments.erase(id);
    d_->to_move.erase(id);
    return {};
  }
  Result<std::vector<StoredSegment>> list_segments() override {
    QUIRE_RETURN_IF_ERROR(call());
    std::lock_guard lock(d_->mu);
    std::vector<StoredSegment> out;
    for (const auto& [id, values] : d_->segments) {
      StoredSegment s{id, false, false, bytes_of(id)};
      for (const auto& [name, bytes] : values)
        (std::get<0>(name) == 0 ? s.has_values : s.has_sketches) = true;
      out.push_back(s);
    }
    return out;
  }
  Status recover() override { return d_->undecided ? d_->full : Status(); }
  DiskUsage usage() override {
    std::lock_guard lock(d_->mu);
    DiskUsage u;
    for (const auto& [id, values] : d_->segments) u.segment_bytes += bytes_of(id);
    u.catalog_bytes = record_bytes();
    return u;
  }
  std::vector<SegmentId> segments_to_move(std::size_t at_most) override {
    std::lock_guard lock(d_->mu);
    std::vector<SegmentId> out(d_->to_move.begin(), d_->to_move.end());
    if (out.size() > at_most) out.resize(at_most);
    return out;
  }
  Result<std::uint64_t> move_segment(const SegmentInfo& info) override {
    QUIRE_RETURN_IF_ERROR(writing_call());
    std::lock_guard lock(d_->mu);
    d_->to_move.erase(info.id);
    return bytes_of(info.id);
  }
  std::uint64_t free_bytes() override { return d_->free; }
  Status flush_records() override { return writing_call(); }
  Status compact_records() override { return writing_call(); }

 private:
  /// Returns the bytes of all records, counted anew if a test added or removed some. mu is held.
  std::uint64_t record_bytes() {
    if (d_->records_counted != d_->records.size()) {
      d_->record_bytes = 0;
      for (const auto& [k, v] : d_->records) d_->record_bytes += v.size();
      d_->records_counted = d_->records.size();
    }
    return d_->record_bytes;
  }
  std::uint64_t bytes_of(SegmentId id) const {  // requires mu
    std::uint64_t n = 0;
    for (const auto& [name, bytes] : d_->segments.at(id)) n += bytes.size();
    return n;
  }
  Status call() {
    const int n = d_->calls++;
    const int at = d_->fail_at;
    return at >= 0 && (n == at || (d_->fail_on && n > at)) ? d_->failure : Status();
  }
  Status writing_call() {
    QUIRE_RETURN_IF_ERROR(call());
    const int n = d_->writes++, from = d_->full_from;
    return from >= 0 && n >= from ? d_->full : Status();
  }
  std::shared_ptr<MemoryDisk> d_;
};

}  // namespace quire::test
