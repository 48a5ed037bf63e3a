/// Replies about documents, their chunks and blocks.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ingest/document/document_types.h"
#include "server/reply/reply.h"

namespace quire {

/// ItemFailure is the error of one document of several. The error must outlive it.
struct ItemFailure {
  const ItemError& error;
  std::string_view id = {};  ///< empty: the reply names the document elsewhere
};
const Reply<ItemFailure>& item_error_reply();
/// Returns no value where nothing failed.
std::optional<boost::json::object> item_error_json(const std::optional<ItemError>& error);

/// Returns a document's metadata; an empty object for text that is no JSON object.
boost::json::object metadata_object(const std::string& text);

/// What DocumentInfo::status says.
Kind document_status();
/// Names of ReadBehind::Kind.
Kind read_behind_kind();
const Reply<DocumentInfo>& document_reply();
boost::json::object document_json(const DocumentInfo& info);
const Reply<DocumentCounts>& document_counts_reply();
const Reply<ChunkInfo>& chunk_reply();
boost::json::object chunk_json(const ChunkInfo& chunk);
const Reply<BlockInfo>& stored_block_reply();
boost::json::object block_json(const BlockInfo& block);

/// BulkDeletion is what POST /v1/documents/delete did. The result must outlive it.
struct BulkDeletion {
  bool dry_run = false;
  const BulkDeleteResult& result;
  std::vector<std::pair<std::string, ItemError>> failed;  ///< by id, in the client's terms
};
const Reply<BulkDeletion>& bulk_deletion_reply();

}  // namespace quire
