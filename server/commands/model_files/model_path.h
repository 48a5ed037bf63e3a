/// Finds the folders of the model and of the files that go with it.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

/// How find_model_path() treats the name of a model on a hub.
enum class FromHub : unsigned char {
  kFetch,  ///< returns its local path and fetches it if needed (model_fetch.h)
  kName    ///< checks the name only and returns it
};

/// Returns `asked` if it is not empty, else QUIRE_MODEL_DIR, else the embedded model. Either name
/// may be a Hugging Face folder, a .gguf file, or hf:org/repo[@revision][:file].
///
/// The embedded model is models/demo relative to the binary (a build folder or an installation),
/// else it is unpacked from the binary (embedded_model.h). Errors: kNotFound naming the places
/// searched; those of fetch_model().
Result<std::string> find_model_path(const std::string& asked, FromHub from_hub = FromHub::kFetch);

/// Returns the folder of a model that goes with another: `asked`, or where that is empty `part`
/// within `model_path` if it exists. Empty: there is none, or `asked` is "none".
std::string find_model_part(const std::string& asked, const std::string& model_path,
                            const std::string& part);

/// Makes files that this process creates from now on readable by its user only: texts are in them.
/// Call it before there are other threads.
void keep_files_private();

/// Prints "quire: message" on standard error; returns the exit code 1.
int complain(const Status& status);
int complain(const std::string& message);

}  // namespace quire
