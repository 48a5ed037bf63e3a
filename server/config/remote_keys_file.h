/// Reads the file that names the encryption key of each namespace (remote.keys_file).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/remote/remote_keys.h"

namespace quire {

/// Returns the value of an environment variable; none: it is not set.
using ReadVariable = std::function<std::optional<std::string>(const std::string& name)>;

/// Parses a TOML text with a table for each namespace, or "*" for all others: `file` names a file
/// with the key, `variable` an environment variable. The keys are read at once. Errors:
/// kInvalidArgument (field "remote.keys_file") with `file_name` and the entry; no message shows a
/// key.
Result<RemoteKeys> parse_remote_keys(std::string_view text, const std::string& file_name,
                                     const ReadVariable& variable);
/// Reads the file; an empty path gives null. Errors: also kInvalidArgument for a file that cannot
/// be read.
Result<std::shared_ptr<const RemoteKeys>> load_remote_keys(const std::string& path);

}  // namespace quire
