/// This file declares which file belongs to which segment; only cachestore/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/listener.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cachestore/disk/disk_tier.h"
#include "cachestore/disk/store_folder.h"

namespace quire::rocksdb_internal {

inline constexpr const char* kBlocksFamily = "blocks";
inline constexpr const char* kSketchesFamily = "sketches";

/// Returns the number in ".../000012.sst"; 0 if there is none.
inline std::uint64_t file_number(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return std::strtoull(path.c_str() + (slash == std::string::npos ? 0 : slash + 1), nullptr, 10);
}

/// Tracks the files of live and deleted segments and their sizes on disk from RocksDB's events.
/// Threads: all methods concurrently.
class SegmentFiles final : public ::rocksdb::EventListener {
 public:
  void add(std::uint64_t number, SegmentId id, record::Part part, std::uint64_t bytes) {
    std::lock_guard lock(mu_);
    live_[number] = {id, part, bytes};
    of_segment_[id].push_back(number);
    live_bytes_ += bytes;
  }
  /// Marks the segment's files as pending deletes.
  void begin_delete(SegmentId id) {
    std::lock_guard lock(mu_);
    auto it = of_segment_.find(id);
    if (it == of_segment_.end()) return;
    for (std::uint64_t number : it->second) {
      auto file = live_.find(number);
      live_bytes_ -= file->second.bytes;
      pending_bytes_ += file->second.bytes;
      pending_[number] = file->second;
      live_.erase(file);
    }
    of_segment_.erase(it);
  }
  void cancel_delete(SegmentId id) {
    std::lock_guard lock(mu_);
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second.id != id) {
        ++it;
        continue;
      }
      pending_bytes_ -= it->second.bytes;
      live_bytes_ += it->second.bytes;
      of_segment_[id].push_back(it->first);
      live_[it->first] = it->second;
      it = pending_.erase(it);
    }
  }
  std::uint64_t segment_bytes(SegmentId id) const {
    std::lock_guard lock(mu_);
    std::uint64_t total = 0;
    if (auto it = of_segment_.find(id); it != of_segment_.end()) {
      for (std::uint64_t number : it->second) total += live_.at(number).bytes;
    }
    return total;
  }
  /// Returns the file of a segment's values; 0 if there is none.
  std::uint64_t value_file(SegmentId id) const {
    std::lock_guard lock(mu_);
    if (auto it = of_segment_.find(id); it != of_segment_.end()) {
      for (std::uint64_t number : it->second) {
        if (live_.at(number).part == record::Part::kValue) return number;
      }
    }
    return 0;
  }
  std::vector<StoredSegment> list() const {
    std::lock_guard lock(mu_);
    std::vector<StoredSegment> out;
    for (const auto& [id, numbers] : of_segment_) {
      StoredSegment s{id, false, false, 0};
      for (std::uint64_t number : numbers) {
        const File& f = live_.at(number);
        (f.part == record::Part::kValue ? s.has_values : s.has_sketches) = true;
        s.disk_bytes += f.bytes;
      }
      out.push_back(s);
    }
    return out;
  }
  void fill(DiskUsage* usage) const {
    std::lock_guard lock(mu_);
    usage->segment_bytes = live_bytes_;
    usage->pending_delete_bytes = pending_bytes_;
  }
  bool wait(std::chrono::milliseconds at_most) {
    std::unique_lock lock(mu_);
    if (pending_.empty()) return false;
    const std::uint64_t before = num_deleted_;
    gone_.wait_for(lock, at_most, [&] { return num_deleted_ != before || pending_.empty(); });
    return true;
  }

  void OnExternalFileIngested(::rocksdb::DB*,
                              const ::rocksdb::ExternalFileIngestionInfo& info) override {
    const record::Part part = info.cf_name == kBlocksFamily ? record::Part::kValue
                                                            : record::Part::kSketch;
    add(file_number(info.internal_file_path), file_number(info.external_file_path), part,
        allocated_bytes(info.internal_file_path));
  }
  void OnTableFileDeleted(const ::rocksdb::TableFileDeletionInfo& info) override {
    {
      std::lock_guard lock(mu_);
      auto it = pending_.find(file_number(info.file_path));
      if (it == pending_.end()) return;
      pending_bytes_ -= it->second.bytes;
      pending_.erase(it);
      ++num_deleted_;
    }
    gone_.notify_all();
  }

 private:
  struct File {
    SegmentId id;
    record::Part part;
    std::uint64_t bytes;
  };
  mutable std::mutex mu_;
  std::condition_variable gone_;
  std::unordered_map<std::uint64_t, File> live_, pending_;  // by file number; guarded by mu_
  // live files; guarded by mu_
  std::unordered_map<SegmentId, std::vector<std::uint64_t>> of_segment_;
  std::uint64_t live_bytes_ = 0, pending_bytes_ = 0, num_deleted_ = 0;  // guarded by mu_
};

}  // namespace quire::rocksdb_internal
