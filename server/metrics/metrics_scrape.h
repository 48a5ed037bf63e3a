/// The part of a scrape that other parts of the service keep: tiers, documents, jobs, the process.
/// Inside server only.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/metrics/metrics.h"

namespace quire {

/// Gauges and counters read from the snapshot and the process.
std::vector<prometheus::MetricFamily> snapshot_families(const MetricsSnapshot& snapshot);

/// Those of `families` that vLLM has under another name, under that name: boards made for it work
/// here. Each series also names the model.
std::vector<prometheus::MetricFamily> vllm_families(
    const std::vector<prometheus::MetricFamily>& families, const MetricsSnapshot& snapshot);

}  // namespace quire
