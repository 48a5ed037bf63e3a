/// What the GPU benchmark measures and its least times, by arithmetic. Plain C++ that uses no
/// device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire::cuda::bench {

/// One line of the plan, with its least work.
struct PlannedCase {
  std::string section, name;
  double flops = 0, bytes = 0;  ///< on the device
  double host_s = 0;            ///< assumed seconds on the host and on the bus
};
/// Returns the cases of the kernels, and those of the engine (none without it).
std::vector<PlannedCase> planned_kernel_cases(bool quick);
std::vector<PlannedCase> planned_engine_cases(bool quick);

/// The assumed rates of a device. They are not measured and are well below those of an H100.
inline constexpr double kPlannedTflops = 300, kPlannedGbPerS = 1500;
double planned_seconds(const PlannedCase& planned);
/// Prints the plan and its sum to stderr.
void print_plan(const std::vector<PlannedCase>& plan, double budget_s);

}  // namespace quire::cuda::bench
