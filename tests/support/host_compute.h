/// host_compute() is the Compute of tests that need no model.
#pragma once

#include "engine/compute/compute.h"

namespace quire::testing {

inline Compute& host_compute() {
  static const std::shared_ptr<Compute> compute = make_cpu_compute();
  return *compute;
}

}  // namespace quire::testing
