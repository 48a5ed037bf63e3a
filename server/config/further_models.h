/// Settings of the models that a service has besides its own (model.further).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "server/config/config.h"

namespace quire {

struct FurtherSettings {
  std::string source;  ///< the entry of model.further, for messages
  Config config;       ///< the service's, with what this model has of its own
};

/// Reads what `config` names in model.further. A model has its own model.path, name, aliases,
/// prompt_format, draft and retrieval head; what its file says of other settings comes before the
/// service's. Errors: kInvalidArgument naming the setting, the fault and the file (an entry without
/// a name, a name or alias twice, a setting that belongs to the service), kIo, kNotFound.
Result<std::vector<FurtherSettings>> read_further_models(const Config& config);

}  // namespace quire
