/// What OpenAI's files and vector stores share. Both are views of documents: a file is a document,
/// and a vector store is a name that metadata of documents hold.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ingest/document/document_types.h"
#include "server/json/vector_store_codec.h"
#include "server/service/call.h"

namespace quire {

/// Returns the name of a file: `filename` of the metadata, else the title, else the id.
std::string file_name(const boost::json::object& metadata, const std::string& title,
                      const std::string& id);
/// Returns whether the call's namespace has all of these vector stores; else fails the call, naming
/// the first one that it lacks. It may wait on disk.
bool has_vector_stores(Call& call, const std::vector<std::string>& ids);
/// Returns a document as OpenAI's file object.
boost::json::object file_json(const DocumentInfo& document);

/// Fails the call for an error of the record of vector stores.
void fail_store(Call& call, const Status& status, const std::string& id);
/// Returns the vector store of the path; none: the call was failed. (disk)
std::optional<VectorStore> store_of_path(Call& call);
/// Returns a document as OpenAI's file of a vector store. (disk)
boost::json::object file_of_store_json(const Services& services, const DocumentInfo& document,
                                       const std::string& store_id);

}  // namespace quire
