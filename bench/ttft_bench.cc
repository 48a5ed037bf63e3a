// Measures the time to first token of a question over cached documents: `reuse` from DRAM and from
// a cold disk against `recompute`. It also measures the cost of ingest over a bare prefill. Random
// weights of a published shape; the engine runs as in the service. Prints {"settings", "rows"}.
//   quire_ttft_bench [--quick] [--documents N] [--tokens N] [--rounds N] [--model-dir DIR with
//   tokenizer]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "bench/cached_documents.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "kernels/attention/attention.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {

struct Options {
  bool quick = false;
  int documents = 10, tokens = 400, question_tokens = 24, rounds = 0;
  std::string tokenizer_dir = default_tokenizer_dir();
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        shape_(options.quick ? kQwen05B : kLlama1B),
        folder_("quire-ttft"),
        cached_({.shape = shape_,
                 .tokenizer_dir = options.tokenizer_dir,
                 .store_path = folder_.path() / "store",
                 .max_positions = 8192}),
        question_(static_cast<std::size_t>(options.question_tokens)),
        order_(static_cast<std::size_t>(options.documents)) {
    std::iota(question_.begin(), question_.end(), 10);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  std::string run() {
    measure_ingest();
    const int rounds = options_.rounds ? options_.rounds : options_.quick ? 3 : 5;
    std::vector<double> recompute, dram, disk;
    query("reuse");  // touches every page once before measuring
    for (int i = 0; i < rounds; ++i) {
      recompute.push_back(query("recompute"));
      dram.push_back(query("reuse"));
      if (last_.plan.fates.reused == 0) check(Status::internal("reuse found nothing cached"));
    }
    const double whole = median(recompute);
    row("recompute", recompute, whole);
    row("reuse, DRAM", dram, whole);
    cached_.reopen_without_dram();
    query("reuse");
    for (int i = 0; i < rounds; ++i) {
      cached_.drop_page_cache();
      disk.push_back(query("reuse"));
      if (last_.stats.tier_blocks[static_cast<int>(Tier::kDisk)] == 0)
        check(Status::internal("nothing came from disk"));
    }
    row("reuse, cold disk", disk, whole);
    return "{\"settings\": {\"shape\": \"" + std::string(shape_.name) +
           "\", \"weights\": \"random bf16\", \"kv_dtype\": \"f16\", \"documents\": " +
           std::to_string(options_.documents) +
           ", \"tokens_per_document\": " + std::to_string(options_.tokens) +
           ", \"question_tokens\": " + std::to_string(options_.question_tokens) +
           ", \"threads\": " + std::to_string(num_threads()) + "}, \"rows\": [" + rows_ + "]}";
  }

 private:
  /// Measures the bare forward passes over the same documents against Engine::prefill with capture,
  /// sketch and store.
  /// and store.
  void measure_ingest() {
    std::vector<TokenIds> documents;
    for (int i = 0; i < options_.documents; ++i)
      documents.push_back(
          random_ids(options_.tokens, cached_.vocab_size(), static_cast<std::uint32_t>(i) + 7));
    const int bare_rounds = options_.quick ? 1 : 2;
    std::vector<double> bare;
    auto model = cached_.make_model();
    for (int round = 0; round < bare_rounds + 1; ++round) {
      const auto start = Clock::now();
      for (const auto& d : documents) bare_prefill(*model, d);
      if (round > 0) bare.push_back(ms_since(start));
    }
    model.reset();
    const double ingest_ms = cached_.ingest(std::move(documents)), bare_ms = median(bare);
    rows_ += "{\"name\": \"ingest over bare prefill\", \"bare_ms\": " + std::to_string(bare_ms) +
             ", \"ingest_ms\": " + std::to_string(ingest_ms) +
             ", \"ratio\": " + std::to_string(ingest_ms / bare_ms) + ", \"tokens_per_second\": " +
             std::to_string(1000.0 * options_.documents * options_.tokens / ingest_ms) + "}";
  }
  void bare_prefill(Model& model, const TokenIds& tokens) {
    const ModelConfig& config = cached_.config();
    PagePool pool(
        {config.num_kv_heads, config.head_dim, cached_kv_dtype(DType::kF16, config.head_dim)}, 0);
    WorkingCache cache(pool, config.num_layers);
    TokenIds ids{1};
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    std::vector<std::int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    for (std::size_t first = 0; first < ids.size(); first += 512) {
      const std::size_t n = std::min<std::size_t>(512, ids.size() - first);
      ForwardRequest request{};
      request.token_ids = std::span(ids).subspan(first, n);
      request.positions = std::span(positions).subspan(first, n);
      request.cache = &cache;
      check(forward(model, request, workspace_));
    }
  }

  double query(const std::string& strategy) {
    CacheOptions cache;
    cache.strategy = strategy;
    last_ = cached_.ask(order_, question_, cache);
    return last_.stats.ttft_ms;
  }

  void row(const std::string& name, const std::vector<double>& ms, double recompute_ms) {
    const auto tier = [&](Tier t) {
      return std::to_string(last_.stats.tier_bytes[static_cast<int>(t)]);
    };
    const auto [least, most] = std::minmax_element(ms.begin(), ms.end());
    rows_ += ", {\"name\": \"" + name + "\", \"ttft_ms\": " + std::to_string(median(ms)) +
             ", \"min_ms\": " + std::to_string(*least) + ", \"max_ms\": " + std::to_string(*most) +
             ", \"speedup_over_recompute\": " + std::to_string(recompute_ms / median(ms)) +
             ", \"load_ms\": " + std::to_string(last_.stats.load_ms) +
             ", \"prefill_ms\": " + std::to_string(last_.stats.prefill_ms) +
             ", \"dram_bytes\": " + tier(Tier::kDram) + ", \"disk_bytes\": " + tier(Tier::kDisk) +
             "}";
  }

  const Options options_;
  const ModelShape shape_;
  TempFolder folder_;
  CachedDocuments cached_;
  TokenIds question_;
  std::vector<std::size_t> order_;
  std::string rows_;
  ForwardWorkspace workspace_;
  Answered last_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const auto number = [&] { return i + 1 < argc ? std::atoi(argv[++i]) : 0; };
    if (!std::strcmp(argv[i], "--quick"))
      options.quick = true;
    else if (!std::strcmp(argv[i], "--documents"))
      options.documents = number();
    else if (!std::strcmp(argv[i], "--tokens"))
      options.tokens = number();
    else if (!std::strcmp(argv[i], "--rounds"))
      options.rounds = number();
    else if (!std::strcmp(argv[i], "--model-dir") && i + 1 < argc)
      options.tokenizer_dir = argv[++i];
    else
      return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
  }
  std::printf("%s\n", quire::bench::Bench(options).run().c_str());
  return 0;
}
