/// Filters over the metadata of documents, in JSON and in query parameters.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_reader.h"
#include "cachestore/format/metadata.h"

namespace quire {

/// Reads `member`, an object of conditions by key, which must all hold. A condition is a scalar
/// (equals), an array (one of them) or an object of `in`, `not`, `gt`, `gte`, `lt`, `lte` and
/// `exists`.
void read_metadata_filter(JsonReader& r, std::string_view member, MetadataFilter& out);

/// Reads one condition in text: `name` is a key, which may end with an operator in brackets, as in
/// `year[gte]`. `in` and `not` take several values between commas. Conditions on one key are
/// joined. The path of an error is `path`.
std::optional<JsonError> read_metadata_condition(std::string_view name, const std::string& value,
                                                 const std::string& path, MetadataFilter& out);

}  // namespace quire
