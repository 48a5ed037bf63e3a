/// The cases of the GPU benchmark and their least times, by arithmetic. Plain C++ that uses no
/// device.
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
  /// Sequences that decode over a part of their rows, with all KV in host memory, and their tokens.
  std::int64_t retrieve_sequences = 0, retrieve_tokens = 0;
  std::int64_t documents = 0, document_tokens = 0;
  int prefill_rounds = 0, decode_steps = 0, question_rounds = 0;
};
/// Returns cases of Llama-3.1-8B's shape; quick: Llama-3.2-1B's, and shorter contexts.
EngineCases engine_cases(bool quick);

/// Counts the products of every layer, and attention to the tokens that each token sees.
double prefill_flops(const ModelConfig& config, std::int64_t tokens);

/// One line of the plan, with its least work.
struct PlannedCase {
  std::string section, name;
  double flops = 0, bytes = 0;  ///< on the device
  double host_s = 0;            ///< assumed seconds on the host and on the bus
};
std::vector<PlannedCase> planned_cases(bool quick, bool kernels_only);

/// The assumed rates of a device. They are not measured and are well below those of an H100.
inline constexpr double kPlannedTflops = 300, kPlannedGbPerS = 1500;
double planned_seconds(const PlannedCase& planned);
/// Prints the plan and its sum to stderr.
void print_plan(const std::vector<PlannedCase>& plan, double budget_s);

}  // namespace quire::cuda::bench
