/// Reads TOML files that have a table for each namespace.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/config/toml.h"

namespace quire {

/// Reads one namespace's table. `place` names file and namespace for messages.
using ReadNamespace = std::function<Status(const std::string& name, const std::string& place,
                                           const toml::table& table)>;

/// Calls `read` for each table of the text, which are named by namespaces or "*". Errors: those of
/// `read`; kInvalidArgument with `field`, whose message names the file and what is wrong.
Status read_namespace_tables(std::string_view text, const std::string& file_name,
                             std::string_view field, const ReadNamespace& read);

/// Returns the text of such a file. Errors: kInvalidArgument with `field`.
Result<std::string> read_config_file(const std::string& path, std::string_view field);

}  // namespace quire
