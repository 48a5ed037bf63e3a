/// One row of the GPU benchmark's result.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace quire::cuda::bench {

/// One measurement. The least work that applies is set and the rest is 0; all are 0 where no
/// ceiling is compared with.
struct Row {
  std::string name, shape;
  double bytes = 0, flops = 0;  ///< least bytes to move and operations to compute
  double median_us = 0, fastest_us = 0, p90_us = 0;
  std::vector<std::pair<std::string, double>> more = {};  ///< more figures by name
  double host_bytes = 0;                                  ///< bytes that must come from host memory
  double gb_per_s() const { return bytes / median_us / 1e3; }
  double tflop_per_s() const { return flops / median_us / 1e6; }
};

}  // namespace quire::cuda::bench
