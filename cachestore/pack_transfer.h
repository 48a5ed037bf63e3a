/// Documents of a store into a pack, and a pack into a store.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cachestore/pack.h"
#include "cachestore/store_admin.h"

namespace quire {

/// Writes the ready documents of `ids` in the namespace, each with the KV the store has of it; KV
/// that several share is written once. KV that cannot be read is left out: it is only cache. Holds
/// one document and one value in memory. Waits on disk. Errors: kNotFound (an id; field: the id;
/// found before anything is written), kCancelled (the sink gave up), kIo.
Status export_documents(AdminStore& store, const std::string& ns,
                        const std::vector<std::string>& ids, const PackHeader& header,
                        const PackWriter::Sink& sink);

/// Ids of all ready documents of a namespace.
Result<std::vector<std::string>> ready_documents(Store& store, const std::string& ns);

struct ImportOptions {
  std::string ns, tenant;  ///< where the documents go, and who pays for their KV
  /// Of the model that is loaded: KV of another is left out, its documents are kept and are stale
  std::string fingerprint;
  /// The key under which the loaded model finds a context: the namespace is part of it, so keys of
  /// the pack are made anew.
  std::function<ContextKey(std::span<const std::int32_t> token_ids, const Digest& salt_digest)>
      key_of;
  /// Refuses ids the service does not take; empty: takes all
  std::function<Status(std::string_view id)> check_id;
};
struct ImportReport {
  std::uint64_t documents = 0;  ///< stored
  std::uint64_t skipped = 0;    ///< there already with the same content; KV they lacked is stored
  std::uint64_t blocks = 0;     ///< of KV stored
  std::uint64_t stale = 0;      ///< stored documents whose KV is of another model
  struct Rejected {
    std::string id, reason;
  };
  std::vector<Rejected> rejected;
};
/// Stores what the pack holds; a document of the same id is replaced. KV there is no room for is
/// left out. Documents before an error stay. Errors: those of PackReader::next() (check a pack with
/// check_pack() first), kIo, kFailedPrecondition (read-only).
Result<ImportReport> import_pack(Store& store, PackReader& reader, const ImportOptions& options);

/// Reads a whole pack without keeping anything. Errors: those of PackReader::next().
Result<PackEnd> check_pack(PackReader& reader);

}  // namespace quire
