/// Makes backups of an open database. Only cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/db.h>

#include <string>

#include "base/status.h"
#include "cachestore/disk/backup.h"

namespace quire::rocksdb_internal {

/// Adds a backup to `folder`, which is made if it is missing, checks every byte of it, and deletes
/// all but the `keep` newest. Tables that an earlier backup has are not copied again, unless they
/// are damaged there: then all backups that share them are whole again. Errors: kIo, kCorruption,
/// kResourceExhausted.
Result<BackupReport> add_backup(::rocksdb::DB& db, const std::string& folder, std::uint32_t keep);

}  // namespace quire::rocksdb_internal
