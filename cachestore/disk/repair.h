/// This file declares the repair of a store whose record is damaged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cachestore/format/lost_writes.h"

namespace quire {

struct RepairOptions {
  std::string path;  ///< folder of the store, which nobody has open
  /// Only reads and reports. It works in the folder repair/ of the store's, with room for a second
  /// record, and leaves all else there as it is.
  bool dry_run = true;
  bool keep_kv = true;  ///< false: all KV is left behind and computed again
  /// Folder of the second copy of the records (StoreOptions::copy_path): if it is whole the new
  /// record has what that has, and KV of the old one; empty: none.
  std::string copy_path = {};
};

/// What was found. Lists are in order of namespace and id.
struct RepairReport {
  struct Document {
    std::string ns, id;
    std::string reason;  ///< what cannot be read, in a few words
  };
  std::uint64_t documents = 0;  ///< whole: they stay as they are
  std::uint64_t segments = 0;   ///< contexts with KV that stay
  std::uint64_t records = 0;    ///< jobs and small records that stay
  /// Only their texts could be read. These are in `text_files`, to be posted again.
  std::vector<Document> texts;
  /// Nothing of them but their id could be read. A document of which no trace is left is not here.
  std::vector<Document> lost;
  std::vector<std::string> damage;  ///< what is damaged, one line each
  /// Some records came from a damaged table on their own, without its newer neighbours: a document
  /// may be back that was deleted, or in an older version.
  bool may_be_older = false;
  /// Tables or writes are gone of which no trace is left: documents may be missing that no list
  /// names.
  bool may_lack_documents = false;
  /// Writes that earlier starts found missing, none of which was ready to say so. The next one that
  /// is says it (folder/untold_losses.h); a repair brings none of them back.
  LostWrites untold;
  std::string kept_folder;  ///< where the damaged record lies now; empty in a dry run
  std::vector<std::string>
      text_files;  ///< NDJSON of each namespace, as POST /v1/documents takes it
};

/// Makes a new record of everything that can be read in the old one, and puts it in its place. The
/// old one is moved to a folder of its own in the store's folder and not changed. After a crash the
/// old or the new record is there, never half of one. Errors: kFailedPrecondition (in use, newer
/// layout; dry_run and a repair that was interrupted), kNotFound, kIo, kResourceExhausted (no room
/// for a second record).
Result<RepairReport> repair_store(const RepairOptions& options);

/// Returns one line that says what a repair kept and lost.
std::string summary(const RepairReport& report);

}  // namespace quire
