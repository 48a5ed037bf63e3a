/// Where the model and other files of the product lie.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace quire {

/// `asked` if not empty, else QUIRE_MODEL_DIR, else the embedded model: ../../models/demo from the build folder, or
/// ../share/quire/models/demo from an installed binary. Errors: kNotFound naming where was looked.
Result<std::string> find_model_path(const std::string& asked);

/// "quire: message" on standard error; returns the exit code 1.
int complain(const Status& status);
int complain(const std::string& message);

}  // namespace quire
