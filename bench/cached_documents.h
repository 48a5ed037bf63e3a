/// An engine on random weights of a published shape, over a store of its own, with documents
/// cached: what benchmarks ask questions of.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/model_shapes.h"
#include "cachestore/store.h"
#include "engine/engine.h"
#include "engine/model/model.h"

namespace quire::bench {

using Clock = std::chrono::steady_clock;
inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Of all threads of this process so far.
double cpu_ms();

/// Ends the program with the reason.
void check(const Status& status);
template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

double median(std::vector<double> values);

using TokenIds = std::vector<std::int32_t>;

/// A folder that goes with the object.
class TempFolder {
 public:
  explicit TempFolder(const std::string& name);
  ~TempFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Takes every file out of the page cache, so that the next read goes to the disk.
void drop_page_cache(const std::filesystem::path& folder);

struct DocumentsOptions {
  ModelShape shape;
  std::string tokenizer_dir;  ///< the vocabulary only; token ids are random
  std::filesystem::path store_path;
  std::int64_t max_positions = 16384;
  std::uint64_t dram_bytes = std::uint64_t{4} << 30;
  std::int64_t prefix_cache_bytes = 0;             ///< EngineOptions::prefix_cache_bytes
  std::optional<ModelShape> draft = std::nullopt;  ///< random weights, too
  std::string draft_weights = "same";              ///< EngineOptions::draft_weights
  bool draft_document_kv = false;                  ///< EngineOptions::draft_document_kv
  std::int32_t answer_tokens = 1;
  /// Who runs the model, with bf16 weights and KV; null: the CPU
  std::shared_ptr<Compute> compute = nullptr;
};

struct Answered {
  QueryStats stats;
  Plan plan;
  /// Of all threads of this process, from the question to the first token
  double first_token_cpu_ms = 0;
  std::int64_t bytes_read() const;  ///< KV, from any tier
};

/// Threads: one.
class CachedDocuments {
 public:
  explicit CachedDocuments(const DocumentsOptions& options);
  ~CachedDocuments();

  const ModelConfig& config() const { return config_; }
  const EngineInfo& info() const { return engine_->info(); }
  Store& store() { return *store_; }
  std::unique_ptr<Model> make_model() const;
  /// Ids that random documents are made of.
  std::int32_t vocab_size() const;

  /// Prefills and stores all of them, as the service does: they queue up. Returns the milliseconds
  /// this took.
  double ingest(std::vector<TokenIds> documents);
  std::size_t size() const { return documents_.size(); }
  const TokenIds& document(std::size_t i) const { return documents_[i]; }

  /// Of the questions from now on.
  void set_answer_tokens(std::int32_t tokens) { options_.answer_tokens = tokens; }
  /// The question over these documents in this order; one token is answered. kText: documents come
  /// as text, nothing of the store is used.
  enum class From : std::uint8_t { kStore, kText };
  Answered ask(std::span<const std::size_t> documents, const TokenIds& question,
               const CacheOptions& cache, From from = From::kStore);

  /// A new store and engine over the same folder without a DRAM tier: from now on every read goes
  /// to the disk, and to the device itself after drop_page_cache().
  void reopen_without_dram();
  void drop_page_cache() const { bench::drop_page_cache(options_.store_path); }

 private:
  void open(std::unique_ptr<Model> model);
  void close();
  void commit_documents(const std::vector<SegmentHandle>& segments,
                        const std::vector<SegmentHandle>& companions);

  DocumentsOptions options_;
  ModelConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<TokenIds> documents_;
  std::vector<ContextKey> keys_;
};

/// By short name: tiny, qwen, llama; several with commas. Ends the program when a name is unknown.
std::vector<ModelShape> shapes_named(const std::string& names);

/// `n` ids of a vocabulary, without the special ones at its front.
TokenIds random_ids(std::int64_t n, std::int32_t vocab_size, std::uint32_t seed);

/// The folder with the tokenizer that all random models use, seen from the running program.
std::string default_tokenizer_dir();

}  // namespace quire::bench
