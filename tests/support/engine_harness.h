/// An engine over a temporary store and a small model, for tests of the whole pipeline.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/plan/strategy.h"
#include "engine/retrieve/retriever.h"
#include "tests/support/model_files.h"

namespace quire::testing {

inline fs::path demo_model() { return fs::path(QUIRE_SOURCE_DIR) / "models" / "demo"; }

/// A random f32 model over the embedded model's vocabulary, written as a Hugging Face folder.
class RandomModelFolder {
 public:
  explicit RandomModelFolder(std::uint32_t seed = 7, std::int32_t window = 512,
                             std::int32_t num_layers = 3) {
    for (const char* name : {"tokenizer.model", "tokenizer_config.json"})
      fs::copy_file(demo_model() / name, folder_.path() / name);
    write_file(
        folder_.path() / "config.json",
        R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","num_hidden_layers":)" +
            std::to_string(num_layers) +
            R"(,"hidden_size":48,"intermediate_size":80,
                   "num_attention_heads":6,"num_key_value_heads":2,"head_dim":16,)"
            R"("vocab_size":4096,"max_position_embeddings":)" +
            std::to_string(window) +
            R"(,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false,)"
            R"("bos_token_id":1,"eos_token_id":[2]})");
    auto config = load_model_config(folder_.path());
    if (!config.ok()) ADD_FAILURE() << config.status().to_string();
    write_file(folder_.path() / "model.safetensors",
               safetensors_bytes(llama_tensors(*config, seed)));
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

/// The result of one query.
struct Outcome {
  Status status;
  std::vector<std::int32_t> ids;
  std::string text;
  std::vector<TokenLogprobs> logprobs;
  Plan first_plan, plan;
  QueryStats stats;
  FinishReason reason = FinishReason::kError;
  int num_plans = 0;
};

/// Collects a query's events; wait() returns once on_done was called.
class CollectingSink : public QuerySink {
 public:
  void on_plan(const Plan& plan) override {
    outcome_.first_plan = plan;
    ++outcome_.num_plans;
    if (at_plan) at_plan();
  }
  bool on_token(std::int32_t id, std::string_view text) override {
    outcome_.ids.push_back(id);
    outcome_.text += text;
    return !at_token || at_token(static_cast<int>(outcome_.ids.size()));
  }
  void on_logprobs(const TokenLogprobs& logprobs) override {
    outcome_.logprobs.push_back(logprobs);
  }
  void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
               FinishReason reason) override {
    outcome_.status = status;
    outcome_.plan = plan;
    outcome_.stats = stats;
    outcome_.reason = reason;
    done_.set_value();
  }
  const Outcome& wait() {
    future_.wait();
    return outcome_;
  }
  bool done() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::function<void()> at_plan;  ///< called on the engine thread
  std::function<bool(int tokens)> at_token;

 private:
  Outcome outcome_;
  std::promise<void> done_;
  std::shared_future<void> future_ = done_.get_future().share();
};

/// Blocks one thread until another opens it.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mu_);
    open_ = true;
    cv_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mu_);
    cv_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable cv_;
  bool open_ = false;
};

inline std::vector<std::int32_t> random_ids(std::mt19937& rng, std::size_t n) {
  // Ids are above the control tokens of the vocabulary.
  std::uniform_int_distribution<std::int32_t> id(300, 4000);
  std::vector<std::int32_t> ids(n);
  for (auto& x : ids) x = id(rng);
  return ids;
}

inline std::unique_ptr<Store> open_test_store(
    const fs::path& path, std::uint64_t dram_bytes = 64u << 20,
    std::shared_ptr<ValueMemorySource> value_memory = nullptr) {
  StoreOptions options;
  options.path = path.string();
  options.dram_bytes = dram_bytes;
  options.value_memory = std::move(value_memory);
  auto store = open_store(options);
  if (!store.ok()) {
    ADD_FAILURE() << store.status().to_string();
    std::abort();
  }
  return std::move(*store);
}

inline std::unique_ptr<Engine> make_test_engine(
    const fs::path& model, Store& store, const std::function<void(EngineOptions&)>& edit = {}) {
  EngineOptions options;
  options.model_path = model.string();
  options.weights = "f32";
  options.kv_dtype = "f16";
  options.working_cache_bytes = 64 << 20;
  options.prefill_chunk_tokens = 64;
  options.num_threads = 1;
  if (edit) edit(options);
  auto engine = create_engine(options, store);
  if (!engine.ok()) {
    ADD_FAILURE() << engine.status().to_string();
    std::abort();
  }
  return std::move(*engine);
}

inline Result<PrefillResult> prefill_now(Engine& engine, std::vector<std::int32_t> ids,
                                         const std::string& tenant = "t") {
  std::promise<Result<PrefillResult>> done;
  PrefillRequest request;
  request.token_ids = std::move(ids);
  request.tenant = tenant;
  engine.prefill(std::move(request),
                 [&done](Result<PrefillResult> r) { done.set_value(std::move(r)); });
  return done.get_future().get();
}

/// Prefills and commits a document of one chunk, and returns its key.
inline ContextKey ingest(Engine& engine, Store& store, const std::string& id,
                         const std::vector<std::int32_t>& ids, const std::string& tenant = "t") {
  auto result = prefill_now(engine, ids, tenant);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  if (!result.ok()) return {};
  DocumentManifest manifest;
  manifest.ns = tenant;
  manifest.id = id;
  manifest.content_hash = "sha256:" + id;
  manifest.status = DocumentStatus::kReady;
  DocumentChunk chunk;
  chunk.byte_end = 4;
  chunk.block_tokens = static_cast<std::uint32_t>(
      engine.names().block_tokens_for(static_cast<std::int64_t>(ids.size())));
  chunk.key = result->key;
  chunk.token_ids = ids;
  manifest.chunks.push_back(chunk);
  auto committed = store.commit_document(manifest, "text", std::span(&result->segment, 1));
  EXPECT_TRUE(committed.ok()) << committed.status().to_string();
  return result->key;
}

struct Doc {
  std::string id;
  std::vector<std::int32_t> ids;
  std::optional<ContextKey> key;
};

/// Returns a strategy's options; those of `samkv` ask for its published form unless they name a
/// score.
inline PlugOptions published(std::string_view strategy, PlugOptions::Values options = {}) {
  if (strategy == "samkv") options.try_emplace("score", "keys");
  return PlugOptions(std::move(options));
}

inline QueryRequest make_request(const Engine& engine, const std::vector<Doc>& docs,
                                 std::vector<std::int32_t> question, const std::string& strategy) {
  QueryRequest r;
  r.id = "qry_test";
  auto prefix = engine.prompt_format().prefix();
  EXPECT_TRUE(prefix.ok());
  r.prefix_ids = *prefix;
  for (const Doc& d : docs) r.contexts.push_back({d.id, "", 0, d.ids, d.key});
  r.suffix_ids = std::move(question);
  r.tenant = "t";
  r.cache.strategy = strategy;
  r.cache.options = published(strategy);
  r.sampling.max_tokens = 12;
  r.sampling.ignore_eos = true;
  return r;
}

inline Outcome run_query(Engine& engine, QueryRequest request) {
  auto sink = std::make_shared<CollectingSink>();
  auto handle = engine.query(std::move(request), sink);
  if (!handle.ok()) {
    Outcome o;
    o.status = handle.status();
    return o;
  }
  return sink->wait();
}

/// Returns those of these options that the retriever has.
inline std::map<std::string, std::string, std::less<>> options_of(
    std::string_view retriever, std::map<std::string, std::string, std::less<>> options) {
  const std::span<const PlugOption> its = retrievers().options(retriever);
  std::erase_if(options, [&](const auto& given) {
    return std::none_of(its.begin(), its.end(),
                        [&](const PlugOption& known) { return known.name == given.first; });
  });
  return options;
}

/// Returns the strategies of this build, without "auto".
inline std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.emplace_back(strategy.name);
  return names;
}

/// Returns what a request may name as its strategy: those of this build and "auto".
inline std::vector<std::string> strategy_names_and_auto() {
  std::vector<std::string> names = strategy_names();
  names.emplace_back("auto");
  return names;
}

/// Returns the retrievers that need only the model.
inline std::vector<std::string> headless_retrievers() {
  std::vector<std::string> names = retrievers().names();
  std::erase_if(names, [](const std::string& name) {
    return capability<HeadDriven>(**retrievers().make(name)) != nullptr;
  });
  return names;
}

/// Returns a budget for any retriever that leaves out most of a prompt of a few hundred tokens.
inline std::map<std::string, std::string, std::less<>> small_budget(
    const std::string& tokens = "96") {
  return {{"decode_page", "16"},           {"decode_budget", tokens},  {"decode_sink", "16"},
          {"decode_window", "32"},         {"decode_generated", "16"}, {"decode_centroids", "24"},
          {"decode_least_centroids", "8"}, {"decode_resident", "none"}};
}

inline void expect_fates_sum(const Plan& plan) {
  EXPECT_EQ(plan.fates.total(), plan.prompt_tokens);
  EXPECT_EQ(plan.prefix_tokens + plan.document_tokens + plan.suffix_tokens, plan.prompt_tokens);
}

}  // namespace quire::testing
