// Measures the time of a decode step against the length of the context, for dense decoding and
// every retriever. It uses random weights of the 1B shape over a cache of random rows. Each
// retriever decodes over the same cache, once with every layer on the device and once with none if
// it distinguishes them. Prints {"settings": ..., "rows": [...]}.
//   quire_decode_bench [--quick] [--contexts N,N,...] [--steps N] [--budget N] [--batch N] [--hold
//   N] [--ablations] [--weights bf16|int8] [--retrievers NAME,NAME,...] [--options KEY=VALUE,...]
//   [--threads N]
// --options go to the retrievers that have them. They show the effect of one part of a method
// (decode_tau=1.1: no speculation; decode_updates=off, decode_rerank=off ...).
// --ablations: FreeKV, CTkvr and SpeContext, whole and without one of their parts each (`without`).
// Also the cost of a recall of pages from either layout of the host's pages (`decode` is recall).
// --hold: number of consecutive steps with the same token. With a new random token in each step, a
// retrieval head chooses almost everything anew. --batch: number of sequences that decode together,
// each over its own rows.
// cpu_ms: mean processor time of a step. retrieval_ms: mean wall time per step for choosing rows
// and copying them, over the batch. retrieval_share: its share of the wall time of steps. of_dense
// compares with `dense` of the same run; `ceiling_ms` is the time at the speed of memory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "bench/decode_variants.h"
#include "bench/machine_rates.h"
#include "bench/model_shapes.h"
#include "bench/recall_layouts.h"
#include "engine/answer/decode_batch.h"
#include "engine/residency/device_pool.h"
#include "engine/residency/transfer_streams.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/retriever.h"
#include "kernels/attention/attention.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {

struct Options {
  std::vector<std::int64_t> contexts = {8192, 16384, 32768, 65536};
  std::vector<std::string> retrievers;                    ///< empty: all of them
  std::map<std::string, std::string, std::less<>> given;  ///< options of retrievers
  std::int64_t steps = 32, budget = 2048, batch = 1, hold = 1;
  WeightFormat weights = WeightFormat::kBF16;
  bool quick = false, ablations = false;
};

/// One sequence: the rows of its context, and its tokens as the retrieval head sees them.
struct Sequence {
  Sequence(PagePool& pool, std::int32_t num_layers, const RetrievalHead& head)
      : cache(pool, num_layers), track(head, HeadInput::kFeature) {}
  WorkingCache cache;
  HeadTrack track;
};

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  std::exit(1);
}

/// Returns the CPU time of all threads of the process.
double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

double percentile(std::vector<double> values, std::size_t percent) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, values.size() * percent / 100)];
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    auto config = parse_model_config(kLlama1B.config);
    check(config.status());
    auto model = make_random_model(*config,
                                   {.weights = options.weights,
                                    .kv_dtype = DType::kF16,
                                    .max_positions = options.contexts.back() + 1024},
                                   1);
    check(model.status());
    model_ = std::move(*model);
    RetrievalHeadConfig shape;
    shape.hidden_size = config->hidden_size;
    shape.num_heads = config->num_heads;
    shape.num_kv_heads = config->num_kv_heads;
    shape.head_dim = config->head_dim;
    auto head = RetrievalHead::random(shape, *model_, 2);
    check(head.status());
    head_ = std::move(*head);
  }

  std::string run() {
    const ModelConfig& c = model_->config();
    read_bytes_per_ms_ = ReadRate(std::int64_t{512} << 20).measure() / 1e3;
    PagePool pool({c.num_kv_heads, c.head_dim, cached_kv_dtype(DType::kF16, c.head_dim)}, 0);
    for (std::int64_t i = 0; i < options_.batch; ++i)
      sequences_.push_back(std::make_unique<Sequence>(pool, c.num_layers, *head_));
    std::string rows;
    for (const std::int64_t context : options_.contexts) {
      std::fprintf(stderr, "%ld tokens\n", static_cast<long>(context));
      for (const auto& sequence : sequences_) fill(sequence->cache, sequence->track, context);
      double dense_ms = 0;
      for (const Variant& variant :
           options_.ablations ? ablations(options_.retrievers) : variants(options_.retrievers)) {
        const std::string row = measure(variant, context, dense_ms);
        std::fprintf(stderr, "%s\n", row.c_str());
        rows += (rows.empty() ? "\n  " : ",\n  ") + row;
      }
      if (options_.ablations &&
          (options_.retrievers.empty() ||
           std::ranges::find(options_.retrievers, "freekv") != options_.retrievers.end())) {
        rows += ",\n  " + recall_layouts({.context = context,
                                          .num_kv_heads = c.num_kv_heads,
                                          .head_dim = c.head_dim,
                                          .num_layers = c.num_layers},
                                         kLlama1B.name);
      }
    }
    sequences_.clear();
    return rows;
  }

 private:
  /// Adds random rows up to the context's length, rotated to their positions.
  void fill(WorkingCache& cache, HeadTrack& track, std::int64_t context) {
    const ModelConfig& c = model_->config();
    constexpr std::int64_t kRows = 512;
    const std::int64_t values = 2 * c.num_kv_heads * c.head_dim;
    std::vector<float> raw(static_cast<std::size_t>(kRows * values));
    for (std::int64_t at = cache.num_rows(0); at < context; at += kRows) {
      const auto n = static_cast<std::size_t>(std::min(kRows, context - at));
      std::vector<std::int32_t> positions(n), ids(n);
      std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(at));
      for (auto& id : ids)
        id = static_cast<std::int32_t>(next() % static_cast<std::uint64_t>(c.vocab_size));
      for (std::int32_t layer = 0; layer < c.num_layers; ++layer) {
        for (float& x : raw)
          x = static_cast<float>(static_cast<std::int16_t>(next() >> 48)) / 16384.0f;
        check(cache.add_rows(layer, positions).status());
        const std::int64_t row_bytes = c.head_dim * std::int64_t{sizeof(float)},
                           head_bytes = 2 * static_cast<std::int64_t>(n) * row_bytes;
        check(cache.place(layer, model_->rope(),
                          {raw.data(), static_cast<std::int64_t>(n), DType::kF32, head_bytes,
                           head_bytes / 2, row_bytes},
                          at));
      }
      check(track.add_embedded(ids, positions));
    }
  }

  std::unique_ptr<Retriever> prepare(const Variant& variant, Sequence& sequence,
                                     std::int64_t context, DevicePool& device,
                                     TransferStreams* lane) {
    const ModelConfig& c = model_->config();
    std::map<std::string, std::string, std::less<>> given;
    if (variant.name != "dense" && variant.name != "magicpig")
      given["decode_budget"] = std::to_string(options_.budget);
    if (!variant.resident.empty()) given["decode_resident"] = variant.resident;
    const auto table = retrievers().options(variant.name);
    for (const auto& [key, value] : options_.given) {
      if (std::ranges::any_of(table, [&](const PlugOption& o) { return o.name == key; }))
        given[key] = value;
    }
    for (const auto& [key, value] : variant.options) given[key] = value;
    const PlugOptions options(given);
    check(check_options(options, std::vector<std::span<const PlugOption>>{table}));
    auto retriever = std::move(*retrievers().make(variant.name, options));
    const ContextRows whole{0, context};
    SequenceContext all;
    AssembledPrompt assembled;
    all.cache = &sequence.cache;
    all.compute = &model_->compute();
    assembled.contexts = std::span(&whole, 1);
    all.device = &device;
    all.transfers = lane;
    all.device_requests = static_cast<std::int32_t>(options_.batch);
    all.head = head_.get();
    assembled.head_track = &sequence.track;
    assembled.num_tokens = context;
    all.num_layers = c.num_layers;
    all.num_heads = c.num_heads;
    all.num_kv_heads = c.num_kv_heads;
    all.head_dim = c.head_dim;
    const auto* watcher = capability<PromptWatcher>(*retriever);
    const auto queries = prompt_queries(
        watcher != nullptr ? watcher->queries_wanted(context) : WantedQueries{}, context);
    assembled.queries = queries.get();
    const double start = now_seconds();
    check(prepare_whole(*retriever, all, assembled));
    prepare_ms_ += (now_seconds() - start) * 1e3;
    return retriever;
  }

  /// Returns the time to read the least bytes of a step: the weights once, and the rows that each
  /// sequence attends to.
  double ceiling_ms(const Variant& variant, std::int64_t context) const {
    const ModelConfig& c = model_->config();
    const std::int64_t row_bytes = std::int64_t{2} * 2 * c.num_kv_heads * c.head_dim * c.num_layers;
    const std::int64_t rows = variant.name == "dense" ? context
                                                      : std::min(options_.budget, context);
    return static_cast<double>(model_->decode_weight_bytes() + options_.batch * rows * row_bytes) /
           read_bytes_per_ms_;
  }

  /// Returns the bytes of the pool; 0: no limit. Layers that are evicted keep their budget, and one
  /// layer's worth is for the rows used for choosing.
  std::int64_t device_bytes(const Variant& variant, std::int64_t context) const {
    if (variant.device_layers == 0) return 0;
    const ModelConfig& c = model_->config();
    const std::int64_t rows = (c.num_layers - variant.device_layers) * options_.budget +
                              (variant.device_layers + 1) * (context + options_.steps + 64);
    return options_.batch * rows * 2 * 2 * c.num_kv_heads * c.head_dim;
  }

  std::string measure(const Variant& variant, std::int64_t context, double& dense_ms) {
    DevicePool device(device_bytes(variant, context));
    TransferStreams lane({}, variant.streams);
    prepare_ms_ = 0;
    std::vector<std::unique_ptr<Retriever>> made;
    for (const auto& sequence : sequences_)
      made.push_back(
          prepare(variant, *sequence, context, device, variant.streams > 0 ? &lane : nullptr));
    DecodeBatch batch(*model_);
    std::vector<double> times;
    // Retrievers report wall time, whatever now_seconds() counts.
    double wall_ms = 0;
    RetrieveStats before;
    double cpu_before = 0, choose_before = 0;
    const auto choose_ms = [&] {
      double sum = 0;
      for (const auto& retriever : made) sum += retriever->stats().choose_ms;
      return sum;
    };
    constexpr std::int64_t kWarm = 2;  // the first step copies everything
    for (std::int64_t step = 0; step < options_.steps + kWarm; ++step) {
      if (step == kWarm) {
        before = made.front()->stats();
        choose_before = choose_ms();
        cpu_before = cpu_ms();
      }
      std::vector<DecodeRow> rows(sequences_.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i].token_id = static_cast<std::int32_t>(
            (step / options_.hold * 7919 + 5 + static_cast<std::int64_t>(i) * 131) %
            model_->config().vocab_size);
        rows[i].position = static_cast<std::int32_t>(context + step);
        rows[i].cache = &sequences_[i]->cache;
        rows[i].retriever = made[i].get();
      }
      const double start = now_seconds();
      const Stopwatch watch;
      check(batch.step(rows));
      for (const DecodeRow& row : rows) check(row.status);
      if (step < kWarm) continue;
      times.push_back((now_seconds() - start) * 1e3);
      wall_ms += watch.ms();
    }
    const double cpu = cpu_ms() - cpu_before, choosing = choose_ms() - choose_before;
    for (const auto& retriever : made) retriever->synchronize();
    const RetrieveStats all = made.front()->stats(), s = all.since(before);
    made.clear();
    for (const auto& sequence : sequences_) sequence->cache.truncate_all(context);
    const double ms = percentile(times, 50), steps = static_cast<double>(options_.steps);
    if (variant.name == "dense") dense_ms = ms;
    char text[1280];
    std::snprintf(
        text, sizeof text,
        "{\"model\": \"%s\", \"context\": %ld, \"batch\": %ld, \"decode\": \"%s\", \"resident\": "
        "\"%s\", \"without\": \"%s\", \"budget\": %ld, \"step_ms_median\": %.2f, \"step_ms_p99\": "
        "%.2f, \"cpu_ms\": %.2f, \"retrieval_ms\": %.2f, \"retrieval_share\": %.3f, "
        "\"tokens_per_s\": %.2f, \"of_dense\": %.3f, \"ceiling_ms\": %.2f, \"ceiling_of_dense\": "
        "%.3f, \"prepare_ms\": %.1f, \"copied_bytes_per_step\": %.0f, \"moved_share\": %.4f, "
        "\"waits_per_step\": %.2f, \"overlap\": %s, \"corrected_share\": %.3f, "
        "\"rows_scored_per_step\": %.0f, \"device_bytes\": %ld}",
        kLlama1B.name, static_cast<long>(context), static_cast<long>(options_.batch),
        variant.name.c_str(), variant.resident.empty() ? "-" : variant.resident.c_str(),
        variant.without.c_str(), static_cast<long>(options_.budget), ms, percentile(times, 99),
        cpu / steps, choosing / steps, choosing / wall_ms,
        1e3 * static_cast<double>(options_.batch) / ms, ms / dense_ms, ceiling_ms(variant, context),
        ceiling_ms(variant, context) / ceiling_ms({.name = "dense"}, context),
        prepare_ms_ / static_cast<double>(options_.batch),
        static_cast<double>(s.bytes_copied) / steps, s.copied_share().value_or(0),
        static_cast<double>(s.waits) / steps,
        all.overlap() ? std::to_string(*all.overlap()).c_str() : "null",
        s.corrected_share().value_or(0), static_cast<double>(s.rows_scored) / steps,
        static_cast<long>(all.device_bytes));
    return text;
  }

  /// Returns random queries of the prompt's last rows, for retrievers that want some.
  std::unique_ptr<PromptQueries> prompt_queries(const WantedQueries& wanted, std::int64_t context) {
    if (wanted.count == 0) return nullptr;
    const ModelConfig& c = model_->config();
    auto queries = std::make_unique<PromptQueries>(
        model_->rope(), PromptQueries::Shape{c.num_layers, c.num_heads, c.head_dim}, wanted,
        context);
    std::vector<float> q(static_cast<std::size_t>(c.num_heads) *
                         static_cast<std::size_t>(c.head_dim)),
        lse(static_cast<std::size_t>(c.num_heads), std::log(static_cast<float>(context)));
    for (std::int32_t layer = 0; layer < c.num_layers; ++layer) {
      for (auto position = static_cast<std::int32_t>(context - wanted.count); position < context;
           ++position) {
        for (float& x : q)
          x = static_cast<float>(static_cast<std::int16_t>(next() >> 48)) / 16384.0f;
        LayerPass pass{};
        pass.compute = &model_->compute();
        pass.layer = layer;
        pass.positions = std::span(&position, 1);
        pass.qkv.q = q.data();
        pass.qkv.rows = 1;
        pass.qkv.ld = static_cast<std::int64_t>(q.size());
        pass.lse = lse.data();
        check(queries->after_attention(pass));
      }
    }
    return queries;
  }

  std::uint64_t next() {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return seed_ >> 1;
  }

  const Options options_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RetrievalHead> head_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  double read_bytes_per_ms_ = 0, prepare_ms_ = 0;
  std::uint64_t seed_ = 1;
};

bool parse_contexts(const char* text, std::vector<std::int64_t>& out) {
  out.clear();
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    out.push_back(std::strtol(text, &end, 10));
    if (end == text || out.back() < 1024 || out.back() > 130000) return false;
  }
  std::sort(out.begin(), out.end());
  return !out.empty();
}

/// Parses key=value,key=value.
bool parse_options(std::string_view text, std::map<std::string, std::string, std::less<>>& out) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const auto equals = part.find('=');
    if (equals == part.npos || equals == 0) return false;
    out[std::string(part.substr(0, equals))] = part.substr(equals + 1);
  }
  return true;
}

int usage() {
  std::fprintf(stderr,
               "usage: quire_decode_bench [--quick] [--contexts N,N,... (1024..130000)] [--steps "
               "N] [--budget N] [--batch N] [--hold N] [--ablations] [--weights bf16|int8] "
               "[--retrievers NAME,...] [--options KEY=VALUE,...] [--threads N]\n");
  return 2;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (arg == "--ablations") {
      options.ablations = true;
      continue;
    }
    if (arg == "--quick") {
      options.quick = true;
      options.contexts = {4096, 8192};
      options.steps = 6;
      continue;
    }
    if (value == nullptr) return usage();
    ++i;
    if (arg == "--contexts") {
      if (!parse_contexts(value, options.contexts)) return usage();
    } else if (arg == "--steps") {
      options.steps = std::clamp(std::atol(value), 1l, 900l);
    } else if (arg == "--budget") {
      options.budget = std::clamp(std::atol(value), 1280l, 65536l) / 64 * 64;
    } else if (arg == "--batch") {
      options.batch = std::clamp(std::atol(value), 1l, 16l);
    } else if (arg == "--hold") {
      options.hold = std::clamp(std::atol(value), 1l, 900l);
    } else if (arg == "--weights" &&
               (std::string_view(value) == "bf16" || std::string_view(value) == "int8")) {
      options.weights = std::string_view(value) == "int8" ? WeightFormat::kInt8
                                                          : WeightFormat::kBF16;
    } else if (arg == "--retrievers") {
      for (std::string_view rest = value; !rest.empty(); rest.remove_prefix(std::min(
               rest.size(), rest.find(',') == rest.npos ? rest.size() : rest.find(',') + 1))) {
        options.retrievers.emplace_back(rest.substr(0, rest.find(',')));
        if (!retrievers().make(options.retrievers.back()).ok()) return usage();
      }
    } else if (arg == "--options") {
      if (!parse_options(value, options.given)) return usage();
    } else if (arg == "--threads") {
      set_num_threads(std::atoi(value));
    } else {
      return usage();
    }
  }
  const std::string rows = Bench(options).run();
  std::string given;
  for (const auto& [key, value] : options.given)
    given += (given.empty() ? "" : ",") + key + "=" + value;
  std::printf(
      "{\"settings\": {\"threads\": %d, \"isa\": \"%s\", \"weights\": \"%s\", \"options\": \"%s\", "
      "\"steps\": %ld, \"hold\": %ld, \"quick\": %s, \"note\": \"random weights and rows; "
      "moved_share: of what a step wants, what it brings\"},\n"
      " \"rows\": [%s\n]}\n",
      num_threads(), cpu_isa(), std::string(weight_format_name(options.weights)).c_str(),
      given.c_str(), static_cast<long>(options.steps), static_cast<long>(options.hold),
      options.quick ? "true" : "false", rows.c_str());
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
