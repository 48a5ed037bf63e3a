#include "cachestore/disk/rocksdb_check.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/log/log_order.h"
#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/disk/log/manifest_end.h"
#include "cachestore/disk/log/manifest_note.h"
#include "cachestore/disk/rocksdb_gaps.h"
#include "cachestore/disk/write_ledger.h"

namespace quire::rocksdb_internal {
namespace {

namespace fs = std::filesystem;

/// Returns whether a folder has files of a database besides CURRENT. Errors: kIo.
Result<bool> holds_record(const std::string& db) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(db));
  return std::ranges::any_of(files, [](const fs::path& file) {
    const std::string name = file.filename().string();
    return name.starts_with("MANIFEST-") || name.ends_with(".sst") || name.ends_with(".log");
  });
}

/// A database that is opened for a look, to see what another way of opening it would find.
struct Onlooker {
  std::unique_ptr<::rocksdb::DB> db;  // null: it cannot be opened
  std::vector<::rocksdb::ColumnFamilyHandle*> handles;

  Onlooker(const ::rocksdb::DBOptions& options, const std::string& path,
           const std::vector<::rocksdb::ColumnFamilyDescriptor>& families) {
    ::rocksdb::DB* opened = nullptr;
    if (::rocksdb::DB::OpenForReadOnly(options, path, families, &handles, &opened).ok())
      db.reset(opened);
  }
  Onlooker(const Onlooker&) = delete;
  Onlooker& operator=(const Onlooker&) = delete;
  ~Onlooker() {
    if (!db) return;
    for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
  }
  /// The default family comes first.
  WriteLedger::SlotReader slots() const {
    return [this](int family, std::size_t slot) {
      return slot_number(*db, handles[to_size(family) + 1], slot);
    };
  }
};

/// Leaves out all that logs have.
class TablesAlone final : public ::rocksdb::WalFilter {
 public:
  WalProcessingOption LogRecordFound(unsigned long long, const std::string&,
                                     const ::rocksdb::WriteBatch&, ::rocksdb::WriteBatch*,
                                     bool*) override {
    return WalProcessingOption::kStopReplay;
  }
  const char* Name() const override { return "quire.TablesAlone"; }
};

/// Returns how many writes these parts of logs have that came after those of a record.
std::uint64_t writes_in(const std::vector<std::string>& logs,
                        const WriteLedger::SlotReader& slots) {
  const std::uint64_t last = WriteLedger::last_present(kNumFamilies, slots);
  std::uint64_t seen = last;
  for (const std::string& log : logs) seen = std::max(seen, WriteLedger::last_in_log(log, last));
  return seen - last;
}

/// Returns an error that says what the log lacks; `more` ends its text.
Status lacks_changes(const LogGap& gap, const std::string& db, const std::string& more) {
  return Status(Code::kCorruption,
                "the log " + gap.log + " of the record in '" + db + "' lacks " +
                    (gap.at_begin ? "its first changes" : "changes between others") + more,
                "disk.path");
}

}  // namespace

std::uint64_t slot_number(::rocksdb::DB& db, ::rocksdb::ColumnFamilyHandle* handle,
                          std::size_t slot) {
  std::string value;
  const auto s = db.Get(::rocksdb::ReadOptions(), handle, WriteLedger::slot_key(slot), &value);
  return s.ok() ? WriteLedger::slot_number(value) : s.IsNotFound() ? 0 : WriteLedger::kUnreadable;
}

Result<bool> RecordCheck::check_files() const {
  std::error_code ec;
  const bool there = fs::exists(folder_.db() + "/CURRENT", ec);
  if (ec)
    return Status(Code::kIo, "cannot read '" + folder_.db() + "': " + ec.message(), "disk.path");
  // RocksDB would begin a new record and delete what is left of the old one.
  if (!there) {
    QUIRE_ASSIGN_OR_RETURN(const bool has_files, holds_record(folder_.db()));
    if (has_files)
      return Status(
          Code::kCorruption,
          "the record in '" + folder_.db() + "' has lost CURRENT, which names its manifest",
          "disk.path");
  }
  QUIRE_ASSIGN_OR_RETURN(const auto misplaced, misplaced_logs(folder_.db()));
  if (!misplaced.empty())
    return Status(Code::kCorruption,
                  "the log " + misplaced.front() + " of the record in '" + folder_.db() +
                      "' has the content of another one",
                  "disk.path");
  if (there) QUIRE_RETURN_IF_ERROR(check_manifest());
  return there;
}

/// Returns an error if the manifest lacks edits, which RocksDB does not notice: it would delete the
/// tables that they name.
Status RecordCheck::check_manifest() const {
  // Read before CURRENT, which another process may change to a later one.
  const auto note = ManifestNote::read(folder_.edits(), record_identity(folder_.db()));
  std::string name = file_bytes(folder_.db() + "/CURRENT");
  name.resize(std::min(name.size(), name.find('\n')));
  const std::string path = folder_.db() + "/" + name;
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) {
    if (!ec || ec == std::errc::no_such_file_or_directory) return {};  // RocksDB says so
    return Status(Code::kIo, "cannot read '" + path + "': " + ec.message(), "disk.path");
  }
  bool failed = false;
  const std::string manifest = file_bytes(path, &failed);
  if (failed) return Status(Code::kIo, "cannot read '" + path + "'", "disk.path");
  const auto damaged = [&](const char* how) {
    return Status(Code::kCorruption,
                  "the manifest " + name + " of the record in '" + folder_.db() + "' " + how,
                  "disk.path");
  };
  if (lost_an_edit(manifest)) return damaged("is damaged between whole edits");
  if (note && !note->is_in(name, manifest))
    return damaged("has lost its last edits, or this record is older than EDITS beside it");
  return {};
}

Result<bool> RecordCheck::only_the_end_is_torn(::rocksdb::DBOptions options,
                                               const Families& families) {
  options.wal_recovery_mode = ::rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  std::uint64_t last = 0;
  {
    const Onlooker look(options, folder_.db(), families);
    if (!look.db) return false;
    WriteLedger ledger;
    if (!ledger.open(folder_.ledger(), 0, folder_.ledger_twin()).ok() ||
        ledger.compare(kNumFamilies, look.slots()).count > 0)
      return false;
    last = WriteLedger::last_present(kNumFamilies, look.slots());
  }
  std::uint64_t seen = last;
  QUIRE_ASSIGN_OR_RETURN(const auto logs, logs_in(folder_.db()));
  for (const auto& [number, path] : logs)
    seen = std::max(seen, WriteLedger::last_in_log(file_bytes(path.string()), last));
  note_torn(seen - last);
  return true;
}

/// RocksDB deletes a log once tables have all that it holds, and the manifest knows the last change
/// that tables ever had. So the first change of the logs is the next one at most. It may be an
/// earlier one, as tables of other families have later changes: then nobody knows what was before.
Result<std::optional<LogGap>> RecordCheck::find_gap(const ::rocksdb::DBOptions& options,
                                                    const Families& families,
                                                    std::uint64_t first_log) const {
  LogsToRead logs{.first_log = first_log};
  std::uint64_t first = 0;
  QUIRE_ASSIGN_OR_RETURN(auto gap, find_log_gap(folder_.db(), logs, &first));
  if (first <= 1) return gap;
  TablesAlone tables;
  ::rocksdb::DBOptions without_logs = options;
  without_logs.wal_filter = &tables;
  without_logs.max_open_files = 32;  // so few tables are opened for this look
  // After the logs, as another process may write tables of them meanwhile.
  const Onlooker look(without_logs, folder_.db(), families);
  if (!look.db) return gap;
  logs.most_first = look.db->GetLatestSequenceNumber() + 1;
  if (first <= logs.most_first) return gap;
  return find_log_gap(folder_.db(), logs);
}

Status RecordCheck::check_gaps(::rocksdb::DBOptions options, const Families& families) {
  // Other damage of the log than zeros ends it.
  options.wal_recovery_mode = ::rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  auto found = find_gap(options, families, 0);
  // The process that writes may have begun another log meanwhile.
  if (found.ok() && *found && read_only_) found = find_gap(options, families, 0);
  if (found.ok() && !*found) return note_earlier_cut(options, families);
  bool acknowledged = true;
  std::optional<LogGap> gap;
  std::set<std::uint64_t> behind;  // numbers of writes
  {
    const Onlooker look(options, folder_.db(), families);
    std::uint64_t first_log = 0;
    // Logs whose changes are in tables may be left over from an earlier crash, and unreadable.
    if (look.db &&
        look.db->GetIntProperty(::rocksdb::DB::Properties::kMinLogNumberToKeep, &first_log)) {
      QUIRE_ASSIGN_OR_RETURN(gap, find_gap(options, families, first_log));
      if (!gap) return {};
      WriteLedger ledger;
      QUIRE_RETURN_IF_ERROR(ledger.open(folder_.ledger(), 0, folder_.ledger_twin()));
      for (const std::string& record : gap->behind)
        for (const std::uint64_t number : WriteLedger::numbers_in(record)) behind.insert(number);
      acknowledged = std::ranges::any_of(
          ledger.entries(), [&](const auto& entry) { return behind.contains(entry.number); });
      // Those of the gap itself are nowhere, unless later writes have taken their slots.
      acknowledged = acknowledged || ledger.compare(kNumFamilies, look.slots()).count > 0;
    } else {
      QUIRE_ASSIGN_OR_RETURN(gap, std::move(found));
    }
  }
  if (acknowledged)
    return lacks_changes(*gap, folder_.db(),
                         (gap->at_begin ? " and begins with change " : ": it has change ") +
                             std::to_string(gap->found) + " where " +
                             std::to_string(gap->expected) + " should be");
  // A log is on stable storage before tables are made of what it has, so that no gap in it is an
  // end.
  const auto known_behind = [&](const Onlooker& look) {
    return !look.db || look.db->GetLatestSequenceNumber() >= gap->expected;
  };
  const Status lacks = lacks_changes(*gap, folder_.db(),
                                     ", and the manifest knows what is behind them");
  {
    // Before anything is cut, as a process may end right behind that.
    auto stop = std::make_unique<StopAtGap>(gap->at_begin ? std::optional(gap->expected)
                                                          : std::nullopt);
    ::rocksdb::DBOptions before_gap = options;
    before_gap.wal_filter = stop.get();
    const Onlooker look(before_gap, folder_.db(), families);
    if (known_behind(look)) return lacks;
    if (read_only_) {
      note_torn(writes_in(gap->behind, look.slots()));
      stop_ = std::move(stop);
      return {};
    }
  }
  std::vector<std::string> moved;
  QUIRE_RETURN_IF_ERROR(cut_at(*gap, &moved));
  const Onlooker look(options, folder_.db(), families);
  if (known_behind(look)) {
    QUIRE_RETURN_IF_ERROR(undo_cut(moved));
    return lacks;
  }
  note_torn(writes_in(gap->behind, look.slots()));
  return {};
}

/// A start that ended after it had cut a log told nobody. One that goes on puts all that the log
/// has into tables, and RocksDB deletes it.
Status RecordCheck::note_earlier_cut(const ::rocksdb::DBOptions& options,
                                     const Families& families) {
  QUIRE_ASSIGN_OR_RETURN(const auto logs, logs_in(folder_.db()));
  // What was kept of another record may have the same name.
  const auto cut = std::ranges::find_if(logs, [this](const auto& log) {
    const std::string name = log.second.filename().string();
    const std::string kept = file_bytes(folder_.root() + "/" + name + ".torn");
    if (kept.empty()) return false;
    const std::string left = file_bytes(log.second.string());
    return !left.empty() && left.size() < kept.size() && kept.starts_with(left);
  });
  if (cut == logs.end()) return {};
  std::vector<std::string> left_out;
  // Later ones were moved whole.
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(folder_.root()));
  for (const fs::path& file : files) {
    if (file.filename().string().ends_with(".log.torn") && file_number(file) >= cut->first)
      left_out.push_back(file_bytes(file.string()));
  }
  const Onlooker look(options, folder_.db(), families);
  const std::uint64_t writes = look.db ? writes_in(left_out, look.slots()) : 0;
  if (writes > 0) note_torn(writes);
  return {};
}

void RecordCheck::note_torn(std::uint64_t writes) {
  torn_writes_ = writes;
  log_warning("the end of the log is torn and left out, as after a power failure",
              {{"path", folder_.db()}, {"writes", std::to_string(writes)}});
}

/// Leaves out of the log what is behind a gap. It is kept beside the record.
Status RecordCheck::cut_at(const LogGap& gap, std::vector<std::string>* moved) const {
  std::error_code ec;
  QUIRE_ASSIGN_OR_RETURN(auto later, logs_in(folder_.db()));
  later.erase(later.begin(), later.upper_bound(file_number(gap.log)));
  // The last one first: a crash in between leaves the gap.
  for (auto log = later.rbegin(); log != later.rend(); ++log) {
    const fs::path& path = log->second;
    fs::rename(path, folder_.root() + "/" + path.filename().string() + ".torn", ec);
    if (ec) return Status::io("cannot move '" + path.string() + "': " + ec.message());
    moved->push_back(path.filename().string());
  }
  bool failed = false;
  const std::string path = folder_.db() + "/" + gap.log, bytes = file_bytes(path, &failed);
  if (failed) return Status::io("cannot read '" + path + "'");
  QUIRE_RETURN_IF_ERROR(write_private_file(folder_.root() + "/" + gap.log + ".torn", bytes));
  moved->push_back(gap.log);
  return shorten_file(path, gap.whole);
}

Status RecordCheck::undo_cut(const std::vector<std::string>& moved) const {
  std::error_code ec;
  for (const std::string& name : moved) {
    fs::rename(folder_.root() + "/" + name + ".torn", folder_.db() + "/" + name, ec);
    if (ec) return Status::io("cannot move '" + name + ".torn': " + ec.message());
  }
  return {};
}

}  // namespace quire::rocksdb_internal
