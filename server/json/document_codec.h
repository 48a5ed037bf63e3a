/// Converts documents and jobs between JSON and the document service's values.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingest/document_types.h"
#include "ingest/job.h"
#include "server/http/http_message.h"
#include "server/json/reader.h"

namespace quire {

struct DocumentBatch {
  std::vector<DocumentInput> documents;
  BatchOptions options;
};

/// Reads POST /v1/documents: one document object (with options among its members), or {"documents":
/// [...], options}.
std::optional<ReadError> read_batch(const boost::json::value& body, std::size_t max_documents,
                                    DocumentBatch& out);
/// Reads PUT /v1/documents/{id}: one document object. An `id` inside must equal that of the path.
std::optional<ReadError> read_put(const boost::json::value& body, const std::string& id,
                                  DocumentBatch& out);
/// Reads one document object without options, at `path` ("documents[3]").
std::optional<ReadError> read_document(const boost::json::value& value, const std::string& path,
                                       DocumentInput& out);
/// Reads an option given as query parameter or form field: if_exists, ttl_seconds, ttl_anchor,
/// pinned, tier, cache_salt, max_tokens, overlap_tokens, strategy, separator. Returns false for a
/// name that is not an option.
bool read_option(std::string_view name, const std::string& value, BatchOptions& out,
                 std::optional<ReadError>& error);

/// Reads multipart/form-data. A part with a file name is a document. A part without one is an
/// option, or title/id/metadata if there is only one document.
std::optional<ReadError> read_multipart(std::string_view body, const std::string& boundary,
                                        std::size_t max_documents, DocumentBatch& out);

/// Reads application/x-ndjson as it arrives: one document per line.
class NdjsonReader {
 public:
  explicit NdjsonReader(std::size_t max_documents) : max_documents_(max_documents) {}
  std::optional<ReadError> feed(std::string_view piece);
  /// Ends the input. The last line may lack its newline.
  std::optional<ReadError> finish();
  std::vector<DocumentInput> take() { return std::move(documents_); }

 private:
  std::optional<ReadError> line(std::string_view text);
  const std::size_t max_documents_;
  std::size_t line_number_ = 0;
  std::string rest_;
  std::vector<DocumentInput> documents_;
};

std::optional<ReadError> read_patch(const boost::json::value& body, DocumentPatch& out);
std::optional<ReadError> read_bulk_delete(const boost::json::value& body, BulkDelete& out);
/// Reads one filter, such as `"status": "..."` or `"metadata.source": "x"`.
std::optional<ReadError> read_filter_member(std::string_view name, const std::string& value,
                                            DocumentFilter& out);

boost::json::object document_json(const DocumentInfo& info);
boost::json::object job_json(const JobSnapshot& job);
/// Returns the reply of POST /v1/documents.
boost::json::object ingest_json(const JobSnapshot& job);
boost::json::object chunk_json(const ChunkInfo& chunk);
boost::json::object block_json(const BlockInfo& block);
/// Returns {"object":"list","data":[...],"first_id","last_id","has_more"}.
boost::json::object list_json(boost::json::array data, bool has_more,
                              std::string_view id_member = "id");

}  // namespace quire
