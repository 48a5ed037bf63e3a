// The benchmark of the kernels alone, which is built before the engine is.
#include "bench/gpu/engine_cases.h"
#include "bench/gpu/plan.h"

namespace quire::cuda::bench {

std::vector<Section> engine_sections(const EngineCaseOptions&) { return {}; }
std::vector<PlannedCase> planned_engine_cases(bool) { return {}; }

}  // namespace quire::cuda::bench
