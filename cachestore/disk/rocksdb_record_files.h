/// RecordFiles hears from RocksDB what becomes of a record's files. Only
/// cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/listener.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "cachestore/disk/disk_tier.h"

namespace quire::rocksdb_internal {

/// Remembers the size of the records' files, which costs a look at each of them, until RocksDB
/// adds or removes one; and whether RocksDB has stopped writing, or changed its manifest. Threads:
/// all methods concurrently.
class RecordFiles final : public ::rocksdb::EventListener {
 public:
  void OnFlushCompleted(::rocksdb::DB*, const ::rocksdb::FlushJobInfo&) override {
    ++changes_;
    edited_ = true;
  }
  void OnCompactionCompleted(::rocksdb::DB*, const ::rocksdb::CompactionJobInfo&) override {
    ++changes_;
    edited_ = true;
  }
  void OnTableFileCreated(const ::rocksdb::TableFileCreationInfo&) override { ++changes_; }
  void OnTableFileDeleted(const ::rocksdb::TableFileDeletionInfo&) override { ++changes_; }
  void OnMemTableSealed(const ::rocksdb::MemTableInfo&) override { ++changes_; }
  /// RocksDB itself would look for free space every five seconds, and refuse Resume() meanwhile.
  void OnErrorRecoveryBegin(::rocksdb::BackgroundErrorReason, ::rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
    failed_ = true;
  }
  /// Returns whether RocksDB has stopped writing since the last call.
  bool take_failure() { return failed_.exchange(false); }
  bool has_failed() const { return failed_; }
  /// Returns whether the manifest has got edits since the last call.
  bool take_edit() { return edited_ && edited_.exchange(false); }

  void add_written(std::uint64_t bytes) { written_ += bytes; }
  /// Returns what `measure` returned last, with what the log has grown since.
  template <class Measure>
  DiskUsage get(Measure&& measure) {
    std::lock_guard lock(mu_);
    const std::uint64_t changes = changes_, written = written_;
    if (changes != seen_ || written - measured_at_ > kStale) {
      last_ = measure();
      seen_ = changes;
      measured_at_ = written;
    }
    DiskUsage usage = last_;
    // The log grows by whole blocks.
    usage.catalog_bytes += written - measured_at_ + 4096;
    return usage;
  }

 private:
  static constexpr std::uint64_t kStale = 1u << 20;  // bytes
  std::atomic<std::uint64_t> changes_{1}, written_{0};
  std::atomic<bool> failed_{false}, edited_{false};
  std::mutex mu_;
  DiskUsage last_;                            // guarded by mu_
  std::uint64_t seen_ = 0, measured_at_ = 0;  // guarded by mu_
};

}  // namespace quire::rocksdb_internal
