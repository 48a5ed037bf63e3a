// Measures perplexity of a model over given token ids for each weight format, which shows the cost
// of rounding weights and their inputs.
//   quire_perplexity_bench --model PATH --ids FILE [--weights f32,bf16,w4] [--window 1024]
// FILE holds whitespace-separated token ids. Each window is read alone, after the first id of the
// file; the first half of a window is only context. KV is kept in f32, so that only the weights
// differ.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

struct Options {
  std::string model, ids, weights = "f32,bf16,w4";
  std::int64_t window = 1024;
};

[[noreturn]] void stop(const std::string& message) {
  std::fprintf(stderr, "quire_perplexity_bench: %s\n", message.c_str());
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 == argc) stop(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--model")
      o.model = value;
    else if (name == "--ids")
      o.ids = value;
    else if (name == "--weights")
      o.weights = value;
    else if (name == "--window")
      o.window = std::atoll(value.c_str());
    else
      stop("unknown option " + name);
  }
  if (o.model.empty() || o.ids.empty() || o.window < 2) {
    stop("usage: --model PATH --ids FILE [--weights f32,bf16,w4] [--window N >= 2]");
  }
  return o;
}

WeightFormat format_of(const std::string& name) {
  for (const WeightFormat f : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8,
                               WeightFormat::kW8A8, WeightFormat::kW4, WeightFormat::kW8}) {
    if (name == weight_format_name(f)) return f;
  }
  stop("unknown weight format " + name);
}

/// Returns the negative log-likelihood of `target` under one row of logits.
double loss(const float* logits, std::int64_t vocab, std::int32_t target) {
  const float largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (std::int64_t i = 0; i < vocab; ++i)
    sum += std::exp(static_cast<double>(logits[i] - largest));
  return std::log(sum) + largest - logits[target];
}

struct Loss {
  double sum = 0;
  std::int64_t tokens = 0;
};

Loss losses(Model& model, const std::vector<std::int32_t>& ids, std::int64_t window) {
  const ModelConfig& c = model.config();
  constexpr std::int64_t kRows = 128;  // rows of logits per pass
  std::vector<float> logits(static_cast<std::size_t>(kRows * c.vocab_size));
  ForwardWorkspace workspace;
  Loss out;
  for (std::int64_t first = 1; first + window <= static_cast<std::int64_t>(ids.size());
       first += window) {
    PagePool pool({c.num_kv_heads, c.head_dim, DType::kF32}, 0, model.compute().memory());
    WorkingCache cache(pool, c.num_layers);
    std::vector<std::int32_t> text{ids[0]};
    text.insert(text.end(), ids.begin() + first, ids.begin() + first + window);
    for (std::int64_t begin = 0; begin < window; begin += kRows) {
      const std::int64_t n = std::min(kRows, window - begin);
      std::vector<std::int32_t> positions(static_cast<std::size_t>(n)), rows;
      std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(begin));
      for (std::int64_t r = 0; r < n; ++r) {
        if (begin + r >= window / 2) rows.push_back(static_cast<std::int32_t>(r));
      }
      ForwardRequest request;
      request.token_ids = std::span(text).subspan(static_cast<std::size_t>(begin),
                                                  static_cast<std::size_t>(n));
      request.positions = positions;
      request.cache = &cache;
      request.logit_rows = rows;
      request.logits = logits.data();
      const Status s = forward(model, request, workspace);
      if (!s.ok()) stop(s.to_string());
      std::vector<double> each(rows.size());
      parallel_for(static_cast<std::int64_t>(rows.size()), 1, [&](std::int64_t b, std::int64_t e) {
        for (auto i = static_cast<std::size_t>(b); i < static_cast<std::size_t>(e); ++i) {
          each[i] = loss(logits.data() + static_cast<std::int64_t>(i) * c.vocab_size, c.vocab_size,
                         text[static_cast<std::size_t>(begin + rows[i] + 1)]);
        }
      });
      out.sum = std::accumulate(each.begin(), each.end(), out.sum);
      out.tokens += static_cast<std::int64_t>(rows.size());
    }
  }
  return out;
}

int run(const Options& o) {
  std::ifstream in(o.ids);
  std::vector<std::int32_t> ids;
  for (std::int32_t id; in >> id;) ids.push_back(id);
  if (static_cast<std::int64_t>(ids.size()) < o.window + 1)
    stop(o.ids + " holds fewer ids than a window");
  std::printf("{\"settings\": {\"window\": %ld, \"ids\": %zu, \"isa\": \"%s\"}, \"rows\": [\n",
              static_cast<long>(o.window), ids.size(), cpu_isa());
  for (std::size_t at = 0; at < o.weights.size();) {
    const std::size_t comma = std::min(o.weights.find(',', at), o.weights.size());
    const std::string name = o.weights.substr(at, comma - at);
    at = comma + 1;
    auto model = load_model(o.model, {.weights = format_of(name), .kv_dtype = DType::kF32});
    if (!model.ok()) stop(model.status().to_string());
    const Loss l = losses(**model, ids, o.window);
    const double nll = l.sum / static_cast<double>(l.tokens);
    std::printf(
        "{\"weights\": \"%s\", \"tokens\": %ld, \"nll\": %.5f, \"perplexity\": %.4f, "
        "\"decode_bytes\": %ld}%s\n",
        name.c_str(), static_cast<long>(l.tokens), nll, std::exp(nll),
        static_cast<long>((*model)->decode_weight_bytes()), at < o.weights.size() ? "," : "");
    std::fflush(stdout);
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::run(quire::parse(argc, argv)); }
