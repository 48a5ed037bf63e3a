#include "bench/gpu/plan.h"

#include <cstdio>

namespace quire::cuda::bench {
namespace {

/// Seconds of a kernel's row: filling memory, warm-up, and samples of 10 ms (measure.cu).
constexpr double kKernelRowS = 0.4;
constexpr int kAttentionRows = 21, kOtherRows = 32, kCeilingRows = 4;

}  // namespace

std::vector<PlannedCase> planned_kernel_cases(bool quick) {
  const double row_s = quick ? kKernelRowS / 5 : kKernelRowS;
  return {
      {"ceilings", "copy, read, host to device, matrix products", 0, 0, kCeilingRows * row_s + 2},
      {"attention", "attention kernels", 0, 0, kAttentionRows * row_s},
      {"rows", "other kernels", 0, 0, kOtherRows * row_s}};
}

double planned_seconds(const PlannedCase& planned) {
  return planned.flops / kPlannedTflops / 1e12 + planned.bytes / kPlannedGbPerS / 1e9 +
         planned.host_s;
}

void print_plan(const std::vector<PlannedCase>& plan, double budget_s) {
  std::fprintf(stderr,
               "by arithmetic, taking %.0f TFLOP/s and %.0f GB/s, building not counted:\n%-12s "
               "%-60s %10s %10s %8s %8s\n",
               kPlannedTflops, kPlannedGbPerS, "section", "case", "PFLOP", "GB", "host s", "s");
  double sum = 0;
  for (const PlannedCase& p : plan) {
    sum += planned_seconds(p);
    std::fprintf(stderr, "%-12s %-60s %10.3f %10.1f %8.1f %8.1f\n", p.section.c_str(),
                 p.name.c_str(), p.flops / 1e15, p.bytes / 1e9, p.host_s, planned_seconds(p));
  }
  std::fprintf(stderr, "%-12s %-60s %10s %10s %8s %8.1f  of %.0f s\n", "all", "", "", "", "", sum,
               budget_s);
}

}  // namespace quire::cuda::bench
