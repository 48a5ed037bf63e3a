#include "cachestore/disk/rocksdb_backup.h"

#include <rocksdb/env.h>
#include <rocksdb/utilities/backup_engine.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <vector>

#include "cachestore/disk/log/folder_files.h"
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
  const auto log = db_options({}).info_log;
  auto options = backup_options(folder);
  options.info_log = log.get();
  ::rocksdb::BackupEngine* opened = nullptr;
  QUIRE_RETURN_IF_ERROR(
      to_status(::rocksdb::BackupEngine::Open(options, ::rocksdb::Env::Default(), &opened),
                "open the backups in '" + folder + "'"));
  const std::unique_ptr<::rocksdb::BackupEngine> engine(opened);
  QUIRE_RETURN_IF_ERROR(
      to_status(engine->CreateNewBackup(&db, /*flush_before_backup=*/true), "make a backup"));
  std::vector<::rocksdb::BackupInfo> all;
  engine->GetBackupInfo(&all);
  if (all.empty()) return Status::internal("the backup that was made is not there");
  const Status whole = to_status(
      engine->VerifyBackup(all.back().backup_id, /*verify_with_checksum=*/true),
      "read the backup back");
  // A restore takes the newest one.
  if (!whole.ok()) (void)engine->DeleteBackup(all.back().backup_id);
  QUIRE_RETURN_IF_ERROR(whole);
  if (keep > 0 && all.size() > keep)
    QUIRE_RETURN_IF_ERROR(to_status(engine->PurgeOldBackups(keep), "delete older backups"));
  std::vector<::rocksdb::BackupInfo> left;
  engine->GetBackupInfo(&left);
  return report_of(all.back(), left.size());
}

}  // namespace rocksdb_internal

Result<BackupReport> restore_store(const std::string& folder, const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec))
    return Status(Code::kNotFound, "there is no folder of backups '" + folder + "'", "from");
  if (!fs::is_directory(fs::path(folder) / "meta", ec))
    return Status(Code::kNotFound, "there is no backup in '" + folder + "'", "from");
  if (fs::exists(path, ec) && !fs::is_empty(path, ec))
    return Status(Code::kFailedPrecondition,
                  "'" + path + "' is not empty: name a new folder, or move it away", "disk.path");
  const auto log = db_options({}).info_log;
  auto options = backup_options(folder);
  options.info_log = log.get();
  ::rocksdb::BackupEngineReadOnly* opened = nullptr;
  QUIRE_RETURN_IF_ERROR(
      to_status(::rocksdb::BackupEngineReadOnly::Open(::rocksdb::Env::Default(), options, &opened),
                "open the backups in '" + folder + "'"));
  std::unique_ptr<::rocksdb::BackupEngineReadOnly> engine(opened);
  std::vector<::rocksdb::BackupInfo> all;
  engine->GetBackupInfo(&all);
  if (all.empty()) return Status(Code::kNotFound, "there is no backup in '" + folder + "'", "from");
  QUIRE_RETURN_IF_ERROR(
      to_status(engine->VerifyBackup(all.back().backup_id, /*verify_with_checksum=*/true),
                "read the backup"));
  Status restored;
  {
    QUIRE_ASSIGN_OR_RETURN(const StoreFolder made, StoreFolder::open(path, /*read_only=*/false));
    restored = to_status(engine->RestoreDBFromBackup(all.back().backup_id, made.db(), made.db()),
                         "restore");
    if (restored.ok()) restored = made.say_restored();
  }
  if (!restored.ok()) {
    // Half a store is of no use, and would be in the way of another try. Threads of the engine may
    // still copy other files, so it ends first.
    engine.reset();
    const auto entries = files_in(path);
    if (!entries.ok()) return restored;
    for (const fs::path& entry : *entries) fs::remove_all(entry, ec);
    return restored;
  }
  return report_of(all.back(), all.size());
}

}  // namespace quire
