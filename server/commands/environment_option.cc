#include "server/commands/environment_option.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace quire {

CLI::Option* default_from_environment(CLI::Option* option, std::string& value,
                                      const char* variable) {
  if (const char* given = std::getenv(variable); given != nullptr && *given != '\0') value = given;
  return option->description(option->get_description() + " (environment: " + variable + ")");
}

}  // namespace quire
