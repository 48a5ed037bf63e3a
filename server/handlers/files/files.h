/// What OpenAI's files and vector stores share. Both are views of documents: a file is a document,
/// and a vector store is a name that metadata of documents hold.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "ingest/document/document_types.h"

namespace quire {

/// Returns the name of a file: `filename` of the metadata, else the title, else the id.
std::string file_name(const boost::json::object& metadata, const std::string& title,
                      const std::string& id);
/// Returns a document as OpenAI's file object.
boost::json::object file_json(const DocumentInfo& document);

}  // namespace quire
