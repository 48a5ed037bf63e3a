/// Settings of the service among a command's arguments.
#pragma once

#include <string>
#include <vector>

namespace quire {

/// "--section.key=value" and "--section.key value", as load_config() takes them
/// ("section.key=value"). `arguments` are those no option of the command took. Throws
/// CLI::ParseError for all else; for "--port" it says "--server.port".
std::vector<std::string> settings_from_flags(const std::vector<std::string>& arguments);

}  // namespace quire
