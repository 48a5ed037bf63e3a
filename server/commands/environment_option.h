/// This file lets an option of a command take its default from the environment.
#pragma once

#include <string>

namespace CLI {
class Option;
}

namespace quire {

/// Makes the value of an environment variable, unless it is not set or empty, the default of an
/// option that is bound to `value`, and says so in its help. The option on the command line
/// outranks it. CLI11's envname() does not do for subcommands that share a variable: it sets it for
/// those that were not called, too, and after the option that was given.
CLI::Option* default_from_environment(CLI::Option* option, std::string& value,
                                      const char* variable);

}  // namespace quire
