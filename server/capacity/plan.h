/// What `quire plan-capacity` answers: a fleet of several sizes over one trace, and the smallest
/// one that is quick enough.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/capacity/fleet.h"

namespace quire::capacity {

struct PlanOptions {
  FleetOptions fleet;  ///< replicas and samples are set for each row
  std::vector<std::uint32_t> replicas{1};
  std::optional<double> target_ttft_p95;                ///< in seconds
  std::uint64_t memory_bytes = std::uint64_t{2} << 30;  ///< what the simulation may take
  std::optional<double> sample;  ///< share of contexts; none: what fits into that memory
};

struct PlanRow {
  std::uint32_t replicas = 1;
  double sample = 1, sample_remote = 1;
  FleetResult result;
};

struct CapacityPlan {
  std::vector<PlanRow> rows;  ///< by number of replicas
  /// The smallest number of replicas whose TTFT reaches the target; none: no target was given, or
  /// none of the rows reaches it. Its row is among them.
  std::optional<std::uint32_t> smallest;
};

/// Simulates each number of replicas. With a target, it then halves the distance between the first
/// that reaches it and the one before, which takes TTFT not to rise with replicas. `on_row` is
/// called before each simulation. Errors: those of simulate_fleet().
Result<CapacityPlan> make_plan(const Trace& trace, const Rates& rates, const PlanOptions& options,
                               const std::function<void(std::uint32_t replicas)>& on_row = {});

/// Returns two tables for a person.
std::string plan_text(const CapacityPlan& plan, const PlanOptions& options);
/// Returns the same numbers: bytes, seconds, shares from 0 to 1.
boost::json::object plan_json(const CapacityPlan& plan, const PlanOptions& options);

}  // namespace quire::capacity
