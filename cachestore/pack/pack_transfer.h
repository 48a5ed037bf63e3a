/// This file declares export of a store's documents to a pack and import of a pack into a store.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cachestore/pack/pack.h"
#include "cachestore/store_admin.h"

namespace quire {

/// Writes the ready documents of `ids` in the namespace, each with the KV that the store has of it.
/// KV that several documents share is written once; unreadable KV is left out, because it is only
/// cache. Holds one document and one value in memory and waits on disk. Errors: kNotFound (an id,
/// also the field; checked before anything is written), kCancelled (the sink returned false), kIo.
Status export_documents(AdminStore& store, const std::string& ns,
                        const std::vector<std::string>& ids, const PackHeader& header,
                        const PackWriter::Sink& sink);

/// Returns the ids of all ready documents of a namespace.
Result<std::vector<std::string>> ready_documents(Store& store, const std::string& ns);

struct ImportOptions {
  std::string ns, tenant;  ///< the documents' namespace, and the tenant that pays for their KV
  /// what documents of `ns` are marked with (Engine::document_fingerprint); KV of others is left
  /// out, and their documents are stale
  std::string fingerprint;
  /// Returns the key under which the loaded model finds a context. Keys of the pack are recomputed,
  /// because they include the namespace: no key of the pack is stored.
  std::function<ContextKey(std::span<const std::int32_t> token_ids, const Digest& salt_digest,
                           std::span<const std::int32_t> left_context)>
      key_of;
  /// Rejects ids that the service does not accept; empty: accepts all
  std::function<Status(std::string_view id)> check_id;
  /// Says whether a document may be stored, given as it would be with the bytes of its text, and
  /// rejects it otherwise; not asked for those that are skipped. kIo and kFailedPrecondition end
  /// the import. Empty: all may
  std::function<Status(const DocumentManifest& document, std::uint64_t text_bytes)> admit;
  /// Comes before a document is stored or kept; an error ends the import. Empty: nothing
  std::function<Status(std::string_view id)> before_commit;
};
struct ImportReport {
  std::uint64_t documents = 0;  ///< stored
  /// already present with the same content, settings and keys; their missing KV is stored
  std::uint64_t skipped = 0;
  std::uint64_t blocks = 0;  ///< blocks of KV stored
  std::uint64_t stale = 0;   ///< stored documents with KV of another model
  struct Rejected {
    std::string id, reason;
  };
  std::vector<Rejected> rejected;
};
/// Stores the documents of the pack, replacing documents of the same id. KV without room is left
/// out. Documents before an error stay. Errors: those of PackReader::next() (check a pack with
/// check_pack() first), kIo, kFailedPrecondition (read-only).
Result<ImportReport> import_pack(Store& store, PackReader& reader, const ImportOptions& options);

/// Reads a whole pack without storing anything. Errors: those of PackReader::next().
Result<PackEnd> check_pack(PackReader& reader);

}  // namespace quire
