#include "bench/gpu/engine_cases.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "bench/cached_documents.h"
#include "bench/gpu/engine_plan.h"
#include "engine/answer/decode_batch.h"
#include "engine/cache/working_cache.h"
#include "engine/device/device_compute.h"
#include "engine/device/team/team_compute.h"
#include "engine/model/benchmark_model.h"
#include "engine/model/forward.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/retriever.h"
#include "engine/retrieve/slot_copies.h"
#include "kernels/cuda/backend/loader.h"
#include "kernels/matmul/matmul.h"

namespace quire::cuda::bench {
namespace {

using quire::bench::check;
using quire::bench::Clock;
using quire::bench::ms_since;
using quire::bench::take;

// The value that the engine uses on a device with room (pipeline/memory_plan.h).
constexpr std::int64_t kPrefillRows = 4096;

std::shared_ptr<Compute> open_compute(const EngineCaseOptions& options) {
  const auto library = take(BackendLibrary::load(backend_library_files()));
  return make_device_compute(
      take(library->open(take(choose_device(library->probe(), options.device_idx)))));
}

Row row_of(std::string name, std::string shape, double bytes, double flops,
           std::vector<double> us) {
  std::sort(us.begin(), us.end());
  Row row{std::move(name), std::move(shape),      bytes, flops, us[us.size() / 2],
          us.front(),      us[us.size() * 9 / 10]};
  std::fprintf(stderr, "%-24s %-44s %10.1f us\n", row.name.c_str(), row.shape.c_str(),
               row.median_us);
  return row;
}

/// A model alone: forward passes and decode steps.
class ModelBench {
 public:
  /// host_tokens: tokens of KV that may leave the device.
  ModelBench(const EngineCases& cases, std::shared_ptr<Compute> compute, std::int64_t max_positions,
             std::int64_t host_tokens = 0)
      : cases_(cases),
        config_(cases_.config),
        model_(take(make_benchmark_model(config_,
                                         {.weights = WeightFormat::kBF16,
                                          .kv_dtype = DType::kBF16,
                                          .max_positions = max_positions},
                                         1, std::move(compute)))),
        pool_({config_.num_kv_heads, config_.head_dim, DType::kBF16}, 0, model_->compute().memory(),
              host_tokens *
                  PageFormat{config_.num_kv_heads, config_.head_dim, DType::kBF16}.page_bytes() /
                  kPageTokens * config_.num_layers),
        batch_(*model_),
        retriever_(take(retrievers().make("dense"))) {}

  double kv_bytes_per_token() const {
    return static_cast<double>(pool_.format().page_bytes()) / kPageTokens * config_.num_layers;
  }
  bool fits(std::int64_t tokens) {
    const double need = kv_bytes_per_token() * static_cast<double>(tokens);
    return model_->compute().memory()->budget(static_cast<std::int64_t>(need), "kv").ok();
  }

  Row prefill(std::int64_t tokens) {
    std::vector<double> us;
    for (int round = 0; round < cases_.prefill_rounds; ++round) {
      WorkingCache cache(pool_, config_.num_layers);
      const auto start = Clock::now();
      fill(cache, tokens);
      if (round > 0) us.push_back(ms_since(start) * 1e3);
    }
    Row row = row_of("engine prefill", std::to_string(tokens) + " tokens", 0,
                     prefill_flops(config_, tokens), std::move(us));
    row.more = {{"tokens_per_s", static_cast<double>(tokens) / row.median_us * 1e6}};
    return row;
  }

  Row decode(std::int64_t sequences, std::int64_t context) {
    const Caches caches = filled(sequences, context);
    const std::vector<Retriever*> dense(caches.size(), retriever_.get());
    std::int64_t rows = 0;
    for (const auto& cache : caches) rows += cache->num_rows(0) + cases_.decode_steps / 2;
    const double bytes = static_cast<double>(model_->decode_weight_bytes()) +
                         static_cast<double>(rows) * kv_bytes_per_token();
    Row row = row_of("engine decode",
                     std::to_string(sequences) + " sequences of " + std::to_string(context) +
                         (sequences > 1 ? " tokens and more" : " tokens"),
                     bytes, 0, steps(caches, dense, cases_.decode_steps));
    row.more = {{"tokens_per_s", static_cast<double>(sequences) / row.median_us * 1e6}};
    return row;
  }

  /// Measures dense steps, and steps over a budget of rows: read in place, and with every layer in
  /// host memory, which shows the cost of copying.
  void retrieve(std::int64_t sequences, std::int64_t context, const SectionOutput& out) {
    Caches caches = filled(sequences, context, Lengths::kEqual);
    const std::unique_ptr<RetrievalHead> head = make_head();
    const HeadTrack track = track_of(*head, context);
    std::map<std::string, double> step_us;  // by name of the row
    for (const Way& way : ways()) {
      Row row = over_budget(way, context, *head, track, caches);
      const auto compare = [&](const char* with, const std::string& other) {
        if (const auto found = step_us.find(other); found != step_us.end())
          row.more.emplace_back(with, row.median_us / found->second);
      };
      if (way.resident == "auto") compare("of_dense", "engine dense");
      if (way.resident == "none") compare("of_in_place", "engine " + way.name + " in place");
      if (way.name == "arkvale" || way.name == "freekv blocking recall")
        compare("of_freekv", "engine freekv in slots");
      step_us[row.name] = row.median_us;
      out.row(row);
    }
  }

  /// Measures one sequence's steps on a device of `device_bytes`, which the weights share with its
  /// KV: over everything, with the layers that have no room read across the bus, and by retrievers
  /// over a part of the rows.
  void offload(std::int64_t context, std::int64_t device_bytes, const SectionOutput& out) {
    // What a pass needs besides weights and KV.
    constexpr std::int64_t kWorkspace = std::int64_t{1} << 30;
    const std::int64_t kv_bytes = device_bytes -
                                  static_cast<std::int64_t>(model_->decode_weight_bytes()) -
                                  kWorkspace;
    const double layer_bytes = kv_bytes_per_token() / config_.num_layers *
                               static_cast<double>(context);
    const auto fit = static_cast<std::int32_t>(static_cast<double>(kv_bytes) / layer_bytes);
    double across = 0;
    for (const char* name : {"dense", "ctkvr", "freekv"}) {
      DevicePool pool(kv_bytes, model_->compute().memory());
      const auto retriever = take(retrievers().make(name, PlugOptions(Options{})));
      const auto queries = queries_for(*retriever, context);
      Caches caches;
      caches.push_back(std::make_unique<WorkingCache>(pool_, config_.num_layers));
      fill(*caches[0], context, queries.get());
      if (across == 0) leave(*caches[0], std::clamp(fit, 0, config_.num_layers));
      const auto start = Clock::now();
      prepare(*retriever, *caches[0], context, pool, queries.get());
      const double prepared = ms_since(start);
      Retriever* const each[] = {retriever.get()};
      Row row = row_of(std::string("engine ") + name + " offloaded",
                       "1 sequence of " + std::to_string(context) + " tokens, " +
                           std::to_string(device_bytes >> 30) + " GiB",
                       0, 0, steps(caches, each, cases_.retrieve_steps));
      retriever->synchronize();
      if (across > 0) row.more.emplace_back("times_as_fast_as_dense", across / row.median_us);
      if (across == 0) across = row.median_us;
      row.more.emplace_back("tokens_per_s", 1e6 / row.median_us);
      row.more.emplace_back("prepare_ms", prepared);
      row.more.emplace_back("layers_offloaded", std::string(name) == "dense"
                                                    ? config_.num_layers - fit
                                                    : retriever->stats().layers_offloaded);
      out.row(row);
    }
  }

 private:
  using Caches = std::vector<std::unique_ptr<WorkingCache>>;
  using Options = std::map<std::string, std::string, std::less<>>;
  enum class Lengths { kEqual, kUnequal };
  /// A way to decode. `name` begins with the retriever's name.
  struct Way {
    std::string name, resident;  ///< auto or none; empty: every row is attended to
    Options options = {};
    /// Sequences are filled anew, because it wants queries of the prompt, or because its layers
    /// leave the device in another layout than those before.
    bool fresh = false;
  };
  /// Ways that leave the caches on the device come first.
  static std::vector<Way> ways() {
    const Options by_bounds = {{"decode_rerank", "1"}};
    return {{"dense", ""},
            {"freekv", "auto"},
            {"freekv by bounds", "auto", by_bounds},
            {"specontext", "auto"},
            {"freekv", "none"},
            // No head goes by the choice of the query before, so every step waits for its pages.
            {"freekv blocking recall", "none", {{"decode_tau", "1.1"}}},
            {"freekv by bounds", "none", by_bounds},
            {"arkvale", "none"},
            // Each step has another token, so a head of random weights chooses most rows anew.
            {"specontext", "none", {}, true},
            {"ctkvr", "auto", {}, true}};
  }
  /// Measures one way. `caches` are the sequences, at least `context` rows each.
  Row over_budget(const Way& way, std::int64_t context, const RetrievalHead& head,
                  const HeadTrack& track, Caches& caches) {
    const std::size_t sequences = caches.size();
    DevicePool slots(0, model_->compute().memory());
    Options given = way.options;
    if (!way.resident.empty()) {
      given["decode_budget"] = "2048";
      given["decode_resident"] = way.resident;
    }
    std::vector<std::unique_ptr<Retriever>> made;
    std::vector<Retriever*> each;
    if (way.fresh) caches.clear();
    for (std::size_t i = 0; i < sequences; ++i) {
      made.push_back(
          take(retrievers().make(way.name.substr(0, way.name.find(' ')), PlugOptions(given))));
      each.push_back(made.back().get());
      std::unique_ptr<PromptQueries> queries;
      if (way.fresh) {
        queries = queries_for(*each.back(), context);
        caches.push_back(std::make_unique<WorkingCache>(pool_, config_.num_layers));
        fill(*caches.back(), context, queries.get());
      }
      prepare(*each.back(), *caches[i], context, slots, queries.get(), &head, &track);
    }
    std::vector<double> us = steps(caches, each, cases_.retrieve_steps);
    std::int64_t moved = 0, selections = 0, offloaded = 0;
    double corrected = 0;
    for (Retriever* one : each) {
      one->synchronize();
      const RetrieveStats stats = one->stats();
      moved += stats.bytes_copied;
      selections += stats.selections;
      offloaded += stats.bytes_offloaded;
      corrected += stats.corrected_share().value_or(0) / static_cast<double>(sequences);
    }
    const bool dense = way.resident.empty();
    const char* where = dense                    ? ""
                        : way.resident == "none" ? " in slots"
                        : offloaded > 0          ? " on the host"
                                                 : " in place";
    const double rows = static_cast<double>(sequences) * kv_bytes_per_token() *
                        (dense                                     ? static_cast<double>(context)
                         : way.resident == "auto" && offloaded > 0 ? 0.0
                                                                   : 2048.0);
    Row row = row_of("engine " + way.name + where,
                     std::to_string(sequences) + " sequences of " + std::to_string(context) +
                         " tokens, budget 2048",
                     static_cast<double>(model_->decode_weight_bytes()) + rows, 0, std::move(us));
    row.more = {{"tokens_per_s", static_cast<double>(sequences) / row.median_us * 1e6},
                {"moved_bytes_per_step", static_cast<double>(moved) / cases_.retrieve_steps},
                {"selections_per_step", static_cast<double>(selections) / cases_.retrieve_steps},
                {"corrected_share", corrected}};
    return row;
  }
  /// Makes a retrieval head of random weights with the model's shape.
  std::unique_ptr<RetrievalHead> make_head() const {
    RetrievalHeadConfig shape;
    shape.hidden_size = config_.hidden_size;
    shape.num_heads = config_.num_heads;
    shape.num_kv_heads = config_.num_kv_heads;
    shape.head_dim = config_.head_dim;
    return take(RetrievalHead::random(shape, *model_, 2));
  }
  /// Returns a prompt as the head sees it, with made-up keys: computing them takes the host long.
  HeadTrack track_of(const RetrievalHead& head, std::int64_t context) const {
    HeadTrack track(head, HeadInput::kFeature);
    std::vector<std::int32_t> ids(to_size(context), 100), positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<float> keys(to_size(context * head.config().key_dim()));
    std::uint32_t state = 1;
    for (float& key : keys) {
      state = state * 1664525u + 1013904223u;
      key = static_cast<float>(static_cast<std::int32_t>(state)) / 2147483648.0f;
    }
    track.add_known(ids, positions, keys);
    return track;
  }
  /// Returns the hook that records the queries of the prompt that a retriever wants; null: none.
  std::unique_ptr<PromptQueries> queries_for(Retriever& retriever, std::int64_t context) const {
    const auto* watcher = capability<PromptWatcher>(retriever);
    if (watcher == nullptr) return nullptr;
    return std::make_unique<PromptQueries>(
        model_->rope(),
        PromptQueries::Shape{config_.num_layers, config_.num_heads, config_.head_dim},
        watcher->queries_wanted(context), context);
  }
  /// Prepares a retriever for the first `context` rows of a cache.
  void prepare(Retriever& retriever, WorkingCache& cache, std::int64_t context, DevicePool& slots,
               PromptQueries* queries = nullptr, const RetrievalHead* head = nullptr,
               const HeadTrack* track = nullptr) {
    cache.truncate_all(context);
    const ContextRows whole{0, context};
    SequenceContext all;
    all.cache = &cache;
    all.device = &slots;
    all.compute = &model_->compute();
    all.head = head;
    all.num_layers = config_.num_layers;
    all.num_heads = config_.num_heads;
    all.num_kv_heads = config_.num_kv_heads;
    all.head_dim = config_.head_dim;
    AssembledPrompt assembled;
    assembled.contexts = std::span(&whole, 1);
    assembled.queries = queries;
    assembled.head_track = track;
    assembled.num_tokens = context;
    check(prepare_whole(retriever, all, assembled));
  }
  /// Lets the layers from `first` on leave the device.
  void leave(WorkingCache& cache, std::int32_t first) {
    SequenceContext all;
    all.cache = &cache;
    all.compute = &model_->compute();
    RetrieveStats stats;
    for (std::int32_t layer = first; layer < config_.num_layers; ++layer)
      check(leave_device(all, layer, PageLayout::kHeadPages, stats));
  }
  Caches filled(std::int64_t sequences, std::int64_t context, Lengths lengths = Lengths::kUnequal) {
    Caches caches;
    for (std::int64_t s = 0; s < sequences; ++s) {
      caches.push_back(std::make_unique<WorkingCache>(pool_, config_.num_layers));
      fill(*caches.back(), lengths == Lengths::kEqual ? context : decode_tokens(context, s));
    }
    return caches;
  }
  /// Returns the microseconds of each step.
  std::vector<double> steps(const Caches& caches, std::span<Retriever* const> retrievers,
                            int count) {
    std::vector<double> us;
    for (int step = 0; step < count; ++step) {
      std::vector<DecodeRow> rows(caches.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i].token_id = 100 + step;
        rows[i].position = static_cast<std::int32_t>(caches[i]->num_rows(0));
        rows[i].cache = caches[i].get();
        rows[i].retriever = retrievers[i];
        rows[i].rule = SampleRule{};  // greedy
      }
      const auto start = Clock::now();
      check(batch_.step(rows));
      for (const DecodeRow& row : rows) check(row.status);
      // The first steps size buffers, record the graph, and let layers leave the device.
      if (step >= 8) us.push_back(ms_since(start) * 1e3);
    }
    return us;
  }
  void fill(WorkingCache& cache, std::int64_t tokens, ForwardHook* hook = nullptr) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens)), positions(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>(100 + i * 7919 % 3000);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<float> logits(static_cast<std::size_t>(config_.vocab_size));
    for (std::int64_t first = 0; first < tokens; first += kPrefillRows) {
      const std::int64_t n = std::min(kPrefillRows, tokens - first);
      const auto last = static_cast<std::int32_t>(n - 1);
      ForwardRequest r;
      r.token_ids = std::span(ids).subspan(static_cast<std::size_t>(first),
                                           static_cast<std::size_t>(n));
      r.positions = std::span(positions).subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(n));
      r.cache = &cache;
      r.hook = hook;
      if (first + n == tokens) {
        r.logit_rows = std::span(&last, 1);
        r.logits = logits.data();
      }
      check(forward(*model_, r, workspace_));
    }
  }
  const EngineCases cases_;
  const ModelConfig& config_;
  const std::unique_ptr<Model> model_;
  PagePool pool_;
  ForwardWorkspace workspace_;
  DecodeBatch batch_;
  const std::unique_ptr<Retriever> retriever_;
};

void skip(const char* what, std::int64_t tokens) {
  std::fprintf(stderr, "%s of %lld tokens of KV skipped: the device has no room\n", what,
               static_cast<long long>(tokens));
}

void prefill_rows(const EngineCaseOptions& options, const SectionOutput& out) {
  const EngineCases cases = engine_cases(options.quick);
  ModelBench bench(cases, open_compute(options), cases.prefills.back() + 64);
  for (const std::int64_t n : cases.prefills) {
    if (bench.fits(n))
      out.row(bench.prefill(n));
    else
      skip("prefill", n);
  }
}

void decode_rows(const EngineCaseOptions& options, const SectionOutput& out) {
  const EngineCases cases = engine_cases(options.quick);
  std::int64_t longest = 0;
  for (const auto& [sequences, context] : cases.decodes)
    longest = std::max(longest, decode_tokens(context, sequences));
  ModelBench bench(cases, open_compute(options), longest + cases.decode_steps + 64);
  for (const auto& [sequences, context] : cases.decodes) {
    const std::int64_t tokens = sequences * (decode_tokens(context, sequences / 2) +
                                             cases.decode_steps + kPageTokens);
    if (bench.fits(tokens))
      out.row(bench.decode(sequences, context));
    else
      skip("decode", tokens);
  }
}

void retrieve_rows(const EngineCaseOptions& options, const SectionOutput& out) {
  const EngineCases cases = engine_cases(options.quick);
  const std::int64_t retrieved = cases.retrieve_sequences * (cases.retrieve_tokens + 64);
  ModelBench bench(cases, open_compute(options), cases.retrieve_tokens + 64, retrieved);
  if (bench.fits(retrieved))
    bench.retrieve(cases.retrieve_sequences, cases.retrieve_tokens, out);
  else
    skip("decode over a part of the rows", retrieved);
}

void offload_rows(const EngineCaseOptions& options, const SectionOutput& out) {
  const EngineCases cases = engine_cases(options.quick);
  const std::int64_t tokens = cases.offload_tokens + cases.retrieve_steps + 64;
  ModelBench bench(cases, open_compute(options), tokens, tokens);
  if (bench.fits(tokens))
    bench.offload(cases.offload_tokens, cases.offload_device_bytes, out);
  else
    skip("decode with KV in host memory", tokens);
}

/// Measures the attention of one decode row whose KV is cut over the devices of `compute`, with the
/// copies of its query and outputs.
void split_attention_row(const ModelConfig& c, Compute& compute, std::int64_t count,
                         const SectionOutput& out) {
  constexpr std::int64_t kRows = 32768;
  const PageFormat format{c.num_kv_heads, c.head_dim, DType::kBF16};
  PagePool pool(format, 0,
                take(compute.page_memory(c.num_kv_heads, format.page_bytes() / c.num_kv_heads)));
  WorkingCache cache(pool, 1);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(kRows));
  std::iota(positions.begin(), positions.end(), 0);
  check(cache.add_rows(0, positions).status());
  const std::int64_t width = std::int64_t{c.num_heads} * c.head_dim;
  ComputeBuffer<float> q, y;
  check(q.reserve(compute.memory(), width));
  check(y.reserve(compute.memory(), width));
  const std::vector<float> zeros(static_cast<std::size_t>(width));
  check(compute.memory()->write(q.data(), zeros.data(),
                                width * static_cast<std::int64_t>(sizeof(float))));
  const SequenceAttention sequence{.kv = cache.view(0), .position = kRows - 1};
  std::vector<double> us;
  constexpr int kWarm = 3, kSamples = 20, kCalls = 10;
  for (int i = 0; i < kWarm + kSamples; ++i) {
    check(compute.synchronize());
    const auto start = Clock::now();
    for (int call = 0; call < kCalls; ++call)
      check(compute.attention().attend_each({.q = q.data(),
                                             .query_positions = nullptr,
                                             .rows = 1,
                                             .ldq = width,
                                             .num_heads = c.num_heads,
                                             .scale = 0.1f,
                                             .kv = sequence.kv,
                                             .out = y.data(),
                                             .ldo = width,
                                             .lse = nullptr},
                                            {&sequence, 1}, DType::kF32));
    check(compute.synchronize());
    if (i >= kWarm) us.push_back(ms_since(start) * 1e3 / kCalls);
  }
  out.row(row_of(
      "decode attention on " + std::to_string(count),
      "KV of " + std::to_string(kRows) + " rows cut by head",
      static_cast<double>(kRows / kPageTokens * format.page_bytes()) / static_cast<double>(count),
      0, std::move(us)));
}

/// Measures a product whose outputs are cut over two devices, with the copies of its inputs and
/// outputs, and attention whose KV is cut over them, beside the same on one.
void team_rows(const EngineCaseOptions& options, const SectionOutput& out) {
  const ModelConfig& c = engine_cases(options.quick).config;
  const auto library = take(BackendLibrary::load(backend_library_files()));
  const DeviceReport report = library->probe();
  const std::int64_t n = 2 * std::int64_t{c.intermediate_size}, k = c.hidden_size;
  const std::vector<std::uint16_t> weights(static_cast<std::size_t>(n * k), 0x3c00);
  const WeightPart part{weights.data(), n, std::nullopt};
  for (const std::int64_t count : {1, 2}) {
    std::vector<DeviceProperties> devices;
    for (std::int64_t i = 0; i < count; ++i) {
      auto device = choose_device(report, options.device_idx + i);
      if (device.ok()) devices.push_back(std::move(*device));
    }
    if (static_cast<std::int64_t>(devices.size()) < count) {
      std::fprintf(stderr, "skipped: a product over two devices; there is one\n");
      return out.text("team", "skipped: it needs two devices");
    }
    const std::shared_ptr<Compute> compute = make_team_compute(take(library->open_team(devices)),
                                                               "cuda", nullptr, {.split_kv = true});
    split_attention_row(c, *compute, count, out);
    const auto matrix = take(compute->pack({&part, 1}, k, DType::kBF16, WeightFormat::kBF16));
    for (const std::int64_t rows : {1, 512}) {
      ComputeBuffer<float> x, y;
      check(x.reserve(compute->memory(), rows * k));
      check(y.reserve(compute->memory(), rows * n));
      const std::vector<float> zeros(static_cast<std::size_t>(rows * k));
      check(compute->memory()->write(x.data(), zeros.data(),
                                     rows * k * static_cast<std::int64_t>(sizeof(float))));
      std::vector<double> us;
      constexpr int kWarm = 3, kSamples = 20, kCalls = 10;
      for (int i = 0; i < kWarm + kSamples; ++i) {
        check(compute->synchronize());
        const auto start = Clock::now();
        for (int call = 0; call < kCalls; ++call)
          check(compute->linear().product({.weights = matrix.get(),
                                           .x = x.data(),
                                           .rows = rows,
                                           .ldx = k,
                                           .bias = nullptr,
                                           .y = y.data(),
                                           .ldy = n}));
        check(compute->synchronize());
        if (i >= kWarm) us.push_back(ms_since(start) * 1e3 / kCalls);
      }
      const auto parts = static_cast<double>(count);
      Row row = row_of(
          "product on " + std::to_string(count),
          std::to_string(rows) + " rows, " + std::to_string(n) + " outputs of " + std::to_string(k),
          rows == 1 ? 2.0 * static_cast<double>(n * k) / parts : 0,
          rows == 1 ? 0 : 2.0 * static_cast<double>(rows * n * k) / parts, std::move(us));
      // The leader sends inputs in bf16 and gathers outputs in f32.
      row.more = {{"bytes_between_devices",
                   static_cast<double>(rows) * (parts - 1) *
                       (2.0 * static_cast<double>(k) + 4.0 * static_cast<double>(n) / parts)}};
      out.row(row);
    }
  }
}

/// Measures milliseconds until the first token of a question over cached documents, with all KV in
/// the memory tier.
void question_rows(const EngineCaseOptions& options, const SectionOutput& out) {
  // Without Highway the host's part of the work are plain loops, which the result must say.
  out.text("cpu_kernels", cpu_isa());
  const EngineCases cases = engine_cases(options.quick);
  const std::int64_t documents = cases.documents, tokens = cases.document_tokens;
  const quire::bench::TempFolder folder("quire-gpu-bench");
  quire::bench::CachedDocuments cached(
      {.shape = options.quick ? quire::bench::kLlama1B : quire::bench::kLlama8B,
       .tokenizer_dir = options.model_dir,
       .store_path = folder.path() / "store",
       .max_positions = documents * tokens + 1024,
       .dram_bytes = std::uint64_t{12} << 30,
       // As in a service, what stands before the documents runs once; recompute takes nothing.
       .prefix_cache_bytes = std::int64_t{64} << 20,
       .compute = open_compute(options)});
  std::vector<quire::bench::TokenIds> texts;
  for (std::int64_t d = 0; d < documents; ++d)
    texts.push_back(
        quire::bench::random_ids(tokens, cached.vocab_size(), static_cast<std::uint32_t>(d) + 7));
  std::fprintf(stderr, "documents prefilled and stored in %.0f ms\n",
               cached.ingest(std::move(texts)));
  const quire::bench::TokenIds question = quire::bench::random_ids(24, cached.vocab_size(), 3);
  std::vector<std::size_t> order(static_cast<std::size_t>(documents));
  std::iota(order.begin(), order.end(), std::size_t{0});
  double whole = 0, blend = 0;
  for (const char* strategy : {"recompute", "cacheblend", "samkv"}) {
    CacheOptions cache;
    cache.strategy = strategy;
    // Random weights have no retrieval heads, and the published form does the most work.
    if (cache.strategy == "samkv")
      cache.options = PlugOptions(PlugOptions::Values{{"score", "keys"}});
    std::vector<double> us;
    std::int64_t read = 0, prompt = 0;
    QueryStats last;
    for (int round = 0; round < cases.question_rounds; ++round) {
      const quire::bench::Answered answered = cached.ask(order, question, cache);
      if (round > 0) us.push_back(answered.stats.ttft_ms * 1e3);
      read = answered.bytes_read();
      last = answered.stats;
      prompt = answered.plan.prompt_tokens;
    }
    // The least work of recompute is the prompt's arithmetic. The least work of the others is
    // reading the KV that they place.
    Row row = row_of(
        std::string("ttft ") + strategy,
        std::to_string(documents) + " cached documents of " + std::to_string(tokens) + " tokens", 0,
        whole > 0 ? 0 : prefill_flops(cached.config(), prompt), std::move(us));
    if (whole > 0) row.host_bytes = static_cast<double>(read);
    if (whole > 0) row.more.emplace_back("share_of_recompute", row.median_us / whole);
    if (blend > 0) row.more.emplace_back("share_of_cacheblend", row.median_us / blend);
    (whole > 0 ? blend : whole) = row.median_us;
    // Parts of the last round.
    row.more.emplace_back("query_pass_ms", last.query_pass_ms);
    row.more.emplace_back("select_ms", last.select_ms);
    row.more.emplace_back("lookup_ms", last.lookup_ms);
    row.more.emplace_back("load_ms", last.load_ms);
    row.more.emplace_back("recompute_ms", last.recompute_ms);
    row.more.emplace_back("prefill_ms", last.prefill_ms);
    out.row(row);
  }
}

}  // namespace

std::vector<Section> engine_sections(const EngineCaseOptions& options) {
  return {{"prefill", 80, [options](const SectionOutput& out) { prefill_rows(options, out); }},
          {"decode", 120, [options](const SectionOutput& out) { decode_rows(options, out); }},
          {"questions", 200, [options](const SectionOutput& out) { question_rows(options, out); }},
          {"retrieve", 160, [options](const SectionOutput& out) { retrieve_rows(options, out); }},
          {"offload", 110, [options](const SectionOutput& out) { offload_rows(options, out); }},
          {"team", 60, [options](const SectionOutput& out) { team_rows(options, out); }}};
}

}  // namespace quire::cuda::bench
