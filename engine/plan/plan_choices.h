/// This file decides what a request leaves to the service: its strategy and what a decode step
/// attends to.
#pragma once

#include "engine/api/speed_meter.h"
#include "engine/plan/plan_builder.h"

namespace quire {

/// Enters the strategy and its plugs into a plan whose contexts have been described. `auto` is
/// resolved by predicted times and certificates, and the plan says why; what the strategy does not
/// take is noted as a fallback. Errors: those of find_strategy() and of the retrievers.
Status pick_strategy(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds,
                     QueryPlan& query_plan);

}  // namespace quire
