#include "bench/gpu/engine_plan.h"

#include <cstdio>
#include <cstdlib>

#include "bench/gpu/plan.h"
#include "bench/model_shapes.h"

namespace quire::cuda::bench {
namespace {

/// Rate, in bytes per second, of making weights of a model on the host and copying them to the
/// device.
constexpr double kWeightsPerS = 2e9;

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
  if (quick)
    return {*config, {2048}, {{1, 1024}, {32, 1024}}, 2, 4096, 4,
            512,     16384,  std::int64_t{7} << 29,   3, 40,   16,
            3};
  // More steps than a chunk of attention has keys, so that each sequence crosses a border.
  return {*config, {8192, 32768}, {{1, 1024}, {32, 8192}, {8, 8192}, {64, 4096}},
          4,       32768,         32,
          1024,    98304,         std::int64_t{24} << 30,
          3,       300,           48,
          4};
}

double prefill_flops(const ModelConfig& config, std::int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  const double h = config.hidden_size, q = static_cast<double>(config.num_heads) * config.head_dim,
               kv = static_cast<double>(config.num_kv_heads) * config.head_dim;
  const double weights = h * (q + 2 * kv) + q * h + 3 * h * config.intermediate_size;
  return config.num_layers * (2 * n * weights + 4 * n * (n + 1) / 2 * q);
}

std::vector<PlannedCase> planned_engine_cases(bool quick) {
  std::vector<PlannedCase> plan;
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
  plan.push_back({"retrieve", "random weights", 0, 0, weights_s});
  plan.push_back({"retrieve",
                  std::to_string(cases.retrieve_sequences) + " sequences of " +
                      std::to_string(cases.retrieve_tokens) +
                      " tokens, filled 3 times, dense and in place by freekv (keys, bounds) and "
                      "specontext, " +
                      std::to_string(cases.retrieve_steps) + " steps each",
                  3 * retrieving * prefill_flops(c, cases.retrieve_tokens),
                  cases.retrieve_steps * (4 * weights + rows), 0});
  // New rows of a step are a part of the budget and cross a bus of 25 GB/s. The rows leave the
  // device for freekv and those that follow it, for specontext and for ctkvr, whose index reads
  // keys at 1 GB/s.
  plan.push_back({"retrieve",
                  "the same with all KV in the host's memory: freekv (speculative and blocking "
                  "recall, bounds), arkvale, specontext, ctkvr",
                  0, 6 * cases.retrieve_steps * weights,
                  3 * rows / 25e9 + rows / 2e9 +
                      5 * cases.retrieve_steps * retrieving * 2048 * kv_bytes(c) / 25e9});
  const auto offloaded = static_cast<double>(cases.offload_tokens);
  plan.push_back({"offload", "random weights", 0, 0, weights_s});
  plan.push_back({"offload",
                  "1 sequence of " + std::to_string(cases.offload_tokens) +
                      " tokens, filled 3 "
                      "times, dense, ctkvr and freekv on a device of " +
                      std::to_string(cases.offload_device_bytes >> 30) + " GiB",
                  3 * prefill_flops(c, cases.offload_tokens), 0,
                  (3 + cases.retrieve_steps) * offloaded * kv_bytes(c) / 50e9});
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
  const double product = 2.0 * c.hidden_size * 2 * c.intermediate_size;
  plan.push_back({"team", "a product of 1 and 512 rows, on one device and on two",
                  4 * 230 * 512 * product, 230 * product, product / kWeightsPerS});
  return plan;
}

}  // namespace quire::cuda::bench
