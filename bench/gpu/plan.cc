#include "bench/gpu/plan.h"

#include <cstdio>
#include <cstdlib>

#include "bench/model_shapes.h"

namespace quire::cuda::bench {
namespace {

/// Rate, in bytes per second, of making random weights of a model, hashing them on the host and
/// copying them to the device.
constexpr double kWeightsPerS = 0.6e9;
/// Seconds of a kernel's row: filling memory, warm-up, and samples of 10 ms (measure.cu).
constexpr double kKernelRowS = 0.4;
constexpr int kAttentionRows = 11, kOtherRows = 22, kCeilingRows = 4;

double weight_bytes(const ModelConfig& c) {
  const double h = c.hidden_size, q = static_cast<double>(c.num_heads) * c.head_dim,
               kv = static_cast<double>(c.num_kv_heads) * c.head_dim;
  return 2 * (c.num_layers * (h * (q + 2 * kv) + q * h + 3 * h * c.intermediate_size) +
              h * static_cast<double>(c.vocab_size));
}

double kv_bytes(const ModelConfig& c) {
  return 2.0 * 2 * c.num_layers * static_cast<double>(c.num_kv_heads) * c.head_dim;
}

}  // namespace

EngineCases engine_cases(bool quick) {
  const auto config = parse_model_config(
      (quick ? quire::bench::kLlama1B : quire::bench::kLlama8B).config);
  if (!config.ok()) {
    std::fprintf(stderr, "error: %s\n", config.status().to_string().c_str());
    std::exit(1);
  }
  if (quick) return {*config, {2048}, {{1, 1024}, {32, 1024}}, 2, 4096, 4, 512, 3, 16, 3};
  return {*config, {8192, 32768}, {{1, 1024}, {32, 8192}}, 4, 32768, 32, 1024, 4, 48, 6};
}

double prefill_flops(const ModelConfig& config, std::int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  const double h = config.hidden_size, q = static_cast<double>(config.num_heads) * config.head_dim,
               kv = static_cast<double>(config.num_kv_heads) * config.head_dim;
  const double weights = h * (q + 2 * kv) + q * h + 3 * h * config.intermediate_size;
  return config.num_layers * (2 * n * weights + 4 * n * (n + 1) / 2 * q);
}

std::vector<PlannedCase> planned_cases(bool quick, bool kernels_only) {
  const double row_s = quick ? kKernelRowS / 5 : kKernelRowS;
  std::vector<PlannedCase> plan = {
      {"ceilings", "copy, read, host to device, matrix products", 0, 0, kCeilingRows * row_s + 2},
      {"attention", "attention kernels", 0, 0, kAttentionRows * row_s},
      {"rows", "other kernels", 0, 0, kOtherRows * row_s}};
  if (kernels_only) return plan;
  const EngineCases cases = engine_cases(quick);
  const ModelConfig& c = cases.config;
  const double weights = weight_bytes(c), weights_s = weights / kWeightsPerS;
  plan.push_back({"prefill", "random weights", 0, 0, weights_s});
  for (const std::int64_t n : cases.prefills)
    plan.push_back(
        {"prefill",
         std::to_string(n) + " tokens, " + std::to_string(cases.prefill_rounds) + " times",
         cases.prefill_rounds * prefill_flops(c, n), 0, 0});
  plan.push_back({"decode", "random weights", 0, 0, weights_s});
  for (const auto& [sequences, context] : cases.decodes) {
    const auto s = static_cast<double>(sequences);
    plan.push_back({"decode",
                    std::to_string(sequences) + " sequences of " + std::to_string(context) +
                        " tokens, filled, " + std::to_string(cases.decode_steps) + " steps",
                    s * prefill_flops(c, context),
                    cases.decode_steps * (weights + s * static_cast<double>(context) * kv_bytes(c)),
                    0});
  }
  const auto retrieving = static_cast<double>(cases.retrieve_sequences),
             rows = retrieving * static_cast<double>(cases.retrieve_tokens) * kv_bytes(c);
  plan.push_back({"decode",
                  std::to_string(cases.retrieve_sequences) + " sequences of " +
                      std::to_string(cases.retrieve_tokens) +
                      " tokens, filled, dense and in place, " + std::to_string(cases.decode_steps) +
                      " steps each",
                  retrieving * prefill_flops(c, cases.retrieve_tokens),
                  cases.decode_steps * (2 * weights + rows), 0});
  // New pages of a step are a part of the budget and cross a bus of 25 GB/s. The rows leave the
  // device once.
  plan.push_back({"decode", "the same with all KV in the host's memory, freekv and arkvale", 0,
                  2 * cases.decode_steps * weights,
                  rows / 25e9 + 2 * cases.decode_steps * retrieving * 2048 * kv_bytes(c) / 25e9});
  const std::int64_t prompt = cases.documents * cases.document_tokens;
  const auto documents = static_cast<double>(cases.documents),
             cached = static_cast<double>(prompt) * kv_bytes(c);
  plan.push_back({"questions", "random weights", 0, 0, weights_s});
  // Statistics of a context are a product of queries and keys in f32, assumed at a twentieth of the
  // rate of matrix units.
  const double statistics = 20 * documents * c.num_layers * static_cast<double>(c.num_heads) *
                            c.head_dim * static_cast<double>(cases.document_tokens) *
                            static_cast<double>(cases.document_tokens);
  plan.push_back({"questions",
                  std::to_string(cases.documents) + " documents of " +
                      std::to_string(cases.document_tokens) + " tokens ingested",
                  documents * prefill_flops(c, cases.document_tokens) + statistics, 0,
                  4 * cached / 1e9});
  plan.push_back({"questions", "recompute, " + std::to_string(cases.question_rounds) + " times",
                  cases.question_rounds * prefill_flops(c, prompt), 0, 0});
  plan.push_back({"questions",
                  "cacheblend and samkv, " + std::to_string(cases.question_rounds) + " times each",
                  0.4 * cases.question_rounds * prefill_flops(c, prompt), 0,
                  2 * cases.question_rounds * cached / 5e9});
  return plan;
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
