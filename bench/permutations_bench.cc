// Measures whether questions over new subsets and orders of the same documents stay fast and the
// store stays small. Each question goes to `samkv` over documents cached once, and to a peer. The
// peer is the engine as a server that caches prefixes only: a full prefill over texts, which reuses
// beginnings of earlier prompts. Its prefix cache has as much memory as the cached documents take.
// Random weights. Prints {"settings", "rows"}.
//   quire_permutations_bench [--quick] [--shape tiny|qwen|llama] [--documents N] [--queries N]
//   [--subset N] [--strategy NAME]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cached_documents.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {

constexpr std::size_t kEnd = 20;  ///< queries at either end that are compared
constexpr int kShortest = 400, kLongest = 1000;

struct Options {
  std::string shape = "tiny", strategy = "samkv";
  int documents = 14, queries = 300, subset = 4, question_tokens = 24;
};

/// One strategy's queries, in order. cpu_ms is processor time of this process; on a busy machine
/// only it is comparable between beginning and end.
struct Series {
  std::string name;
  std::vector<double> ttft_ms, cpu_ms;  ///< per 1000 tokens of prompt
  std::vector<double> cached;           ///< share of the prompt's tokens that were not computed
  std::vector<std::uint64_t> store_bytes, segments;

  void add(const Answered& a, double cpu, const StoreStats& store) {
    const double thousands = static_cast<double>(a.plan.prompt_tokens) / 1000;
    ttft_ms.push_back(a.stats.ttft_ms / thousands);
    cpu_ms.push_back(cpu / thousands);
    cached.push_back(static_cast<double>(a.plan.fates.cached()) / 1000 / thousands);
    store_bytes.push_back(store.segment_bytes + store.catalog_bytes);
    segments.push_back(store.segments);
  }
};

template <class T>
std::vector<T> first(const std::vector<T>& v) {
  return {v.begin(), v.begin() + static_cast<std::ptrdiff_t>(std::min(kEnd, v.size()))};
}
template <class T>
std::vector<T> last(const std::vector<T>& v) {
  return {v.end() - static_cast<std::ptrdiff_t>(std::min(kEnd, v.size())), v.end()};
}
double mean(const std::vector<double>& v) {
  return v.empty() ? 0 : std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}

std::string row(const Series& s, const Series& recompute) {
  const double begin = median(first(s.cpu_ms)), end = median(last(s.cpu_ms)),
               whole = median(recompute.cpu_ms);
  char text[900];
  std::snprintf(text, sizeof text,
                "{\"name\": \"%s\", \"queries\": %zu, \"ttft_ms_per_1000_first_20\": %.2f, "
                "\"ttft_ms_per_1000_last_20\": %.2f, \"cpu_ms_per_1000_first_20\": %.2f, "
                "\"cpu_ms_per_1000_last_20\": %.2f, \"cpu_last_over_first\": %.3f, "
                "\"cpu_of_recompute_first_20\": %.3f, \"cpu_of_recompute_last_20\": %.3f, "
                "\"cached_share_first_20\": %.4f, \"cached_share_last_20\": %.4f, "
                "\"store_bytes_first\": %llu, \"store_bytes_last\": %llu, "
                "\"segments_first\": %llu, \"segments_last\": %llu}",
                s.name.c_str(), s.ttft_ms.size(), median(first(s.ttft_ms)), median(last(s.ttft_ms)),
                begin, end, end / begin, begin / whole, end / whole, mean(first(s.cached)),
                mean(last(s.cached)), static_cast<unsigned long long>(s.store_bytes.front()),
                static_cast<unsigned long long>(s.store_bytes.back()),
                static_cast<unsigned long long>(s.segments.front()),
                static_cast<unsigned long long>(s.segments.back()));
  return text;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        shape_(shapes_named(options.shape).front()),
        folder_("quire-permutations") {
    DocumentsOptions documents{.shape = shape_,
                               .tokenizer_dir = default_tokenizer_dir(),
                               .store_path = folder_.path() / "store"};
    // Choose lengths first, because the peer's memory depends on them.
    std::uniform_int_distribution<int> length(kShortest, kLongest);
    std::vector<int> lengths(static_cast<std::size_t>(options.documents));
    for (int& n : lengths) n = length(random_);
    document_tokens_ = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    const ModelConfig config = take(parse_model_config(shape_.config));
    peer_bytes_ = document_tokens_ * std::int64_t{2} * config.num_layers * config.num_kv_heads *
                  config.head_dim * 2;
    documents.prefix_cache_bytes = peer_bytes_;
    cached_ = std::make_unique<CachedDocuments>(documents);
    std::vector<TokenIds> texts;
    for (const int n : lengths)
      texts.push_back(
          random_ids(n, cached_->vocab_size(), static_cast<std::uint32_t>(texts.size()) + 1));
    cached_->ingest(std::move(texts));
  }

  std::string run() {
    CacheOptions ours, sharing, recompute;
    ours.strategy = options_.strategy;
    // Nothing is cached, so this is a full prefill. A strategy requested by name shares nothing.
    sharing.strategy = "auto";
    recompute.strategy = "recompute";
    Series cached{.name = options_.strategy + " over cached documents"},
        prefixes{.name = "prefix cache only (full prefill over texts)"}, whole{.name = "recompute"};
    const int every = std::max(1, options_.queries / 20);
    // Touch every page once before measuring.
    (void)cached_->ask(draw(), question(0), ours);
    for (int q = 1; q <= options_.queries; ++q) {
      const auto chosen = draw();
      const TokenIds asked = question(q);
      const auto measure = [&](Series& series, const CacheOptions& options,
                               CachedDocuments::From from) {
        const double started = cpu_ms();
        const Answered a = cached_->ask(chosen, asked, options, from);
        series.add(a, cpu_ms() - started, cached_->store().stats());
      };
      measure(cached, ours, CachedDocuments::From::kStore);
      measure(prefixes, sharing, CachedDocuments::From::kText);
      if (q % every == 0) {
        measure(whole, recompute, CachedDocuments::From::kStore);
        std::fprintf(stderr, "%d of %d: %.1f and %.1f ms for 1000 tokens, recompute %.1f ms\n", q,
                     options_.queries, cached.ttft_ms.back(), prefixes.ttft_ms.back(),
                     whole.ttft_ms.back());
      }
    }
    char settings[700];
    std::snprintf(settings, sizeof settings,
                  "{\"shape\": \"%s\", \"weights\": \"random\", \"documents\": %d, "
                  "\"document_tokens\": \"%d to %d, %lld in all\", \"documents_per_query\": %d, "
                  "\"question_tokens\": %d, \"prefix_cache_bytes\": %lld, \"threads\": %d}",
                  shape_.name, options_.documents, kShortest, kLongest,
                  static_cast<long long>(document_tokens_), options_.subset,
                  options_.question_tokens, static_cast<long long>(peer_bytes_),
                  static_cast<int>(num_threads()));
    return "{\"settings\": " + std::string(settings) + ", \"rows\": [\n  " + row(cached, whole) +
           ",\n  " + row(prefixes, whole) + ",\n  " + row(whole, whole) + "\n]}";
  }

 private:
  /// Returns a random subset in a random order.
  std::vector<std::size_t> draw() {
    std::vector<std::size_t> order(cached_->size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    order.resize(std::min(order.size(), static_cast<std::size_t>(options_.subset)));
    return order;
  }
  TokenIds question(int number) const {
    return random_ids(options_.question_tokens, cached_->vocab_size(),
                      1000 + static_cast<std::uint32_t>(number));
  }

  const Options options_;
  const ModelShape shape_;
  TempFolder folder_;
  std::mt19937 random_{7};
  std::int64_t document_tokens_ = 0, peer_bytes_ = 0;
  std::unique_ptr<CachedDocuments> cached_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    int* number = arg == "--documents" ? &options.documents
                  : arg == "--queries" ? &options.queries
                  : arg == "--subset"  ? &options.subset
                                       : nullptr;
    std::string* word = arg == "--shape"      ? &options.shape
                        : arg == "--strategy" ? &options.strategy
                                              : nullptr;
    if (arg == "--quick") {
      options.queries = 40;
      continue;
    }
    if (value == nullptr || (number == nullptr && word == nullptr))
      return std::fprintf(stderr, "error: unknown option or missing value: %s\n", argv[i]), 2;
    if (number != nullptr)
      *number = std::clamp(std::atoi(value), 1, 10000);
    else
      *word = value;
    ++i;
  }
  std::printf("%s\n", quire::bench::Bench(options).run().c_str());
  return 0;
}
