/// Models of a hub, for the command line.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace quire {

/// The path of the model "hf:org/repo[@revision][:file]", fetched if it is not there yet, with a
/// bar (or lines) on standard error. With `update` the hub is asked also where the model is there.
/// Errors: as hub::get_model().
Result<std::string> fetch_model(const std::string& name, bool update);

}  // namespace quire
