#include "server/commands/settings_flags.h"

#include <CLI/CLI.hpp>

#include "server/config/config.h"

namespace quire {
namespace {

/// Returns the settings with this key as flags: "--server.port".
std::string settings_called(std::string_view key) {
  std::string out;
  for (const Setting& s : setting_table()) {
    if (s.key == key) out.append(out.empty() ? "" : " or ").append("--").append(s.name());
  }
  return out;
}

}  // namespace

std::vector<std::string> settings_from_flags(const std::vector<std::string>& arguments) {
  std::vector<std::string> settings;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--") || argument.size() < 3) throw CLI::ExtrasError({argument});
    std::string setting = argument.substr(2);
    const std::string name = setting.substr(0, setting.find('='));
    if (name.find('.') == std::string::npos) {
      const std::string meant = settings_called(name);
      if (!meant.empty())
        throw CLI::ValidationError("--" + name,
                                   "there is no such flag; did you mean " + meant + "?");
    }
    const bool value_follows = i + 1 < arguments.size() && !arguments[i + 1].starts_with('-');
    if (setting.find('=') == std::string::npos && value_follows) setting += "=" + arguments[++i];
    settings.push_back(std::move(setting));
  }
  return settings;
}

}  // namespace quire
