/// The documents of the service in the form that callers see: reading, changing and deleting them
/// by id.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ingest/document/document_types.h"

namespace quire {

/// Threads: every method may be called from any thread. Every method may wait on disk: it belongs
/// on a worker thread, never on an I/O thread. A foreign or unknown id is kNotFound; failures of
/// the store are passed on.
class DocumentCatalog {
 public:
  virtual ~DocumentCatalog() = default;

  virtual Result<DocumentInfo> get(std::string_view ns, std::string_view id) = 0;
  /// Lists stored documents together with those still being ingested. Errors: kInvalidArgument
  /// (field "limit").
  virtual Result<DocumentListPage> list(std::string_view ns,
                                        const DocumentListOptions& options) = 0;
  virtual Result<DocumentCounts> counts(std::string_view ns) = 0;
  /// Returns the stored text, or that of a document still being ingested. kFailedPrecondition: the
  /// document failed, and such a document has no text.
  virtual Result<std::string> content(std::string_view ns, std::string_view id) = 0;
  virtual Result<std::vector<ChunkInfo>> chunks(std::string_view ns, std::string_view id) = 0;
  /// Returns the pages and headings of the text; none for one that came without them.
  virtual Result<std::vector<TextMark>> marks(std::string_view ns, std::string_view id) = 0;
  virtual Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id) = 0;

  /// Applies the patch. Errors: kNotFound, kInvalidArgument, kFailedPrecondition (not ready yet;
  /// with a field: the patch's condition), kResourceExhausted (no more may be pinned).
  virtual Result<DocumentInfo> patch(std::string_view ns, std::string_view id,
                                     const DocumentPatch& patch) = 0;
  /// Deletes text and KV. Queries that resolved the document finish; waiting items of earlier jobs
  /// for this id are cancelled. The condition is checked before; a change that comes between check
  /// and deletion is deleted, too. Errors: kNotFound, kFailedPrecondition (the condition).
  virtual Status remove(std::string_view ns, std::string_view id,
                        const DocumentCondition& condition) = 0;
  Status remove(std::string_view ns, std::string_view id) { return remove(ns, id, {}); }
  /// Deletes each document that the request names, one after the other. Errors: kInvalidArgument
  /// (not exactly one of ids and filter, or an empty filter).
  virtual Result<BulkDeleteResult> remove_many(std::string_view ns, const BulkDelete& request) = 0;
  /// Returns the job of the last post of the document that is not done, here or at another replica:
  /// until it is, patch() refuses. None: there is none.
  virtual Result<std::optional<std::string>> replacing_job(std::string_view ns,
                                                           std::string_view id) = 0;
  /// Saves how earlier jobs for this id ended. Who changes the document in the store alone calls it
  /// before, because a start repeats what is not saved. Errors: those of writing.
  virtual Status settle(std::string_view ns, std::string_view id) = 0;
};

}  // namespace quire
