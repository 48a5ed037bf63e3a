/// What a service holds of files that were ingested before.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/commands/client.h"

namespace quire {

struct StoredFile {
  std::string id;
  std::string source, root, hash;  ///< of its metadata; empty: it has none
  std::size_t documents = 1;       ///< of the file
  bool ready = false;
};

/// Returns the documents whose metadata says that they came from `root`. Errors: those of the call.
Result<std::vector<StoredFile>> stored_under(const ClientFlags& flags,
                                             const std::filesystem::path& root);
/// Returns the document; none: there is none with this id. Errors: those of the call.
Result<std::optional<StoredFile>> stored_document(const ClientFlags& flags, const std::string& id);

}  // namespace quire
