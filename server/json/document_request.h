/// Reads documents and what is to be done with them from JSON.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "ingest/document/document_types.h"

namespace quire {

/// A document whose text is still the bytes of a file of any format, here or on the web.
struct UploadedFile {
  std::size_t index = 0;  ///< in DocumentBatch::documents
  std::string name;       ///< empty: it is to be fetched from `url`
  std::string url = {};   ///< empty: the bytes are there
};

struct DocumentBatch {
  std::vector<DocumentInput> documents;
  BatchOptions options;
  std::vector<UploadedFile> files;  ///< by index
  bool chosen_strategy = false;     ///< the caller says how texts are cut
  /// Where the documents stand in the call, of which they are a part; empty: they are all of it.
  std::vector<std::size_t> places = {};
};

/// Reads POST /v1/documents: one document object (with options among its members), or {"documents":
/// [...], options}.
std::optional<JsonError> read_batch(const boost::json::value& body, std::size_t max_documents,
                                    DocumentBatch& out);
/// Reads PUT /v1/documents/{id}: one document object. An `id` inside must equal that of the path.
std::optional<JsonError> read_put(const boost::json::value& body, const std::string& id,
                                  DocumentBatch& out);
/// Reads one document object without options, at `path` ("documents[3]").
std::optional<JsonError> read_document(const boost::json::value& value, const std::string& path,
                                       DocumentInput& out);
/// Reads an option given as query parameter or form field: if_exists, ttl_seconds, ttl_anchor,
/// pinned, kv, tier, cache_salt, max_tokens, overlap_tokens, context_tokens, related_tokens,
/// lead_in, strategy, separator. Returns false for a name that is not an option.
bool read_option(std::string_view name, const std::string& value, BatchOptions& out,
                 std::optional<JsonError>& error);

std::optional<JsonError> read_patch(const boost::json::value& body, DocumentPatch& out);
std::optional<JsonError> read_bulk_delete(const boost::json::value& body, BulkDelete& out);
/// Reads one filter, such as `"status": "..."` or `"metadata.source": "x"`.
std::optional<JsonError> read_filter_member(std::string_view name, const std::string& value,
                                            DocumentFilter& out);

}  // namespace quire
