/// Where the model and other files of the product lie.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

/// What to do with a model of the hub that is asked for.
enum class FromHub : unsigned char {
  kFetch,  ///< its path on this machine, fetched if need be (model_fetch.h)
  kName    ///< only check its name, and give it back
};

/// `asked` if not empty, else QUIRE_MODEL_DIR, else the embedded model: ../../models/demo from the
/// build folder, or
/// ../share/quire/models/demo from an installed binary, or as it is unpacked from the binary itself
/// (embedded_model.h). The first two may be a Hugging Face folder, a .gguf file, or
/// hf:org/repo[@revision][:file]. Errors: kNotFound naming where was looked; those of
/// fetch_model().
Result<std::string> find_model_path(const std::string& asked, FromHub from_hub = FromHub::kFetch);

/// The folder of a model that goes with another: `asked`, or where that is empty `part` within
/// `model_path`, if it is there. Empty: none; so is "none".
std::string find_model_part(const std::string& asked, const std::string& model_path,
                            const std::string& part);

/// "quire: message" on standard error; returns the exit code 1.
int complain(const Status& status);
int complain(const std::string& message);

}  // namespace quire
