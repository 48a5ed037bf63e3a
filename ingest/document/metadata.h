/// Metadata of documents: a JSON object stored as compact text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// Returns the compact text of the object in `json` ("{}" for an empty string). Errors:
/// kInvalidArgument (field "metadata"): not JSON, not an object, nested deeper than 32, longer than
/// max_bytes.
Result<std::string> normalize_metadata(std::string_view json, std::size_t max_bytes);

/// Returns `patch` merged into `base` (RFC 7396: null removes a key). Errors: those above.
Result<std::string> merge_metadata(std::string_view base, std::string_view patch,
                                   std::size_t max_bytes);

}  // namespace quire
