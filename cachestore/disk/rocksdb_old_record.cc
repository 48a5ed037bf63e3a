#include "cachestore/disk/rocksdb_old_record.h"

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <optional>

#include "base/index.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/log/log_order.h"
#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/disk/log/manifest_end.h"
#include "cachestore/disk/log/manifest_note.h"
#include "cachestore/disk/rocksdb_check.h"
#include "cachestore/disk/rocksdb_gaps.h"
#include "cachestore/disk/rocksdb_options.h"

namespace quire::rocksdb_internal {
namespace {

namespace fs = std::filesystem;

constexpr auto kKinds = RepairDatabase::kKinds;
constexpr auto& kNames = RepairDatabase::kNames;
constexpr std::size_t kMostDamageLines = 100;

/// Reads all of a record.
Status read_all(RepairDatabase& db) {
  for (std::size_t f = 0; f < kKinds; ++f) {
    if (!db.handles[f]) continue;
    ::rocksdb::ReadOptions o;
    o.fill_cache = false;
    const std::unique_ptr<::rocksdb::Iterator> it(db.db->NewIterator(o, db.handles[f]));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
    }
    if (!it->status().ok())
      return to_status(it->status(), "read the family " + std::string(kNames[f]));
  }
  return {};
}

/// Returns the number of the first change; none: there is no record, or it is no batch.
std::optional<std::uint64_t> first_change(const LogRecords& log) {
  const auto batch = log.records.empty() ? std::nullopt : BatchNumbers::of(log.records.front());
  return batch ? std::optional(batch->first) : std::nullopt;
}

}  // namespace

void RepairDatabase::close() {
  if (!db) return;
  for (auto* h : all) (void)db->DestroyColumnFamilyHandle(h);
  all.clear();
  (void)db->Close();
  db.reset();
  handles.fill(nullptr);
}

void note_damage(RepairReport& report, std::string line) {
  if (report.damage.size() < kMostDamageLines) report.damage.push_back(std::move(line));
}

bool is_another_table(const fs::path& file, const RocksDbTierOptions& options) {
  const ::rocksdb::Options o(db_options(options), record_options(options, record_cache()));
  ::rocksdb::SstFileReader reader(o);
  if (!reader.Open(file.string()).ok()) return false;
  const auto properties = reader.GetTableProperties();
  const std::uint64_t number = properties ? properties->orig_file_number : 0;
  return number != 0 && number != file_number(file);
}

/// Opens a record: the old one for reading only, or a copy, which may change. Of a copy the log may
/// lack what the manifest knows to be in it; RocksDB cannot forget that without writing a manifest.
Status OldRecord::open_as(const std::string& path, bool copy, RepairDatabase* out) const {
  ::rocksdb::DBOptions o = db_options(options_);
  o.create_if_missing = o.create_missing_column_families = false;
  o.wal_recovery_mode = ::rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
  o.track_and_verify_wals_in_manifest = !copy;
  o.paranoid_checks = false;
  std::vector<std::string> present;
  QUIRE_RETURN_IF_ERROR(
      to_status(::rocksdb::DB::ListColumnFamilies(o, path, &present), "read the manifest"));
  auto family = record_options(options_, record_cache());
  family.disable_auto_compactions = true;
  std::vector<::rocksdb::ColumnFamilyDescriptor> families;
  families.emplace_back("default", family);
  for (const std::string& name : present) {
    // Reading needs no family but the record's; writing needs all of them.
    if (name != "default" && (copy || std::ranges::count(kNames, name) > 0))
      families.emplace_back(name, family);
  }
  ::rocksdb::DB* db = nullptr;
  const auto status = copy ? ::rocksdb::DB::Open(o, path, families, &out->all, &db)
                           : ::rocksdb::DB::OpenForReadOnly(o, path, families, &out->all, &db);
  if (!status.ok()) return to_status(status, "open the record");
  out->db.reset(db);
  for (std::size_t i = 0; i < families.size(); ++i) {
    const auto at = std::ranges::find(kNames, families[i].name);
    if (at != kNames.end()) out->handles[to_size(at - kNames.begin())] = out->all[i];
  }
  return {};
}

/// Copies what RocksDB's repair changes, and links the tables, which it only moves.
Status OldRecord::copy_record(const std::string& to) {
  std::error_code ec;
  fs::create_directories(to, ec);
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(folder_.db()));
  for (const fs::path& file : files) {
    if (!fs::is_regular_file(file, ec)) continue;
    const fs::path target = fs::path(to) / file.filename();
    std::error_code failed;
    if (const auto bad = bad_logs_.find(file.filename().string()); bad != bad_logs_.end()) {
      QUIRE_RETURN_IF_ERROR(write_private_file(target.string(), bad->second));
      continue;
    }
    if (unread_logs_.contains(file.filename().string())) continue;
    if (file.extension() == ".sst") {
      if (is_another_table(file, options_)) {
        report_.may_lack_documents = true;
        note_damage(report_,
                    "table " + file.filename().string() + " has the content of another one");
        continue;
      }
      fs::create_hard_link(file, target, failed);
      if (!failed) continue;
    }
    fs::copy_file(file, target, failed);
    if (failed)
      note_damage(report_, file.filename().string() + " cannot be read: " + failed.message());
  }
  if (ec) return Status::io("cannot read '" + folder_.db() + "': " + ec.message());
  return {};
}

/// Adds a table to each family that no table names. RocksDB's repair learns of families from tables
/// alone, and would leave out what the log holds of the others. Where the manifest is lost,
/// families have the numbers that a new record gives them.
Status OldRecord::name_families(const std::string& copy, const RepairDatabase& fresh) {
  std::uint64_t number = 0;
  std::set<std::string> names;
  std::set<std::uint32_t> ids;
  const ::rocksdb::Options o(db_options(options_), record_options(options_, record_cache()));
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(copy));
  for (const fs::path& file : files) {
    number = std::max(number, file_number(file));
    ::rocksdb::SstFileReader reader(o);
    if (file.extension() != ".sst" || !reader.Open(file.string()).ok()) continue;
    if (const auto properties = reader.GetTableProperties()) {
      names.insert(properties->column_family_name);
      ids.insert(static_cast<std::uint32_t>(properties->column_family_id));
    }
  }
  for (std::size_t f = 0; f < kKinds; ++f) {
    auto* const handle = old_.db ? old_.handles[f] : fresh.handles[f];
    if (!handle || names.contains(kNames[f]) || ids.contains(handle->GetID())) continue;
    ::rocksdb::SstFileWriter writer(::rocksdb::EnvOptions(), o, handle);
    std::string name = std::to_string(++number);
    name.insert(0, name.size() < 6 ? 6 - name.size() : 0, '0');
    auto status = writer.Open(copy + "/" + name + ".sst");
    // A number of the ledger, which no repair copies.
    if (status.ok()) status = writer.Put(WriteLedger::slot_key(0), "");
    if (status.ok()) status = writer.Finish();
    if (!status.ok()) return to_status(status, "name the family " + std::string(kNames[f]));
  }
  return {};
}

/// Makes a new list of the tables in a copy of the record, whose log becomes tables.
Status OldRecord::rebuild(const std::string& copy, const RepairDatabase& fresh) {
  QUIRE_RETURN_IF_ERROR(copy_record(copy));
  QUIRE_RETURN_IF_ERROR(name_families(copy, fresh));
  old_.close();
  ::rocksdb::DBOptions o = db_options(options_);
  o.track_and_verify_wals_in_manifest = false;
  std::vector<::rocksdb::ColumnFamilyDescriptor> families;
  const auto cache = record_cache();
  families.emplace_back("default", record_options(options_, cache));
  for (const char* name : kNames) families.emplace_back(name, record_options(options_, cache));
  return to_status(::rocksdb::RepairDB(copy, o, families, record_options(options_, cache)),
                   "rebuild the list of tables");
}

OldRecord::Logs OldRecord::needed_logs() const {
  const std::string folder = work_ + "/without-logs";
  std::error_code ec;
  fs::create_directories(folder, ec);
  const auto files = files_in(folder_.db());
  if (!files.ok()) return {};
  for (const fs::path& file : *files) {
    const fs::path target = fs::path(folder) / file.filename();
    std::error_code failed;
    if (file.extension() == ".sst") fs::create_hard_link(file, target, failed);
    if (failed || file.filename() == "CURRENT" || file.filename().string().starts_with("MANIFEST-"))
      fs::copy_file(file, target, failed);
  }
  Logs logs;
  RepairDatabase look;
  if (!open_as(folder, /*copy=*/true, &look).ok()) return {};
  (void)look.db->GetIntProperty(::rocksdb::DB::Properties::kMinLogNumberToKeep, &logs.first);
  logs.next = look.db->GetLatestSequenceNumber() + 1;
  return logs;
}

Status OldRecord::read_logs() {
  manifest_whole_ = manifest_is_whole();
  QUIRE_ASSIGN_OR_RETURN(const auto misplaced, misplaced_logs(folder_.db()));
  QUIRE_ASSIGN_OR_RETURN(const auto logs, logs_in(folder_.db()));
  std::map<std::uint64_t, LogRecords> all;
  bool in_doubt = !misplaced.empty();
  std::string before;        // the last record
  bool from_tables = false;  // before the logs there are changes of tables
  for (const auto& [number, path] : logs) {
    if (std::ranges::count(misplaced, path.filename().string()) > 0) continue;
    const LogRecords& found = all[number] = log_records(file_bytes(path.string()));
    in_doubt = in_doubt || found.stops_reader || !follow_one_another(found.records);
    if (found.records.empty()) continue;
    if (before.empty())
      from_tables = first_change(found) > std::uint64_t{1};
    else
      in_doubt = in_doubt || !follow_one_another({before, found.records.front()});
    before = found.records.back();
  }
  // Without a whole manifest nothing asks for what tables have.
  const Logs needed = in_doubt || (from_tables && manifest_whole_) ? needed_logs() : Logs();
  const std::uint64_t first = in_doubt ? needed.first : 0;
  for (const std::string& log : misplaced) {
    unread_logs_.insert(log);
    if (file_number(log) < first) continue;
    report_.may_lack_documents = true;
    note_damage(report_, "log " + log + " has the content of another one");
    bad_logs_.emplace(log, "");
  }
  // A manifest that lacks edits does not know all tables.
  std::optional<std::uint64_t> next;
  if (manifest_whole_ && needed.next > 0) next = needed.next;
  DocumentsOverGaps documents(next);
  for (auto& [number, found] : all) {
    if (number < first) continue;
    // Where tables have later changes than the first one of the logs, nobody knows what was before.
    const bool late = next && first_change(found) > next;
    if (first_change(found)) next.reset();
    if (found.stops_reader || late || !follow_one_another(found.records)) {
      const std::string name = logs.at(number).filename().string();
      note_damage(report_, "log " + name + " is damaged");
      put_in_order(&found.records);
      std::string& left = bad_logs_[name];
      for (const std::string& record : found.records) append_log_record(left, record);
    }
    documents.add(found.records);
    for (std::string& record : found.records) {
      for (const std::uint64_t write : WriteLedger::numbers_in(record)) log_writes_.insert(write);
      batches_.push_back(std::move(record));
    }
  }
  if (documents.missing() > 0) {
    report_.may_lack_documents = true;
    note_damage(report_, std::to_string(documents.missing()) + " changes are missing in the logs");
    unsure_ = documents.unsure();
  } else {
    log_writes_.clear();
  }
  return {};
}

/// Returns whether the manifest has all its edits, as far as one can see.
bool OldRecord::manifest_is_whole() {
  std::string name = file_bytes(folder_.db() + "/CURRENT");
  name.resize(std::min(name.size(), name.find('\n')));
  const std::string manifest = file_bytes(folder_.db() + "/" + name);
  const auto note = ManifestNote::read(folder_.edits(), record_identity(folder_.db()));
  const bool between = lost_an_edit(manifest);
  if (!between && (!note || note->is_in(name, manifest))) return true;
  report_.may_lack_documents = true;
  note_damage(report_, "the manifest " + name +
                           (between ? " is damaged between whole edits"
                                    : " has lost its last edits, or is older than EDITS"));
  return false;
}

Status OldRecord::open(const RepairDatabase& fresh) {
  const std::string copy = work_ + "/copy";
  // RocksDB would not miss tables of lost edits.
  if (!manifest_whole_) {
    QUIRE_RETURN_IF_ERROR(rebuild(copy, fresh));
    return open_as(copy, /*copy=*/true, &old_);
  }
  if (bad_logs_.empty()) {
    Status status = open_as(folder_.db(), /*copy=*/false, &old_);
    if (status.ok()) status = read_all(old_);
    if (status.ok()) return {};
    note_damage(report_, status.message());
  }
  if (!old_.db) {
    const std::string as_it_is = work_ + "/as-it-is";
    QUIRE_RETURN_IF_ERROR(copy_record(as_it_is));
    if (open_as(as_it_is, /*copy=*/true, &old_).ok()) {
      report_.may_lack_documents = true;
      if (read_all(old_).ok()) return {};
    }
  } else {
    report_.may_lack_documents = true;  // tables that the manifest names cannot be read
  }
  QUIRE_RETURN_IF_ERROR(rebuild(copy, fresh));
  return open_as(copy, /*copy=*/true, &old_);
}

/// Returns the acknowledged writes that logs with gaps lack: later ones may have taken their slots.
LostWrites OldRecord::missing_in_logs(const WriteLedger& ledger) const {
  LostWrites lost;
  if (log_writes_.empty()) return lost;
  for (const WriteLedger::Entry& e : ledger.entries()) {
    if (e.number < *log_writes_.begin() || log_writes_.contains(e.number)) continue;
    ++lost.count;
    lost.first_ms = lost.first_ms == 0 ? e.ms : std::min(lost.first_ms, e.ms);
    lost.last_ms = std::max(lost.last_ms, e.ms);
  }
  return lost;
}

Status OldRecord::compare_ledger() {
  if (!old_.db) return {};
  WriteLedger ledger;
  QUIRE_RETURN_IF_ERROR(ledger.open(folder_.ledger(), 0, folder_.ledger_twin()));
  LostWrites lost = ledger.compare(kNumFamilies, [&](int kind, std::size_t slot) {
    auto* const handle = old_.handles[at(kind)];
    return handle ? slot_number(*old_.db, handle, slot) : 0;
  });
  if (const LostWrites more = missing_in_logs(ledger); more.count > lost.count) lost = more;
  if (lost.count == 0) return {};
  report_.may_lack_documents = true;
  note_damage(report_,
              (lost.at_least ? "at least " : "") + std::to_string(lost.count) +
                  " acknowledged writes are not in the log, the first of Unix millisecond " +
                  std::to_string(lost.first_ms) + ", the last of " + std::to_string(lost.last_ms));
  return {};
}

}  // namespace quire::rocksdb_internal
