/// Lists folders of a store without exceptions where a disk fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

/// Returns the paths of all that lies in a folder, in no order; nothing where there is no such
/// folder. Errors: kIo (some of it may be missing).
Result<std::vector<std::filesystem::path>> files_in(const std::string& folder);

/// Returns the number in the name of a file of RocksDB; 0: it has none.
std::uint64_t file_number(const std::filesystem::path& file);

/// Returns the logs of a record's folder by their numbers. Errors: kIo.
Result<std::map<std::uint64_t, std::filesystem::path>> logs_in(const std::string& folder);

}  // namespace quire
