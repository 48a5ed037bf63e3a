/// OpenAI's vector stores: the record that holds those of a namespace, which the replicas of a
/// shared catalog have in common, and their ids in metadata of documents.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ingest/document/document_types.h"
#include "server/json/vector_store_codec.h"

namespace quire {

struct Services;

/// Returns the vector stores of a namespace, oldest first. (disk, catalog) Errors: kCorruption,
/// kIo.
Result<std::vector<VectorStore>> vector_stores_of(const Services& services, const std::string& ns);
/// Changes their record. The change may refuse by an error, which is passed on, and is called again
/// if another replica was first. (disk, catalog) Errors: also kIo (catalog_is_away()).
Status change_vector_stores(Services& services, const std::string& ns,
                            const std::function<Status(std::vector<VectorStore>&)>& change);

/// Returns the condition that documents of a vector store meet.
MetadataFilter files_of_vector_store(const std::string& store_id);
/// Returns whether the document is in the vector store.
bool is_in_vector_store(const DocumentInfo& document, const std::string& store_id);

/// The error of a document that is there, but not in the vector store that was asked.
Status not_in_vector_store();
bool is_not_in_vector_store(const Status& status);

/// What becomes of a document's place in a vector store, of its attributes and of its life.
struct Membership {
  enum class Change : unsigned char { kAttach, kDetach, kAttributes } change = Change::kAttach;
  std::string store_id = {};
  boost::json::object attributes = {};
  /// Also sets the end of its life: a time, or (inner none) that there is no such setting.
  std::optional<std::optional<std::int64_t>> expires_at_ms = {};
};
/// Applies it to a document that is ready, on the version that it has just read. (disk) Errors:
/// kNotFound, not_in_vector_store(), kFailedPrecondition (being replaced), those of
/// DocumentCatalog::patch().
Result<DocumentInfo> change_membership(Services& services, const std::string& ns,
                                       const std::string& id, const Membership& membership);

/// Returns how a stored document was cut, if it was cut by tokens. (disk)
std::optional<StaticChunking> chunking_of_file(const Services& services, const std::string& ns,
                                               const std::string& id);

/// A file on its way into a vector store, and what was done for it so far.
struct FileToAttach {
  std::string id = {};
  boost::json::object attributes = {};
  std::optional<StaticChunking> chunking = {};  ///< none: as it is cut
  std::string cut_job = {};  ///< the job that cuts it again; empty: none was begun
  int tries = 0;             ///< how often that was begun
  /// The end of life of the version that is being replaced.
  std::optional<std::optional<std::int64_t>> expires_at_ms = {};
};
/// Where a step has brought the file.
struct AttachStep {
  enum class At : unsigned char {
    kAttached,  ///< `document` is in the vector store
    kWorking,   ///< `job_id` works on it: step again once that has ended
    kLater,     ///< it is to be cut again, which the caller did not allow now
    kFailed     ///< `code` and `message` say why
  } at = At::kFailed;
  bool catalog_away = false;  ///< of kFailed: that is why, so it may work later
  DocumentInfo document;
  std::string job_id;
  std::string code, message;  ///< a code of the API
};
enum class MayCut : unsigned char { kNo, kYes };
/// Takes the next step. A document that is not cut as the file wants is stored again from its own
/// text, with all that callers have set. (disk)
AttachStep attach_file_to(Services& services, const std::string& ns, const std::string& store_id,
                          FileToAttach& file, MayCut may_cut);

}  // namespace quire
