// Measures prefill and decode speed of the engine's forward pass on random weights of published
// shapes. The ceilings are oneDNN's bf16 product at the same number of rows, and memory read
// bandwidth. Prints {"settings": ..., "rows": [...]}.
//   quire_engine_bench [--quick] [--tokens N] [--decode N] [--threads N] [--model NAME]
//                      [--weights bf16|int8|w4]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "bench/machine_rates.h"
#include "bench/model_shapes.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {

constexpr ModelShape kShapes[] = {kQwen05B, kLlama1B};

struct Options {
  bool quick = false;
  std::int64_t tokens = 512, decode = 24;
};

using Samples = std::vector<double>;
double percentile(Samples values, std::size_t percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, values.size() * percent / 100)];
}

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  std::exit(1);
}

/// Returns the multiplications and additions of a prefill of n tokens with one row of logits. In
/// the last layer only that row goes past the projections.
double prefill_flops(const ModelConfig& c, std::int64_t n) {
  const double h = c.hidden_size, d = c.head_dim, q = c.num_heads * d, kv = c.num_kv_heads * d,
               f = c.intermediate_size;
  const double projections = 2 * h * (q + 2 * kv), rest = 2 * (q * h + 3 * h * f);
  const double rows = static_cast<double>(n), full = static_cast<double>(c.num_layers - 1);
  const double attention = 4 * q * rows * (rows + 1) / 2;
  return full * (rows * (projections + rest) + attention) + rows * projections + rest +
         4 * q * rows + 2 * h * c.vocab_size;
}

class Bench {
 public:
  Bench(const ModelShape& shape, WeightFormat format, const Options& options)
      : shape_(shape),
        options_(options),
        onednn_(options.tokens, 4096, 4096, 4),
        reader_(std::int64_t{1} << 30) {
    auto config = parse_model_config(shape.config);
    check(config.status());
    auto model = make_random_model(
        *config, {.weights = format, .kv_dtype = DType::kF16, .max_positions = 4096}, 1);
    check(model.status());
    model_ = std::move(*model);
  }

  std::string run() {
    const ModelConfig& c = model_->config();
    PagePool pool({c.num_kv_heads, c.head_dim, cached_kv_dtype(DType::kF16, c.head_dim)}, 0);
    WorkingCache cache(pool, c.num_layers);
    logits_.resize(static_cast<std::size_t>(c.vocab_size));
    const int rounds = options_.quick ? 3 : 9;
    Samples prefill, decode, product, reading, prefill_ratio, decode_ratio;
    for (int r = -1; r < rounds; ++r) {
      cache.truncate_all(0);
      // Engine and ceiling take turns, and each round has its own ratio, because other work on the
      // machine disturbs both alike.
      const double product_rate = onednn_.measure(), seconds = pass(cache, options_.tokens);
      const double flops = prefill_flops(c, options_.tokens) / seconds;
      Samples steps;
      const double read_rate = reader_.measure();
      for (std::int64_t i = 0; i < options_.decode; ++i) steps.push_back(pass(cache, 1));
      if (r < 0) continue;
      prefill.push_back(seconds);
      decode.insert(decode.end(), steps.begin(), steps.end());
      product.push_back((product_rate + onednn_.measure()) / 2);
      reading.push_back((read_rate + reader_.measure()) / 2);
      if (product.back() > 0) prefill_ratio.push_back(flops / product.back());
      decode_ratio.push_back(decode_bytes() / percentile(steps, 50) / reading.back());
    }
    return row(prefill, decode, product, reading, prefill_ratio, decode_ratio);
  }

 private:
  double pass(WorkingCache& cache, std::int64_t tokens) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens)), positions(ids.size());
    for (auto& id : ids)
      id = static_cast<std::int32_t>(
               (seed_ = seed_ * 6364136223846793005u + 1442695040888963407u) >> 40) %
           model_->config().vocab_size;
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(cache.num_rows(0)));
    const std::int32_t last = static_cast<std::int32_t>(tokens - 1);
    ForwardRequest request;
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.logit_rows = {&last, 1};
    request.logits = logits_.data();
    const double start = now_seconds();
    check(forward(*model_, request, workspace_));
    return now_seconds() - start;
  }

  /// Returns the bytes that one decode step must read: weights, and the KV of half the decoded
  /// context.
  double decode_bytes() const {
    const ModelConfig& c = model_->config();
    const double context = static_cast<double>(options_.tokens) +
                           static_cast<double>(options_.decode) / 2;
    return static_cast<double>(model_->decode_weight_bytes()) +
           context * c.num_layers * static_cast<double>(c.kv_bytes_per_token_layer(DType::kF16));
  }

  std::string row(const Samples& prefill, const Samples& decode, const Samples& product,
                  const Samples& reading, const Samples& prefill_ratio,
                  const Samples& decode_ratio) const {
    const double prefill_s = percentile(prefill, 50), step_s = percentile(decode, 50);
    char text[1200];
    std::snprintf(
        text, sizeof text,
        "{\"model\": \"%s\", \"weights\": \"%s\", \"parameters\": %ld, \"prefill_tokens\": %ld, "
        "\"prefill_tokens_per_s\": %.1f, "
        "\"prefill_ms_median\": %.1f, \"prefill_ms_p99\": %.1f, \"prefill_gflops\": %.0f, "
        "\"onednn_bf16_gflops\": %.0f, "
        "\"prefill_of_onednn\": %.3f, \"decode_tokens_per_s\": %.2f, \"decode_ms_median\": %.2f, "
        "\"decode_ms_p99\": %.2f, "
        "\"decode_bytes\": %.0f, \"decode_gb_per_s\": %.2f, \"read_gb_per_s\": %.2f, "
        "\"decode_of_bandwidth\": %.3f}",
        shape_.name, std::string(weight_format_name(model_->options().weights)).c_str(),
        static_cast<long>(model_->config().num_parameters()), static_cast<long>(options_.tokens),
        static_cast<double>(options_.tokens) / prefill_s, prefill_s * 1e3,
        percentile(prefill, 99) * 1e3,
        prefill_flops(model_->config(), options_.tokens) / prefill_s / 1e9,
        percentile(product, 50) / 1e9, percentile(prefill_ratio, 50), 1 / step_s, step_s * 1e3,
        percentile(decode, 99) * 1e3, decode_bytes(), decode_bytes() / step_s / 1e9,
        percentile(reading, 50) / 1e9, percentile(decode_ratio, 50));
    return text;
  }

  const ModelShape& shape_;
  const Options options_;
  const OneDnnRate onednn_;
  const ReadRate reader_;
  std::unique_ptr<Model> model_;
  ForwardWorkspace workspace_;
  std::vector<float> logits_;
  std::uint64_t seed_ = 1;
};

int run(const Options& options, const char* only, const char* only_weights) {
  std::string rows;
  for (const ModelShape& shape : kShapes) {
    if (only && std::strcmp(only, shape.name) != 0) continue;
    for (WeightFormat format : {WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kW4}) {
      if (only_weights && weight_format_name(format) != only_weights) continue;
      std::fprintf(stderr, "%s, %s weights\n", shape.name,
                   std::string(weight_format_name(format)).c_str());
      rows += (rows.empty() ? "\n  " : ",\n  ") + Bench(shape, format, options).run();
    }
  }
  std::printf(
      "{\"settings\": {\"threads\": %d, \"isa\": \"%s\", \"clock\": \"%s\", \"kv_dtype\": \"f16\", "
      "\"decode_steps\": %ld, \"quick\": %s,\n"
      " \"note\": \"random weights; ceilings and engine measured in turn, medians of rounds\"},\n "
      "\"rows\": [%s\n]}\n",
      num_threads(), cpu_isa(), uses_cpu_time() ? "cpu time" : "wall time",
      static_cast<long>(options.decode), options.quick ? "true" : "false", rows.c_str());
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  const char *only = nullptr, *only_weights = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (arg == "--quick") {
      options.quick = true;
      options.decode = 8;
    } else if (value && (arg == "--tokens" || arg == "--decode")) {
      (arg == "--tokens" ? options.tokens : options.decode) = std::clamp(std::atol(value), 1l,
                                                                         2000l);
      ++i;
    } else if (value && arg == "--threads") {
      quire::set_num_threads(std::atoi(value));
      ++i;
    } else if (value && arg == "--model") {
      only = value;
      ++i;
    } else if (value && arg == "--weights") {
      only_weights = value;
      ++i;
    } else {
      std::fprintf(stderr,
                   "usage: quire_engine_bench [--quick] [--tokens N] [--decode N] [--threads N] "
                   "[--model NAME] [--weights bf16|int8|w4]\n");
      return 2;
    }
  }
  return quire::bench::run(options, only, only_weights);
}
