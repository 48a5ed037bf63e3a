/// Zip archives of documents, read within limits: a small file may unpack to terabytes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// Returns the names of the entries without unpacking them. Errors: kInvalidArgument (no zip
/// archive), kResourceExhausted (more than 100,000 entries).
Result<std::vector<std::string>> zip_names(std::string_view bytes);

/// Unpacks the entries whose name `wanted` accepts. Errors: those of zip_names();
/// kFailedPrecondition (protected by a password), kResourceExhausted (the entries have more than
/// 256 MiB together, or one is more than 200 times its packed size and larger than 16 MiB).
Result<std::map<std::string, std::string>> unzip(std::string_view bytes,
                                                 bool (*wanted)(std::string_view name));

}  // namespace quire
