/// Holds the settings of `quire serve` to what they name, without starting the service.
#pragma once

#include "base/status.h"
#include "server/config/config.h"

namespace quire {

/// Reads or opens what the settings name: keys, certificates, tiers, texts, and the small files of
/// models. A model that is still to be fetched is left out. Errors name the setting.
Status check_settings(const Config& config);

}  // namespace quire
