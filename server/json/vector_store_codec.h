/// Reads the bodies of OpenAI's files and vector stores, and the record of a namespace's vector
/// stores.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "cachestore/format/metadata.h"
#include "server/json/document_request.h"

namespace quire {

/// The member of a document's metadata that holds the ids of its vector stores, an array of texts.
inline constexpr std::string_view kVectorStoresMember = "vector_stores";

/// A vector store: a name for the documents whose metadata hold its id.
struct VectorStore {
  std::string id, name, description;
  boost::json::object metadata;
  std::int64_t created_ms = 0;
  std::vector<std::string> batches;  ///< ids of its file batches, oldest first
};

/// Returns the record of a namespace's vector stores in order of creation:
/// {"version":2,"stores":[{"id","name","description","metadata","created_ms","batches"}]}.
std::string vector_stores_text(const std::vector<VectorStore>& stores);
/// Reads the record. Errors: kCorruption.
Result<std::vector<VectorStore>> read_vector_stores(std::string_view text);

/// Reads the form of POST /v1/files into a batch of one document named `id`, whose metadata hold
/// file name and purpose.
std::optional<JsonError> read_file_form(std::string_view body, const std::string& boundary,
                                        const std::string& id, DocumentBatch& out);

/// OpenAI's `static` chunking: sizes in tokens.
struct StaticChunking {
  std::int32_t max_tokens = 800, overlap_tokens = 400;
  friend bool operator==(const StaticChunking&, const StaticChunking&) = default;
};
/// Reads `chunking_strategy`. `auto` leaves `out` empty: a file stays as it was cut.
void read_chunking(JsonReader& r, std::optional<StaticChunking>& out);
/// Returns whether files may be uploaded with this purpose.
bool is_file_purpose(std::string_view purpose);
/// Reads `attributes`: up to 16 texts, numbers or truth values.
void read_attributes(JsonReader& r, boost::json::object& out);

/// What the body of a new or changed vector store sets.
struct VectorStoreBody {
  std::optional<std::string> name, description;
  std::optional<boost::json::object> metadata;
  std::vector<std::string> file_ids;       ///< of a new one
  std::optional<StaticChunking> chunking;  ///< of those files
};
enum class VectorStoreChange : std::uint8_t { kCreate, kModify };
std::optional<JsonError> read_vector_store(const boost::json::value& body, VectorStoreChange change,
                                           VectorStoreBody& out);

/// What the body of an attached file, or of one whose attributes change, sets.
struct VectorStoreFileBody {
  std::string file_id;             ///< of a file to attach
  boost::json::object attributes;  ///< become members of the document's metadata
  std::optional<StaticChunking> chunking;
};
std::optional<JsonError> read_vector_store_file(const boost::json::value& body,
                                                VectorStoreChange change, VectorStoreFileBody& out);

struct VectorStoreSearch {
  std::vector<std::string> queries;
  std::int64_t most = 10;
  MetadataFilter filter;
  double score_threshold = 0;
};
std::optional<JsonError> read_vector_store_search(const boost::json::value& body,
                                                  VectorStoreSearch& out);
/// Reads a member that holds OpenAI's comparison or compound filter, and appends its conditions.
void read_openai_filter(JsonReader& r, std::string_view member, MetadataFilter& out);

/// Returns the attributes of a document: its metadata without what files keep there themselves,
/// and without members that are no text, number or truth value.
boost::json::object file_attributes(const boost::json::object& metadata);

}  // namespace quire
