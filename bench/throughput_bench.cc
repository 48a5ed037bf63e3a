// Measures decode speed at batch sizes, how much concurrent ingest delays a query between two
// tokens, and answers beside prompts with decode steps mixed with prefill chunks and without.
// Random weights of a published shape. Prints {"settings": ..., "rows": [...]}.
//   quire_throughput_bench [--quick] [--model NAME] [--weights bf16|int8|w8a8] [--context N]
//   [--steps N] [--answer N] [--ingest N] [--threads N]
//     [--model-dir DIR with tokenizer]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <stop_token>
#include <string>
#include <vector>

#include "bench/machine_rates.h"
#include "bench/model_shapes.h"
#include "cachestore/store.h"
#include "engine/answer/decode_batch.h"
#include "engine/engine_parts.h"
#include "engine/model/forward.h"
#include "kernels/attention/attention.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr ModelShape kShapes[] = {kQwen05B, kLlama1B};
constexpr std::int32_t kBatches[] = {1, 2, 4, 8, 16};

struct Options {
  bool quick = false;
  std::int64_t context = 256, steps = 12, ingest_tokens = 100'000, answer_tokens = 200;
  std::string model, weights, tokenizer_dir = QUIRE_SOURCE_DIR "/models/demo";
};

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  std::_Exit(1);  // exits at once, because an engine's threads may be running
}
template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}
double percentile(std::vector<double> values, std::size_t percent) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[std::min(values.size() - 1, values.size() * percent / 100)];
}
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<std::int32_t> random_ids(std::int64_t n, std::int32_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> id(8, vocab - 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (auto& x : ids) x = id(random);
  return ids;
}

/// Measures decode steps of 1 to 16 sequences, each over its own pages of a context.
class BatchBench {
 public:
  BatchBench(Model& model, const Options& options)
      : options_(options),
        config_(model.config()),
        pool_({config_.num_kv_heads, config_.head_dim,
               cached_kv_dtype(DType::kF16, config_.head_dim)},
              0),
        batch_(model) {
    const auto ids = random_ids(options.context, 4000, 1);
    std::vector<std::int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    for (int i = 0; i < kBatches[std::size(kBatches) - 1]; ++i) {
      caches_.push_back(std::make_unique<WorkingCache>(pool_, config_.num_layers));
      retrievers_.push_back(take(retrievers().make("dense")));
      ForwardRequest request{};
      request.token_ids = ids;
      request.positions = positions;
      request.cache = caches_.back().get();
      check(forward(model, request, workspace_));
    }
  }

  std::string run() {
    // Sizes take turns, and each round has its own ratio, because other work on the machine
    // disturbs them alike.
    std::vector<double> ms[std::size(kBatches)], times[std::size(kBatches)];
    for (std::int64_t round = -1; round < options_.steps; ++round) {
      for (std::size_t i = 0; i < std::size(kBatches); ++i) {
        const double step = measure(kBatches[i]);
        if (round < 0) continue;
        ms[i].push_back(step);
        times[i].push_back(kBatches[i] * ms[0].back() / step);
      }
    }
    std::string rows;
    for (std::size_t i = 0; i < std::size(kBatches); ++i) {
      const std::int32_t batch = kBatches[i];
      const double median = percentile(ms[i], 50);
      char text[400];
      std::snprintf(text, sizeof text,
                    "{\"measure\": \"decode\", \"model\": \"%s\", \"weights\": \"%s\", \"batch\": "
                    "%d, \"context_tokens\": %ld, \"step_ms_median\": %.2f, "
                    "\"step_ms_p99\": %.2f, \"tokens_per_s\": %.2f, \"times_batch_1\": %.2f}",
                    options_.model.c_str(), options_.weights.c_str(), batch,
                    static_cast<long>(options_.context), median, percentile(ms[i], 99),
                    1000 * batch / median, percentile(times[i], 50));
      std::fprintf(stderr, "%s\n", text);
      rows += (rows.empty() ? "" : ",\n  ") + std::string(text);
    }
    return rows;
  }

 private:
  double measure(std::int32_t batch) {
    std::vector<DecodeRow> rows(static_cast<std::size_t>(batch));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].token_id = 100 + static_cast<std::int32_t>(i);
      rows[i].position = static_cast<std::int32_t>(caches_[i]->num_rows(0));
      rows[i].cache = caches_[i].get();
      rows[i].retriever = retrievers_[i].get();
    }
    const double start = now_seconds();
    check(batch_.step(rows));
    const double ms = 1000 * (now_seconds() - start);
    for (const DecodeRow& row : rows) check(row.status);
    return ms;
  }

  const Options& options_;
  const ModelConfig& config_;
  PagePool pool_;
  DecodeBatch batch_;
  ForwardWorkspace workspace_;
  std::vector<std::unique_ptr<WorkingCache>> caches_;
  std::vector<std::unique_ptr<Retriever>> retrievers_;
};

/// Records the times between the tokens of one answer.
class GapSink final : public QuerySink {
 public:
  void on_plan(const Plan&) override {}
  bool on_token(std::int32_t, std::string_view) override {
    const auto now = Clock::now();
    if (tokens_++ > 0)
      gaps_.push_back(std::chrono::duration<double, std::milli>(now - last_).count());
    last_ = now;
    return true;
  }
  void on_done(const Status& status, const Plan&, const QueryStats&, FinishReason) override {
    check(status);
    done_.set_value();
  }
  std::vector<double> wait() {
    done_.get_future().wait();
    return gaps_;
  }

 private:
  std::vector<double> gaps_;
  std::int64_t tokens_ = 0;
  Clock::time_point last_;
  std::promise<void> done_;
};

/// Measures one query's times between tokens, alone and while contexts of 512 tokens are ingested.
class IngestBench {
 public:
  IngestBench(std::unique_ptr<Model> model, const Options& options, const fs::path& folder)
      : options_(options) {
    StoreOptions store;
    store.path = (folder / "store").string();
    store_ = take(open_store(store));
    const auto tokenizer = std::shared_ptr<const Tokenizer>(
        take(load_tokenizer(options.tokenizer_dir)));
    auto format = take(PromptFormat::load(options.tokenizer_dir, tokenizer));
    vocab_ = tokenizer->vocab_size();
    EngineOptions engine;
    engine.num_threads = num_threads();
    engine_ = take(create_engine_from_parts({std::move(model), tokenizer, std::move(format)},
                                            engine, *store_));
  }
  ~IngestBench() { engine_->stop(std::chrono::milliseconds(0)); }

  std::string run() {
    (void)answer();  // touches every page once
    const auto alone = answer();
    std::stop_source cancelled;
    std::atomic<std::int64_t> tokens{0};
    std::vector<std::future<void>> ends;
    for (std::int64_t begun = 0; begun < options_.ingest_tokens; begun += 512) {
      auto done = std::make_shared<std::promise<void>>();
      ends.push_back(done->get_future());
      PrefillRequest request;
      request.token_ids = random_ids(512, vocab_, static_cast<std::uint32_t>(begun + 1));
      request.cancelled = cancelled.get_token();
      engine_->prefill(std::move(request), [done, &tokens](Result<PrefillResult> r) {
        if (r.ok()) tokens += r->tokens;
        done->set_value();
      });
    }
    const std::int64_t before = tokens;
    const auto start = Clock::now();
    const auto beside = answer();
    const double seconds = ms_since(start) / 1000;
    const std::int64_t ingested = tokens - before;
    cancelled.request_stop();
    for (auto& e : ends) e.wait();
    char text[600];
    std::snprintf(text, sizeof text,
                  "{\"measure\": \"beside ingest\", \"model\": \"%s\", \"weights\": \"%s\", "
                  "\"answer_tokens\": %ld, \"alone_ms_median\": %.2f, \"alone_ms_p99\": %.2f, "
                  "\"beside_ms_median\": %.2f, \"beside_ms_p99\": %.2f, \"beside_ms_max\": %.2f, "
                  "\"p99_times\": %.2f, \"ingest_tokens_per_s\": %.1f}",
                  options_.model.c_str(), options_.weights.c_str(),
                  static_cast<long>(options_.answer_tokens), percentile(alone, 50),
                  percentile(alone, 99), percentile(beside, 50), percentile(beside, 99),
                  percentile(beside, 100), percentile(beside, 99) / percentile(alone, 99),
                  static_cast<double>(ingested) / seconds);
    std::fprintf(stderr, "%s\n", text);
    return text;
  }

 private:
  std::vector<double> answer() {
    QueryRequest request;
    request.id = "qry_bench";
    request.suffix_ids = random_ids(48, vocab_, 3);
    request.cache.strategy = "recompute";
    request.sampling.max_tokens = static_cast<std::int32_t>(options_.answer_tokens);
    request.sampling.ignore_eos = true;
    auto sink = std::make_shared<GapSink>();
    check(engine_->query(std::move(request), sink).status());
    return sink->wait();
  }

  const Options& options_;
  std::int32_t vocab_ = 0;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
};

/// Measures four answers while prompts of 384 tokens follow one another, with decode steps that run
/// beside chunks of prompts and with steps alone, in turn.
class MixedBench {
 public:
  MixedBench(const Model& model, const Options& options, const fs::path& folder)
      : options_(options) {
    const auto tokenizer = std::shared_ptr<const Tokenizer>(
        take(load_tokenizer(options.tokenizer_dir)));
    vocab_ = tokenizer->vocab_size();
    for (const bool mixed : {false, true}) {
      StoreOptions store;
      store.path = (folder / (mixed ? "mixed" : "alone")).string();
      stores_[mixed] = take(open_store(store));
      EngineOptions engine;
      engine.num_threads = num_threads();
      engine.mixed_steps = mixed;
      auto format = take(PromptFormat::load(options.tokenizer_dir, tokenizer));
      engines_[mixed] = take(create_engine_from_parts({model.twin(), tokenizer, std::move(format)},
                                                      engine, *stores_[mixed]));
    }
  }
  ~MixedBench() {
    for (auto& engine : engines_) engine->stop(std::chrono::milliseconds(0));
  }

  std::string run() {
    constexpr int kRounds = 3;
    struct Measured {
      std::vector<double> gaps, prompts_per_s, tokens_per_s;
    } measured[2];
    for (int round = -1; round < kRounds; ++round) {  // the first one touches every page
      for (const bool mixed : {false, true}) {
        const Round r = one(*engines_[mixed]);
        if (round < 0) continue;
        Measured& m = measured[mixed];
        m.gaps.insert(m.gaps.end(), r.gaps.begin(), r.gaps.end());
        m.prompts_per_s.push_back(r.prompt_tokens / r.seconds);
        m.tokens_per_s.push_back(static_cast<double>(r.gaps.size()) / r.seconds);
      }
    }
    std::string rows;
    for (const bool mixed : {false, true}) {
      const Measured &m = measured[mixed], &alone = measured[0];
      const DecodeStepCounts steps = engines_[mixed]->load().decode_steps;
      char text[600];
      std::snprintf(
          text, sizeof text,
          "{\"measure\": \"beside prompts\", \"model\": \"%s\", \"weights\": \"%s\", "
          "\"mixed_steps\": %s, \"gap_ms_median\": %.2f, \"gap_ms_p99\": %.2f, "
          "\"answer_tokens_per_s\": %.2f, \"prompt_tokens_per_s\": %.1f, "
          "\"times_alone_answers\": %.3f, \"times_alone_prompts\": %.3f, "
          "\"share_of_steps_mixed\": %.2f}",
          options_.model.c_str(), options_.weights.c_str(), mixed ? "true" : "false",
          percentile(m.gaps, 50), percentile(m.gaps, 99), percentile(m.tokens_per_s, 50),
          percentile(m.prompts_per_s, 50),
          percentile(m.tokens_per_s, 50) / percentile(alone.tokens_per_s, 50),
          percentile(m.prompts_per_s, 50) / percentile(alone.prompts_per_s, 50),
          static_cast<double>(steps.mixed) / static_cast<double>(steps.mixed + steps.alone));
      std::fprintf(stderr, "%s\n", text);
      rows += (rows.empty() ? "" : ",\n  ") + std::string(text);
    }
    return rows;
  }

 private:
  static constexpr std::int64_t kPrompt = 384;
  struct Round {
    std::vector<double> gaps;
    double seconds = 0, prompt_tokens = 0;
  };
  std::shared_ptr<GapSink> ask(Engine& engine, std::int64_t prompt, std::int64_t answer) {
    QueryRequest request;
    request.id = "qry_" + std::to_string(++asked_);
    request.suffix_ids = random_ids(prompt, vocab_, asked_);
    request.cache.strategy = "recompute";
    request.sampling.max_tokens = static_cast<std::int32_t>(answer);
    request.sampling.ignore_eos = true;
    auto sink = std::make_shared<GapSink>();
    check(engine.query(std::move(request), sink).status());
    return sink;
  }
  Round one(Engine& engine) {
    Round out;
    std::vector<std::shared_ptr<GapSink>> answers;
    for (int i = 0; i < 4; ++i) answers.push_back(ask(engine, 48, options_.answer_tokens));
    const auto start = Clock::now();
    std::atomic<bool> over{false};
    auto prompts = std::async(std::launch::async, [&] {
      double tokens = 0;
      while (!over) {
        (void)ask(engine, kPrompt, 1)->wait();
        if (!over) tokens += kPrompt;
      }
      return tokens;
    });
    for (const auto& sink : answers) {
      const auto gaps = sink->wait();
      out.gaps.insert(out.gaps.end(), gaps.begin(), gaps.end());
    }
    out.seconds = ms_since(start) / 1000;
    over = true;
    out.prompt_tokens = prompts.get();
    return out;
  }

  const Options& options_;
  std::int32_t vocab_ = 0;
  std::uint32_t asked_ = 0;
  std::unique_ptr<Store> stores_[2];
  std::unique_ptr<Engine> engines_[2];
};

std::string bench_model(const ModelShape& shape, WeightFormat format, const Options& options) {
  const ModelConfig config = take(parse_model_config(shape.config));
  auto model = take(make_random_model(
      config, {.weights = format, .kv_dtype = DType::kF16, .max_positions = 4096}, 1));
  std::string rows = BatchBench(*model, options).run();
  const fs::path folder = fs::temp_directory_path() /
                          ("quire_throughput_" + std::to_string(std::random_device()()));
  fs::create_directories(folder);
  rows += ",\n  " + MixedBench(*model, options, folder).run();
  if (options.ingest_tokens > 0)
    rows += ",\n  " + IngestBench(std::move(model), options, folder).run();
  fs::remove_all(folder);
  return rows;
}

int run(const Options& given) {
  std::string rows;
  for (const ModelShape& shape : kShapes) {
    if (given.model.empty() ? &shape != &kShapes[given.quick ? 0 : 1] : given.model != shape.name)
      continue;
    for (const WeightFormat format :
         {WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kW8A8}) {
      Options options = given;
      options.model = shape.name;
      options.weights = std::string(weight_format_name(format));
      if (!given.weights.empty() && given.weights != options.weights) continue;
      rows += (rows.empty() ? "\n  " : ",\n  ") + bench_model(shape, format, options);
    }
  }
  std::printf(
      "{\"settings\": {\"threads\": %d, \"isa\": \"%s\", \"decode_clock\": \"%s\", \"kv_dtype\": "
      "\"f16\", \"quick\": %s, \"note\": \"random weights\"},\n \"rows\": [%s\n]}\n",
      num_threads(), cpu_isa(), uses_cpu_time() ? "cpu time" : "wall time",
      given.quick ? "true" : "false", rows.c_str());
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (arg == "--quick") {
      o.quick = true;
      o.answer_tokens = 120;
      continue;
    }
    bool known = value != nullptr;
    if (arg == "--model")
      o.model = value ? value : "";
    else if (arg == "--weights")
      o.weights = value ? value : "";
    else if (arg == "--model-dir")
      o.tokenizer_dir = value ? value : "";
    else if (arg == "--context" && value)
      o.context = std::clamp(std::atol(value), 1l, 3000l);
    else if (arg == "--steps" && value)
      o.steps = std::clamp(std::atol(value), 3l, 1000l);
    else if (arg == "--answer" && value)
      o.answer_tokens = std::clamp(std::atol(value), 10l, 2000l);
    else if (arg == "--threads" && value)
      quire::set_num_threads(std::atoi(value));
    else if (arg == "--ingest" && value)
      o.ingest_tokens = std::clamp(std::atol(value), 0l, 1'000'000l);
    else
      known = false;
    if (!known) {
      std::fprintf(
          stderr,
          "usage: quire_throughput_bench [--quick] [--model NAME] [--weights bf16|int8|w8a8] "
          "[--context N] [--steps N] [--answer N] [--ingest N] [--threads N] [--model-dir DIR]\n");
      return 2;
    }
    ++i;
  }
  return quire::bench::run(o);
}
