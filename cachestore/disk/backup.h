/// This file declares backups of a store's record: documents, their settings, jobs. KV is not in
/// them, because it can be computed again.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace quire {

struct BackupReport {
  std::uint32_t number = 0;            ///< of this backup, from 1
  std::int64_t made_ms = 0;            ///< Unix milliseconds
  std::uint64_t files = 0, bytes = 0;  ///< that it consists of, those shared with others included
  std::uint32_t backups = 0;           ///< in the folder now
};

/// Makes a store in `path`, which must be missing or empty, of the newest backup in `folder`. Every
/// file is checked first. Errors: kNotFound (no backup), kCorruption (it is damaged),
/// kFailedPrecondition (`path` holds something), kIo, kResourceExhausted.
Result<BackupReport> restore_store(const std::string& folder, const std::string& path);

}  // namespace quire
