/// Identifies the subject of a fidelity run, so that it resumes only from matching rows.
#pragma once

#include <string>

#include "engine/engine.h"
#include "fidelity/report.h"
#include "server/config/config.h"

namespace quire {

/// Returns the first line of a state file (fidelity/state_file.h): the suite, settings, and the
/// model, its draft and its retrieval head by their files' contents. The questions and strategies
/// may change between runs, because each row names its own.
std::string fidelity_identity(const ReportContext& context, const EngineInfo& info,
                              const Config& config);

/// Returns what else a row depends on in its last bits: the commit and the instruction set.
std::string fidelity_build(const ReportContext& context);

}  // namespace quire
