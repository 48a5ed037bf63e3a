/// What the GPU benchmark measures, and how long it must take at the least, by arithmetic. Plain
/// C++; touches no device.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/config.h"

namespace quire::cuda::bench {

/// The engine's cases.
struct EngineCases {
  ModelConfig config;
  std::vector<std::int64_t> prefills;                          ///< tokens
  std::vector<std::pair<std::int64_t, std::int64_t>> decodes;  ///< sequences, and tokens of each
  /// That decode over a part of their rows, all KV in the host's memory
  std::int64_t retrieve_sequences = 0, retrieve_tokens = 0;
  std::int64_t documents = 0, document_tokens = 0;
  int prefill_rounds = 0, decode_steps = 0, question_rounds = 0;
};
/// Llama-3.1-8B's shape; quick: Llama-3.2-1B's, and shorter contexts.
EngineCases engine_cases(bool quick);

/// Products of every layer, and attention to what each token sees.
double prefill_flops(const ModelConfig& config, std::int64_t tokens);

/// One line of the plan: what it cannot do without.
struct PlannedCase {
  std::string section, name;
  double flops = 0, bytes = 0;  ///< on the device
  double host_s = 0;            ///< taken to pass on the host and between
};
std::vector<PlannedCase> planned_cases(bool quick, bool kernels_only);

/// What the plan takes a device to reach: assumptions, no measurements, well below an H100.
inline constexpr double kPlannedTflops = 300, kPlannedGbPerS = 1500;
double planned_seconds(const PlannedCase& planned);
/// To stderr, with the sum.
void print_plan(const std::vector<PlannedCase>& plan, double budget_s);

}  // namespace quire::cuda::bench
