/// Extracts settings of the service from a command's arguments.
#pragma once

#include <string>
#include <vector>

namespace quire {

/// Turns "--section.key=value" and "--section.key value" into the form of load_config(),
/// "section.key=value". `arguments` are those that no option of the command took. Throws
/// CLI::ParseError for anything else; for "--port" the message suggests "--server.port".
std::vector<std::string> settings_from_flags(const std::vector<std::string>& arguments);

}  // namespace quire
