/// One row of the GPU benchmark's result.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace quire::cuda::bench {

/// One thing measured. Of bytes and flops, what bounds it is set, the other is 0; both are 0 where no ceiling is compared with.
struct Row {
  std::string name, shape;
  double bytes = 0, flops = 0;  ///< that it must move, or compute
  double median_us = 0, fastest_us = 0, p90_us = 0;
  std::vector<std::pair<std::string, double>> more = {};  ///< further figures by name
  double gb_per_s() const { return bytes / median_us / 1e3; }
  double tflop_per_s() const { return flops / median_us / 1e6; }
};

}  // namespace quire::cuda::bench
