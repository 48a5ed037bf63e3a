/// An engine with random weights of a published shape, over its own store, with cached documents.
/// Benchmarks ask it questions.
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

/// Returns the CPU time of all threads of this process so far.
double cpu_ms();

/// Ends the program with the reason if `status` is an error.
void check(const Status& status);
template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

double median(std::vector<double> values);

using TokenIds = std::vector<std::int32_t>;

/// A temporary folder that is removed with the object.
class TempFolder {
 public:
  explicit TempFolder(const std::string& name);
  ~TempFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Removes every file from the page cache, so that the next read goes to the disk.
void drop_page_cache(const std::filesystem::path& folder);

struct DocumentsOptions {
  ModelShape shape;
  std::string tokenizer_dir;  ///< only the vocabulary is used; token ids are random
  std::filesystem::path store_path;
  std::int64_t max_positions = 16384;
  std::uint64_t dram_bytes = std::uint64_t{4} << 30;
  std::int64_t prefix_cache_bytes = 0;             ///< EngineOptions::prefix_cache_bytes
  std::optional<ModelShape> draft = std::nullopt;  ///< also random weights
  std::string draft_weights = "same";              ///< EngineOptions::draft_weights
  bool draft_document_kv = false;                  ///< EngineOptions::draft_document_kv
  std::int32_t answer_tokens = 1;
  /// Runs the model, with bf16 weights and KV; null: the CPU.
  std::shared_ptr<Compute> compute = nullptr;
};

struct Answered {
  QueryStats stats;
  Plan plan;
  /// CPU time of all threads of this process, from the question to the first token.
  double first_token_cpu_ms = 0;
  std::int64_t bytes_read() const;  ///< KV bytes from any tier
};

/// Cached documents and the engine that answers questions over them. Threads: one.
class CachedDocuments {
 public:
  explicit CachedDocuments(const DocumentsOptions& options);
  ~CachedDocuments();

  const ModelConfig& config() const { return config_; }
  const EngineInfo& info() const { return engine_->info(); }
  Store& store() { return *store_; }
  std::unique_ptr<Model> make_model() const;
  /// Returns the number of ids that random documents are made of.
  std::int32_t vocab_size() const;

  /// Prefills and stores all documents, which queue up as in the service. Returns the milliseconds
  /// that this took.
  double ingest(std::vector<TokenIds> documents);
  std::size_t size() const { return documents_.size(); }
  const TokenIds& document(std::size_t i) const { return documents_[i]; }

  /// Sets the number of answer tokens of later questions.
  void set_answer_tokens(std::int32_t tokens) { options_.answer_tokens = tokens; }
  /// The source of the documents: the store, or text without any use of the store.
  enum class From : std::uint8_t { kStore, kText };
  /// Answers the question over these documents in this order.
  Answered ask(std::span<const std::size_t> documents, const TokenIds& question,
               const CacheOptions& cache, From from = From::kStore);

  /// Makes a new store and engine over the same folder, without a DRAM tier. Later reads go to the
  /// disk, and to the device itself after drop_page_cache().
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

/// Returns shapes by short name: tiny, qwen, llama; several are separated by commas. An unknown
/// name ends the program.
std::vector<ModelShape> shapes_named(const std::string& names);

/// Returns `n` ids of a vocabulary, without the special ones at its front.
TokenIds random_ids(std::int64_t n, std::int32_t vocab_size, std::uint32_t seed);

/// Returns the folder of the tokenizer that all random models use, found from the running program.
std::string default_tokenizer_dir();

}  // namespace quire::bench
