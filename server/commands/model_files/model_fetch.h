/// Fetches models from a hub for the command line.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace quire {

/// Returns the path of the model "hf:org/repo[@revision][:file]". It fetches the model if it is
/// missing, with a progress bar (or lines) on standard error. With `update` the hub is queried even
/// if the model is present. Errors: those of hub::get_model().
Result<std::string> fetch_model(const std::string& name, bool update);

}  // namespace quire
