/// The metrics of a scrape that other components keep: tiers, documents, jobs, the process.
/// Internal to server.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/metrics/metrics.h"

namespace quire {

/// Returns gauges and counters read from the snapshot and the process.
std::vector<prometheus::MetricFamily> snapshot_families(const MetricsSnapshot& snapshot);

/// Returns those of `families` that vLLM exports, under vLLM's names, so that dashboards for vLLM
/// work. Each series also has a label for the model.
std::vector<prometheus::MetricFamily> vllm_families(
    const std::vector<prometheus::MetricFamily>& families, const MetricsSnapshot& snapshot);

}  // namespace quire
