/// What gaps in the logs of a record (log/log_gaps.h) mean for its documents, and for who reads it.
/// Only cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/wal_filter.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachestore/format/document.h"

namespace quire::rocksdb_internal {

/// Returns whether each of a log's records is the batch of changes that follows the one before.
bool follow_one_another(const std::vector<std::string>& records);
/// Brings the batches of a log into their order, and removes what is no batch or there twice: one
/// that went astray may lie elsewhere in the log.
void put_in_order(std::vector<std::string>* records);

/// Receives the number of a family, a key and its value; none: it is deleted.
using ChangeFn = std::function<void(std::uint32_t family, std::string_view key,
                                    std::optional<std::string_view> value)>;
/// Calls `fn` with each change of a batch, as far as that can be read.
void for_each_change(const std::string& record, const ChangeFn& fn);

/// Has a database that is opened for reading leave out of its logs what follows a gap.
class StopAtGap final : public ::rocksdb::WalFilter {
 public:
  /// `first`: the number of the first change; none: any.
  explicit StopAtGap(std::optional<std::uint64_t> first) : first_(first) {}
  void ColumnFamilyLogNumberMap(const std::map<std::uint32_t, std::uint64_t>&,
                                const std::map<std::string, std::uint32_t>&) override {
    expected_ = first_;  // the logs are read from their beginning
  }
  WalProcessingOption LogRecordFound(unsigned long long log, const std::string& name,
                                     const ::rocksdb::WriteBatch& batch,
                                     ::rocksdb::WriteBatch* other, bool* changed) override;
  const char* Name() const override { return "quire.StopAtGap"; }

 private:
  const std::optional<std::uint64_t> first_;
  std::optional<std::uint64_t> expected_;  // number of the next change
};

/// Finds documents whose head may be of another version than their tokens and text: it was written
/// alone behind a gap, in which the others may be lost.
class DocumentsOverGaps {
 public:
  /// `next_in_tables`: the number after the last change that tables have, behind which changes may
  /// be missing, too; none: it is not known.
  explicit DocumentsOverGaps(std::optional<std::uint64_t> next_in_tables = {})
      : expected_(next_in_tables) {}
  /// Adds the batches of the next log, in their order.
  void add(const std::vector<std::string>& records);
  /// Returns how many changes were missing between those added.
  std::uint64_t missing() const { return missing_; }
  /// Returns namespaces and ids.
  std::set<std::pair<std::string, std::string>> unsure() const;

 private:
  struct Known {
    DocumentManifest head;
    bool before_gap = false;  ///< a gap came behind it
    bool unsure = false;
  };
  using Name = std::pair<std::string, std::string>;

  void read(std::string_view key, std::optional<std::string_view> value);

  std::optional<std::uint64_t> expected_;  // number of the next change
  std::uint64_t missing_ = 0;
  std::map<Name, Known> known_;
  // Of the batch that is being read.
  std::map<Name, std::optional<DocumentManifest>> heads_;  // none: deleted
  std::set<std::string> tokens_;                           // keys
};

}  // namespace quire::rocksdb_internal
