// Measures the speed of every strategy over 8,000 tokens of cached documents against a full
// prefill: time to first token, bytes read, KV attended to, and a breakdown of the time. The
// documents are in a warm DRAM tier or on a cold disk. With random weights of published shapes the
// choice of `samkv` is meaningless, but the number of its blocks is not. Prints {"settings",
// "rows"}.
//   quire_multi_context_bench [--quick] [--shape qwen|llama|tiny] [--documents N] [--tokens N]
//   [--rounds N] [--strategies LIST]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bench/cached_documents.h"
#include "fidelity/strategy_spec.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {

/// The published rows: all strategies, then samkv without selection, without bias, without
/// recomputation, and their combinations.
constexpr const char* kRows =
    "recompute,reuse,multi_infllm,cacheblend:recompute_ratio=0.15,epic:recompute_ratio=0.15,"
    "samkv:score=keys,recompute=overwrite,samkv:score=keys,samkv:select=off,recompute=none,"
    "samkv:select=off,samkv:bias=off,recompute=none,samkv:score=keys,recompute=none,"
    "samkv:bias=off,samkv:layer_mode=shared,samkv_words";

struct Options {
  std::string shapes = "qwen,llama", strategies = kRows;
  int documents = 5, tokens = 1600, question_tokens = 24, rounds = 3;
};

/// The measurements of one strategy on one tier.
struct Measured {
  std::vector<double> ttft_ms, cpu_ms;
  Answered last;
};

double span_ms(const Plan& plan, const char* name) {
  for (const Span& s : plan.spans) {
    if (s.name == name) return s.ms;
  }
  return 0;
}

/// Returns the bytes of the documents' KV: the part that the answer attends to, and all.
std::pair<double, double> kv_bytes(const Plan& plan, double bytes_per_token) {
  double kept = 0, all = 0;
  for (const PlannedContext& c : plan.contexts) {
    for (const PlannedBlock& b : c.blocks) {
      kept += bytes_per_token * b.num_tokens * b.kept_layers / plan.num_layers;
      all += bytes_per_token * b.num_tokens;
    }
  }
  return {kept, all};
}

class Bench {
 public:
  Bench(const Options& options, const ModelShape& shape)
      : options_(options),
        shape_(shape),
        folder_("quire-multi-context"),
        specs_(take(parse_strategy_list(options.strategies))),
        cached_({.shape = shape,
                 .tokenizer_dir = default_tokenizer_dir(),
                 .store_path = folder_.path() / "store"}),
        question_(random_ids(options.question_tokens, cached_.vocab_size(), 99)) {
    std::vector<TokenIds> documents;
    for (int i = 0; i < options.documents; ++i)
      documents.push_back(
          random_ids(options.tokens, cached_.vocab_size(), static_cast<std::uint32_t>(i) + 1));
    order_.resize(documents.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    const double ms = cached_.ingest(std::move(documents));
    std::fprintf(stderr, "%s: %d documents of %d tokens cached in %.1f s\n", shape.name,
                 options.documents, options.tokens, ms / 1000);
  }

  std::string run() {
    std::string rows;
    std::vector<Measured> dram(specs_.size());
    for (int round = -1; round < options_.rounds; ++round) measure(dram, round, false);
    const double whole_ms = median(dram.front().ttft_ms), whole_cpu = median(dram.front().cpu_ms);
    for (std::size_t i = 0; i < specs_.size(); ++i)
      rows += row(specs_[i].text, "dram", dram[i], whole_ms, whole_cpu);
    cached_.reopen_without_dram();
    std::vector<Measured> disk(specs_.size());
    for (int round = -1; round < options_.rounds; ++round) measure(disk, round, true);
    for (std::size_t i = 1; i < specs_.size(); ++i)
      rows += row(specs_[i].text, "disk", disk[i], whole_ms, whole_cpu);
    return rows;
  }

 private:
  /// Asks one question for each strategy, in turn. Round -1 warms up. A full prefill reads nothing
  /// and is asked once.
  void measure(std::vector<Measured>& out, int round, bool cold) {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const bool whole = specs_[i].strategy == "recompute";
      if (whole && (round != 0 || cold)) continue;
      if (round < 0 && specs_[i].strategy != "reuse" && specs_[i].text != "samkv:score=keys")
        continue;
      if (cold) cached_.drop_page_cache();
      const double started = cpu_ms();
      Answered a = cached_.ask(order_, question_, specs_[i].cache);
      const double used = cpu_ms() - started;
      if (round < 0) continue;
      out[i].ttft_ms.push_back(a.stats.ttft_ms);
      out[i].cpu_ms.push_back(used);
      out[i].last = std::move(a);
    }
  }

  std::string row(const std::string& name, const char* tier, const Measured& m, double whole_ms,
                  double whole_cpu) const {
    const QueryStats& s = m.last.stats;
    const double ttft = median(m.ttft_ms);
    const auto [kept, all] = kv_bytes(m.last.plan,
                                      static_cast<double>(cached_.info().kv_bytes_per_token));
    const auto read = static_cast<double>(m.last.bytes_read());
    const auto [least, most] = std::minmax_element(m.ttft_ms.begin(), m.ttft_ms.end());
    char text[1200];
    std::snprintf(text, sizeof text,
                  "{\"shape\": \"%s\", \"strategy\": \"%s\", \"tier\": \"%s\", \"ttft_ms\": %.1f, "
                  "\"min_ms\": %.1f, \"max_ms\": %.1f, \"of_recompute\": %.4f, "
                  "\"cpu_ms\": %.1f, \"cpu_of_recompute\": %.4f, \"sequence_ratio\": %.4f, "
                  "\"recompute_ratio\": %.4f, \"bytes_read\": %.0f, \"bytes_read_ratio\": %.4f, "
                  "\"sketch_bytes\": %lld, \"kv_bytes_attended\": %.0f, \"most_kv_bytes\": %lld, "
                  "\"selection_of_ttft\": %.4f, \"query_pass_ms\": %.1f, \"select_ms\": %.2f, "
                  "\"load_ms\": %.1f, "
                  "\"place_ms\": %.1f, \"recompute_ms\": %.1f, \"question_ms\": %.1f, "
                  "\"overlapped_ms\": %.1f}",
                  shape_.name, name.c_str(), tier, ttft, *least, *most, ttft / whole_ms,
                  median(m.cpu_ms), median(m.cpu_ms) / whole_cpu, m.last.plan.keep_ratio,
                  m.last.plan.recompute_ratio, read, all > 0 ? read / all : 0,
                  static_cast<long long>(s.sketch_bytes), kept,
                  static_cast<long long>(s.most_cache_bytes), s.select_ms / s.ttft_ms,
                  s.query_pass_ms, s.select_ms, s.load_ms, span_ms(m.last.plan, "place"),
                  s.recompute_ms, s.prefill_ms, s.overlapped_ms);
    std::fprintf(stderr, "%s\n", text);
    return std::string(text) + ",\n  ";
  }

  const Options options_;
  const ModelShape shape_;
  TempFolder folder_;
  std::vector<StrategySpec> specs_;
  CachedDocuments cached_;
  TokenIds question_;
  std::vector<std::size_t> order_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  using namespace quire::bench;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    int* number = arg == "--documents" ? &options.documents
                  : arg == "--tokens"  ? &options.tokens
                  : arg == "--rounds"  ? &options.rounds
                                       : nullptr;
    std::string* word = arg == "--shape"        ? &options.shapes
                        : arg == "--strategies" ? &options.strategies
                                                : nullptr;
    if (arg == "--quick") {
      options.shapes = "tiny";
      options.rounds = 1;
      continue;
    }
    if (value == nullptr || (number == nullptr && word == nullptr))
      return std::fprintf(stderr, "error: unknown option or missing value: %s\n", argv[i]), 2;
    if (number != nullptr)
      *number = std::clamp(std::atoi(value), 1, 16000);
    else
      *word = value;
    ++i;
  }
  if (!options.strategies.starts_with("recompute"))
    options.strategies = "recompute," + options.strategies;
  std::string rows;
  for (const quire::bench::ModelShape& shape : shapes_named(options.shapes))
    rows += Bench(options, shape).run();
  rows.erase(rows.rfind(','));
  std::printf(
      "{\"settings\": {\"weights\": \"random bf16\", \"kv_dtype\": \"f16\", \"documents\": %d, "
      "\"tokens_per_document\": %d, \"question_tokens\": %d, \"rounds\": %d, "
      "\"threads\": %d}, \"rows\": [\n  %s\n]}\n",
      options.documents, options.tokens, options.question_tokens, options.rounds,
      static_cast<int>(quire::num_threads()), rows.c_str());
  return 0;
}
