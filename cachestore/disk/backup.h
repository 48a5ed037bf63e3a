/// This file declares backups of a store's record: documents, their settings, jobs. KV is not in
/// them, because it can be computed again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

struct BackupReport {
  std::uint32_t number = 0;            ///< of this backup, from 1
  std::int64_t made_ms = 0;            ///< Unix milliseconds
  std::uint64_t files = 0, bytes = 0;  ///< that it consists of, those shared with others included
  std::uint32_t backups = 0;           ///< in the folder now
  bool unusable = false;               ///< of a list: files are missing, and the rest is not known
};

/// Returns the backups in a folder by their numbers. Their files are not read. Errors: kNotFound
/// (no folder of backups), kIo.
Result<std::vector<BackupReport>> list_backups(const std::string& folder);

/// Makes a store in `path`, which must be missing or empty, of a backup in `folder`: that of
/// `number`, or the newest one (0). Every file is checked first. After a crash nothing opens what
/// is there, and the next call begins anew in it. Errors: kNotFound (no such backup), kCorruption
/// (it is damaged; the message names the newest one that is whole), kFailedPrecondition (`path`
/// holds something), kIo, kResourceExhausted.
Result<BackupReport> restore_store(const std::string& folder, const std::string& path,
                                   std::uint32_t number = 0);

}  // namespace quire
