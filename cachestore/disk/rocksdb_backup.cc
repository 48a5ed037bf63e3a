#include "cachestore/disk/rocksdb_backup.h"

#include <rocksdb/env.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/utilities/backup_engine.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/folder/restoring.h"
#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/disk/rocksdb_options.h"
#include "cachestore/disk/store_folder.h"

namespace quire {
namespace {

using namespace rocksdb_internal;  // NOLINT: the settings of the tier
namespace fs = std::filesystem;

::rocksdb::BackupEngineOptions backup_options(const std::string& folder) {
  ::rocksdb::BackupEngineOptions o(folder);
  o.share_table_files = true;
  o.sync = true;
  return o;
}

BackupReport report_of(const ::rocksdb::BackupInfo& info, std::size_t backups) {
  return {info.backup_id, info.timestamp * 1000, info.number_files, info.size,
          static_cast<std::uint32_t>(backups)};
}

/// Returns which table that backups share an error of the engine names, within their folder; empty:
/// none.
std::string shared_table_in(const ::rocksdb::BackupEngine& engine, const std::string& error) {
  std::vector<::rocksdb::BackupInfo> all;
  engine.GetBackupInfo(&all, /*include_file_details=*/true);
  for (const auto& backup : all) {
    for (const auto& file : backup.file_details) {
      const std::string& name = file.relative_filename;
      if (name.starts_with("shared") && error.find(name) != std::string::npos) return name;
    }
  }
  return {};
}

/// Makes a backup and reads it back. `damaged` receives the table that an earlier backup has, too,
/// and that cannot be used.
Result<BackupReport> make_backup(::rocksdb::DB& db, const std::string& folder, std::uint32_t keep,
                                 std::string* damaged) {
  const auto log = db_options({}).info_log;
  auto options = backup_options(folder);
  options.info_log = log.get();
  ::rocksdb::BackupEngine* opened = nullptr;
  QUIRE_RETURN_IF_ERROR(
      to_status(::rocksdb::BackupEngine::Open(options, ::rocksdb::Env::Default(), &opened),
                "open the backups in '" + folder + "'"));
  const std::unique_ptr<::rocksdb::BackupEngine> engine(opened);
  const Status made = to_status(engine->CreateNewBackup(&db, /*flush_before_backup=*/true),
                                "make a backup");
  if (!made.ok()) *damaged = shared_table_in(*engine, made.message());
  QUIRE_RETURN_IF_ERROR(made);
  std::vector<::rocksdb::BackupInfo> all;
  engine->GetBackupInfo(&all);
  if (all.empty()) return Status::internal("the backup that was made is not there");
  const Status whole = to_status(
      engine->VerifyBackup(all.back().backup_id, /*verify_with_checksum=*/true),
      "read the backup back");
  if (!whole.ok()) {
    *damaged = shared_table_in(*engine, whole.message());
    // A restore takes the newest one.
    (void)engine->DeleteBackup(all.back().backup_id);
    return whole;
  }
  if (keep > 0 && all.size() > keep)
    QUIRE_RETURN_IF_ERROR(to_status(engine->PurgeOldBackups(keep), "delete older backups"));
  std::vector<::rocksdb::BackupInfo> left;
  engine->GetBackupInfo(&left);
  return report_of(all.back(), left.size());
}

/// Puts a table of the database into the place of a damaged one in a folder of backups. The engine
/// does not, as the name of that one says that it is there. Errors: kCorruption (the database's own
/// is damaged), kIo, kResourceExhausted.
Status copy_again(::rocksdb::DB& db, const std::string& damaged) {
  // A name in the folder of backups begins with that in the database: 000012_s...sst.
  const std::string name = fs::path(damaged).filename().string(),
                    table = db.GetName() + "/" + name.substr(0, name.find('_')) + ".sst";
  ::rocksdb::SstFileReader reader(db.GetOptions());
  QUIRE_RETURN_IF_ERROR(to_status(reader.Open(table), "read '" + table + "'"));
  QUIRE_RETURN_IF_ERROR(to_status(reader.VerifyChecksum(), "read '" + table + "'"));
  bool failed = false;
  const std::string bytes = file_bytes(table, &failed);
  if (failed || bytes.empty()) return Status::io("cannot read '" + table + "'");
  const std::string copy = damaged + ".tmp";
  QUIRE_RETURN_IF_ERROR(write_private_file(copy, bytes));
  std::error_code ec;
  fs::rename(copy, damaged, ec);
  return ec ? Status::io("cannot write '" + damaged + "': " + ec.message()) : Status();
}

/// The backups in a folder, to be read.
struct OpenBackups {
  std::shared_ptr<::rocksdb::Logger> log;
  std::unique_ptr<::rocksdb::BackupEngineReadOnly> engine;
  std::vector<::rocksdb::BackupInfo> all;
  std::vector<::rocksdb::BackupID> unusable;  ///< whose files are not all there

  std::uint32_t newest() const {
    const std::uint32_t last = all.empty() ? 0 : all.back().backup_id;
    return unusable.empty() ? last : std::max(last, std::ranges::max(unusable));
  }
  Status verify(std::uint32_t number) const {
    return to_status(engine->VerifyBackup(number, /*verify_with_checksum=*/true),
                     "read backup " + std::to_string(number));
  }
};

Result<OpenBackups> open_backups(const std::string& folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec))
    return Status(Code::kNotFound, "there is no folder of backups '" + folder + "'", "from");
  if (!fs::is_directory(fs::path(folder) / "meta", ec))
    return Status(Code::kNotFound, "there is no backup in '" + folder + "'", "from");
  OpenBackups out;
  out.log = db_options({}).info_log;
  auto options = backup_options(folder);
  options.info_log = out.log.get();
  ::rocksdb::BackupEngineReadOnly* opened = nullptr;
  QUIRE_RETURN_IF_ERROR(
      to_status(::rocksdb::BackupEngineReadOnly::Open(::rocksdb::Env::Default(), options, &opened),
                "open the backups in '" + folder + "'"));
  out.engine.reset(opened);
  out.engine->GetBackupInfo(&out.all);
  out.engine->GetCorruptedBackups(&out.unusable);
  if (out.newest() == 0)
    return Status(Code::kNotFound, "there is no backup in '" + folder + "'", "from");
  return out;
}

/// Says which backup can be restored in the place of a damaged one.
std::string another_one(const OpenBackups& backups, std::uint32_t damaged,
                        const std::string& folder) {
  for (auto other = backups.all.rbegin(); other != backups.all.rend(); ++other) {
    const std::string number = std::to_string(other->backup_id);
    if (other->backup_id != damaged && backups.verify(other->backup_id).ok())
      return "; backup " + number + " is the newest whole one: 'quire store restore " + folder +
             " --backup " + number + "'";
  }
  return "; no other backup in '" + folder + "' is whole";
}

}  // namespace

namespace rocksdb_internal {

Result<BackupReport> add_backup(::rocksdb::DB& db, const std::string& folder, std::uint32_t keep) {
  std::error_code ec;
  const fs::path store = fs::weakly_canonical(fs::path(db.GetName()).parent_path(), ec);
  const fs::path to = fs::weakly_canonical(folder, ec);
  if (std::mismatch(store.begin(), store.end(), to.begin(), to.end()).first == store.end())
    return Status::invalid("to", "'" + folder +
                                     "' is in the folder of the store, with which it would be "
                                     "lost; name another one");
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return Status(Code::kIo, "cannot create the folder '" + folder + "'", "to");
  std::set<std::string> copied_again;
  for (;;) {
    std::string damaged;
    auto made = make_backup(db, folder, keep, &damaged);
    if (made.ok() || damaged.empty()) return made;
    const std::string path = folder + "/" + damaged;
    Status again = copied_again.insert(path).second
                       ? copy_again(db, path)
                       : Status::corruption("it is damaged again after it was copied again");
    if (!again.ok())
      return Status(made.code(),
                    made.status().message() + "; '" + path + "' cannot be replaced: " +
                        again.message() + "; make backups in another folder, on another disk",
                    "to");
    log_warning("a damaged table of the backups was copied again",
                {{"file", path}, {"reason", made.status().message()}});
  }
}

}  // namespace rocksdb_internal

Result<std::vector<BackupReport>> list_backups(const std::string& folder) {
  QUIRE_ASSIGN_OR_RETURN(const OpenBackups backups, open_backups(folder));
  std::vector<BackupReport> out;
  for (const auto& info : backups.all) out.push_back(report_of(info, 0));
  for (const auto number : backups.unusable) out.push_back({.number = number, .unusable = true});
  for (auto& report : out) report.backups = static_cast<std::uint32_t>(out.size());
  std::ranges::sort(out, {}, &BackupReport::number);
  return out;
}

Result<BackupReport> restore_store(const std::string& folder, const std::string& path,
                                   std::uint32_t number) {
  QUIRE_ASSIGN_OR_RETURN(OpenBackups backups, open_backups(folder));
  QUIRE_RETURN_IF_ERROR(check_restorable(path));
  if (number == 0) number = backups.newest();
  const auto found = std::ranges::find(backups.all, number, &::rocksdb::BackupInfo::backup_id);
  if (found == backups.all.end() && std::ranges::count(backups.unusable, number) == 0)
    return Status(Code::kNotFound,
                  "there is no backup " + std::to_string(number) + " in '" + folder +
                      "': 'quire store backups " + folder + "' lists them",
                  "backup");
  const Status whole = backups.verify(number);
  if (!whole.ok())
    return Status(whole.code() == Code::kNotFound ? Code::kCorruption : whole.code(),
                  whole.message() + another_one(backups, number, folder), "from");
  const BackupReport report = report_of(*found, backups.all.size());
  QUIRE_ASSIGN_OR_RETURN(const StoreFolder made,
                         StoreFolder::open(path, /*read_only=*/false, FolderUse::kRestore));
  Status restored = to_status(backups.engine->RestoreDBFromBackup(number, made.db(), made.db()),
                              "restore");
  if (restored.ok()) restored = made.end_restore();
  if (restored.ok()) return report;
  // Threads of the engine may still copy other files, so it ends first.
  backups.engine.reset();
  made.abandon_restore();
  return restored;
}

}  // namespace quire
