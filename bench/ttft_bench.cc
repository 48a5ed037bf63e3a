// Time to first token of a question over cached documents: `reuse` from DRAM and from a cold disk against `recompute`, and what ingest
// costs over a bare prefill. Random weights of a published shape, the engine as the service runs it. Prints {"settings", "rows"}.
//   quire_ttft_bench [--quick] [--documents N] [--tokens N] [--rounds N] [--model-dir DIR with tokenizer]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/model_shapes.h"
#include "cachestore/store.h"
#include "engine/cache/working_cache.h"
#include "engine/engine_parts.h"
#include "engine/model/forward.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/parallel.h"

namespace quire::bench {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

struct Options {
  bool quick = false;
  int documents = 10, tokens = 400, question_tokens = 24, rounds = 0;
  std::string tokenizer_dir;
};

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  std::_Exit(1);  // the engine's threads are still at work
}
template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

struct Spread {
  double min, median, max;
};
Spread spread(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return {v.front(), v[v.size() / 2], v.back()};
}

/// Waits for the end of a query and keeps its numbers.
class Waiter final : public QuerySink {
 public:
  void on_plan(const Plan&) override {}
  bool on_token(std::int32_t, std::string_view) override { return true; }
  void on_done(const Status& status, const Plan& plan, const QueryStats& stats, FinishReason) override {
    check(status);
    plan_ = plan;
    done_.set_value(stats);
  }
  QueryStats wait() { return done_.get_future().get(); }
  Plan plan_;

 private:
  std::promise<QueryStats> done_;
};

/// Documents' token ids, the same for the whole run.
std::vector<std::vector<std::int32_t>> make_documents(const Options& options, std::int32_t vocab) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int32_t> id(8, vocab - 1);
  std::vector<std::vector<std::int32_t>> documents(static_cast<std::size_t>(options.documents));
  for (auto& d : documents) {
    d.resize(static_cast<std::size_t>(options.tokens));
    for (auto& t : d) t = id(random);
  }
  return documents;
}

class Bench {
 public:
  Bench(const Options& options, const fs::path& folder) : options_(options), folder_(folder) {
    const ModelShape& shape = options.quick ? kQwen05B : kLlama1B;
    shape_name_ = shape.name;
    config_ = take(parse_model_config(shape.config));
    tokenizer_ = std::shared_ptr<const Tokenizer>(take(load_tokenizer(options.tokenizer_dir)));
    documents_ = make_documents(options, tokenizer_->vocab_size());
  }

  std::string run() {
    open(/*dram_bytes=*/std::uint64_t{4} << 30);
    measure_ingest();
    const int rounds = options_.rounds ? options_.rounds : options_.quick ? 3 : 5;
    std::vector<double> recompute, dram, disk;
    query("reuse");  // every page touched once before anything counts
    for (int i = 0; i < rounds; ++i) {
      recompute.push_back(query("recompute"));
      dram.push_back(query("reuse"));
      if (last_plan_.fates.reused == 0) check(Status::internal("reuse found nothing cached"));
    }
    const Spread r = spread(recompute), d = spread(dram);
    row("recompute", r, r.median);
    row("reuse, DRAM", d, r.median);
    for (int i = 0; i < rounds; ++i) {
      reopen_cold();
      disk.push_back(query("reuse"));
      if (last_stats_.tier_blocks[static_cast<int>(Tier::kDisk)] == 0) check(Status::internal("nothing came from disk"));
    }
    row("reuse, cold disk", spread(disk), r.median);
    std::string out = "{\"settings\": {\"shape\": \"" + shape_name_ + "\", \"weights\": \"random bf16\", \"kv_dtype\": \"f16\", \"documents\": " +
                      std::to_string(options_.documents) + ", \"tokens_per_document\": " + std::to_string(options_.tokens) +
                      ", \"question_tokens\": " + std::to_string(options_.question_tokens) + ", \"threads\": " + std::to_string(num_threads()) +
                      "}, \"rows\": [" + rows_ + "]}";
    close();
    return out;
  }

 private:
  std::unique_ptr<Model> make_model() {
    return take(make_random_model(config_, {.weights = cpu_has_bf16() ? WeightFormat::kBF16 : WeightFormat::kF32, .kv_dtype = DType::kF16, .max_positions = 8192}, 1));
  }

  void open(std::uint64_t dram_bytes) {
    StoreOptions store;
    store.path = (folder_ / "store").string();
    store.dram_bytes = dram_bytes;
    store_ = take(open_store(store));
    if (!model_) model_ = make_model();
    auto format = take(PromptFormat::load(options_.tokenizer_dir, tokenizer_));
    engine_ = take(create_engine_from_parts({std::move(model_), tokenizer_, std::move(format)}, EngineOptions{}, *store_));
  }
  void close() {
    engine_->stop(std::chrono::seconds(10));
    engine_.reset();
    store_.reset();
  }
  /// A new process would find nothing in DRAM nor in the page cache. The model is made again: an engine owns its model.
  void reopen_cold() {
    close();
    ::sync();
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file()) continue;
      const int fd = ::open(entry.path().c_str(), O_RDONLY);
      if (fd < 0) continue;
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
    open(std::uint64_t{4} << 30);
  }

  /// The bare forward passes over the same documents, against Engine::prefill with capture, sketch and store.
  void measure_ingest() {
    const int bare_rounds = options_.quick ? 1 : 2;
    std::vector<double> bare, ingest;
    auto model = make_model();
    for (int round = 0; round < bare_rounds + 1; ++round) {
      const auto start = Clock::now();
      for (const auto& d : documents_) bare_prefill(*model, d);
      if (round > 0) bare.push_back(ms_since(start));
    }
    model.reset();
    // As the service does it: contexts queue up, so one is written while the next is computed.
    keys_.resize(documents_.size());
    segments_.resize(documents_.size());
    std::vector<std::promise<void>> done(documents_.size());
    const auto start = Clock::now();
    for (std::size_t i = 0; i < documents_.size(); ++i) {
      PrefillRequest request;
      request.token_ids = documents_[i];
      request.tenant = "bench";
      engine_->prefill(std::move(request), [this, i, &done](Result<PrefillResult> result) {
        auto prefilled = take(std::move(result));
        keys_[i] = prefilled.key;
        segments_[i] = prefilled.segment;
        done[i].set_value();
      });
    }
    for (auto& d : done) d.get_future().wait();
    ingest.push_back(ms_since(start));
    commit_documents();
    const Spread b = spread(bare), i = spread(ingest);
    rows_ += "{\"name\": \"ingest over bare prefill\", \"bare_ms\": " + std::to_string(b.median) + ", \"ingest_ms\": " + std::to_string(i.median) +
             ", \"ratio\": " + std::to_string(i.median / b.median) + ", \"tokens_per_second\": " +
             std::to_string(1000.0 * options_.documents * options_.tokens / i.median) + "}";
  }
  void bare_prefill(Model& model, const std::vector<std::int32_t>& tokens) {
    PagePool pool({config_.num_kv_heads, config_.head_dim, cached_kv_dtype(DType::kF16, config_.head_dim)}, 0);
    WorkingCache cache(pool, config_.num_layers);
    std::vector<std::int32_t> ids{1};
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
  /// Documents must name the contexts, or the store forgets them at the next start.
  void commit_documents() {
    for (std::size_t i = 0; i < documents_.size(); ++i) {
      DocumentManifest manifest;
      manifest.ns = "bench";
      manifest.id = "d" + std::to_string(i);
      manifest.status = DocumentStatus::kReady;
      DocumentChunk chunk;
      chunk.byte_begin = 0;
      chunk.byte_end = 1;
      chunk.token_ids = documents_[i];
      chunk.block_tokens = static_cast<std::uint32_t>(engine_->block_tokens_for(options_.tokens));
      chunk.key = keys_[i];
      manifest.chunks.push_back(std::move(chunk));
      check(store_->commit_document(std::move(manifest), "x", std::span(&segments_[i], 1)).status());
    }
    segments_.clear();
  }

  double query(const std::string& strategy) {
    QueryRequest request;
    request.id = "bench";
    request.tenant = "bench";
    request.prefix_ids = {1};
    for (std::size_t i = 0; i < documents_.size(); ++i) {
      QueryContext context;
      context.document_id = "d" + std::to_string(i);
      context.token_ids = documents_[i];
      context.key = keys_[i];
      request.contexts.push_back(std::move(context));
    }
    for (int i = 0; i < options_.question_tokens; ++i) request.suffix_ids.push_back(10 + i);
    request.cache.strategy = strategy;
    request.sampling.max_tokens = 1;
    request.sampling.ignore_eos = true;
    auto waiter = std::make_shared<Waiter>();
    take(engine_->query(std::move(request), waiter));
    last_stats_ = waiter->wait();
    last_plan_ = waiter->plan_;
    return last_stats_.ttft_ms;
  }

  void row(const std::string& name, const Spread& s, double recompute_ms) {
    const auto tier = [&](Tier t) { return std::to_string(last_stats_.tier_bytes[static_cast<int>(t)]); };
    rows_ += ", {\"name\": \"" + name + "\", \"ttft_ms\": " + std::to_string(s.median) + ", \"min_ms\": " + std::to_string(s.min) +
             ", \"max_ms\": " + std::to_string(s.max) + ", \"speedup_over_recompute\": " + std::to_string(recompute_ms / s.median) +
             ", \"load_ms\": " + std::to_string(last_stats_.load_ms) + ", \"prefill_ms\": " + std::to_string(last_stats_.prefill_ms) +
             ", \"dram_bytes\": " + tier(Tier::kDram) + ", \"disk_bytes\": " + tier(Tier::kDisk) + "}";
  }

  Options options_;
  fs::path folder_;
  std::string shape_name_, rows_;
  ModelConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<std::int32_t>> documents_;
  std::vector<ContextKey> keys_;
  std::vector<SegmentHandle> segments_;  // until documents name them
  ForwardWorkspace workspace_;
  QueryStats last_stats_;
  Plan last_plan_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  options.tokenizer_dir = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../../../models/demo";
  for (int i = 1; i < argc; ++i) {
    const auto number = [&] { return i + 1 < argc ? std::atoi(argv[++i]) : 0; };
    if (!std::strcmp(argv[i], "--quick")) options.quick = true;
    else if (!std::strcmp(argv[i], "--documents")) options.documents = number();
    else if (!std::strcmp(argv[i], "--tokens")) options.tokens = number();
    else if (!std::strcmp(argv[i], "--rounds")) options.rounds = number();
    else if (!std::strcmp(argv[i], "--model-dir") && i + 1 < argc) options.tokenizer_dir = argv[++i];
    else return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
  }
  std::string folder = (std::filesystem::temp_directory_path() / "quire-ttft-XXXXXX").string();
  if (!mkdtemp(folder.data())) return std::perror("mkdtemp"), 1;
  std::string out;
  {
    quire::bench::Bench bench(options, folder);
    out = bench.run();
  }
  std::filesystem::remove_all(folder);
  std::printf("%s\n", out.c_str());
  return 0;
}
