/// Files as documents of the service: bodies of POST /v1/documents, and what they came from.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "readers/reader_process.h"
#include "server/commands/files/file_walk.h"

namespace quire {

/// One document of a file, as the service takes it.
struct FileDocument {
  boost::json::object body;  ///< id (where the file gives one), title, text, metadata
  bool markdown = false;     ///< cut at headings
  bool own_id = false;       ///< the file says its id, which may replace any document
};

struct FileContent {
  std::vector<FileDocument> documents;
  std::vector<std::string> warnings;
};

/// Members of the metadata by which a later run knows the document again.
inline constexpr const char* kSourceKey = "source";  ///< path below the root
/// The same where a line of .jsonl says something else by `source`.
inline constexpr const char* kSourceFileKey = "source_file";
inline constexpr const char* kSourceRootKey = "source_root";  ///< absolute path of the folder
/// Of the bytes and the settings; of a file with several documents "HASH+N", N their number.
inline constexpr const char* kSourceHashKey = "source_hash";

/// Reads a file in a child process and makes its documents; .jsonl holds documents as they are, one
/// a line, and is read here: one that is wrong refuses the file, and the error tells the first ten.
/// `hash` goes into the metadata. Errors begin with the file's path.
Result<FileContent> read_documents_of(const ReaderProcess& reader, const FoundFile& file,
                                      const std::string& encoding, const std::string& hash);
/// The same for bytes that came without a file; file.path says how messages call them.
Result<FileContent> read_documents_of(const ReaderProcess& reader, std::string_view bytes,
                                      const FoundFile& file, const std::string& encoding);

/// Errors: kResourceExhausted (no reader takes a file of this size).
Status check_size(const FoundFile& file);
/// Returns a digest of the file's bytes and of `settings`, which change what is made of them.
/// Errors: kNotFound, kIo.
Result<std::string> hash_of_file(const FoundFile& file, const std::string& settings);

}  // namespace quire
