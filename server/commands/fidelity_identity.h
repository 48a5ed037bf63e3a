/// What measured rows belong to.
#pragma once

#include <string>

#include "engine/engine.h"
#include "fidelity/report.h"
#include "server/config/config.h"

namespace quire {

/// One line, the first of a state file (fidelity/state_file.h): the model, its draft and its
/// retrieval head by what their files hold, the suite, settings, and the build. Which questions and
/// strategies are asked may change: each row names its own.
std::string fidelity_identity(const ReportContext& context, const EngineInfo& info,
                              const Config& config);

}  // namespace quire
