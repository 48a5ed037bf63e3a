#include "bench/cached_documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <random>
#include <sstream>

#include "base/clock.h"
#include "engine/engine_parts.h"
#include "engine/model/benchmark_model.h"

namespace quire::bench {
namespace fs = std::filesystem;
namespace {

constexpr const char* kNamespace = "bench";
/// Questions with texts use this namespace, so that equal content of the other one is not found.
constexpr const char* kStrangers = "bench-texts";

/// Waits for the end of a query and keeps its numbers.
class Waiter final : public QuerySink {
 public:
  void on_plan(const Plan&) override {}
  bool on_token(std::int32_t, std::string_view) override {
    if (first_token_cpu_ms_ == 0) first_token_cpu_ms_ = cpu_ms() - started_cpu_ms_;
    return true;
  }
  void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
               FinishReason) override {
    check(status);
    done_.set_value({stats, plan, first_token_cpu_ms_});
  }
  Answered wait() { return done_.get_future().get(); }

 private:
  const double started_cpu_ms_ = cpu_ms();
  double first_token_cpu_ms_ = 0;
  std::promise<Answered> done_;
};

}  // namespace

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  std::_Exit(1);  // exits at once, because an engine's threads may be running
}

double cpu_ms() { return 1000.0 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

TempFolder::TempFolder(const std::string& name) {
  std::string pattern = (fs::temp_directory_path() / (name + "-XXXXXX")).string();
  if (mkdtemp(pattern.data()) == nullptr) check(Status::io("cannot make a folder like " + pattern));
  path_ = pattern;
}
TempFolder::~TempFolder() {
  std::error_code ec;
  fs::remove_all(path_, ec);
}

void drop_page_cache(const fs::path& folder) {
  ::sync();
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY);
    if (fd < 0) continue;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

std::int64_t Answered::bytes_read() const {
  std::int64_t n = 0;
  for (const std::int64_t bytes : stats.tier_bytes) n += bytes;
  return n;
}

CachedDocuments::CachedDocuments(const DocumentsOptions& options)
    : options_(options),
      config_(take(parse_model_config(options.shape.config))),
      tokenizer_(take(load_tokenizer(options.tokenizer_dir))) {
  open(make_model());
}

CachedDocuments::~CachedDocuments() { close(); }

std::unique_ptr<Model> CachedDocuments::make_model() const {
  if (options_.compute != nullptr) {
    return take(make_benchmark_model(config_,
                                     {.weights = WeightFormat::kBF16,
                                      .kv_dtype = DType::kBF16,
                                      .max_positions = options_.max_positions},
                                     1, options_.compute));
  }
  const WeightFormat weights = cpu_has_bf16() ? WeightFormat::kBF16 : WeightFormat::kF32;
  return take(make_random_model(
      config_,
      {.weights = weights, .kv_dtype = DType::kF16, .max_positions = options_.max_positions}, 1));
}

std::int32_t CachedDocuments::vocab_size() const {
  return std::min(tokenizer_->vocab_size(), config_.vocab_size);
}

void CachedDocuments::open(std::unique_ptr<Model> model) {
  StoreOptions store;
  store.path = options_.store_path.string();
  store.dram_bytes = options_.dram_bytes;
  store_ = take(open_store(store));
  EngineOptions engine;
  engine.prefix_cache_bytes = options_.prefix_cache_bytes;
  auto format = take(PromptFormat::load(options_.tokenizer_dir, tokenizer_));
  EngineParts parts{std::move(model), tokenizer_, std::move(format), nullptr, nullptr};
  if (options_.draft) {
    WeightFormat weights = cpu_has_bf16() ? WeightFormat::kBF16 : WeightFormat::kF32;
    if (options_.draft_weights == "w8a8") weights = WeightFormat::kW8A8;
    if (options_.draft_weights == "int8") weights = WeightFormat::kInt8;
    parts.draft = take(make_random_model(
        take(parse_model_config(options_.draft->config)),
        {.weights = weights, .kv_dtype = DType::kF16, .max_positions = options_.max_positions}, 2));
    parts.draft_tokenizer = take(load_tokenizer(options_.tokenizer_dir));
    engine.draft_wait_ms = 600000;
    engine.draft_document_kv = options_.draft_document_kv;
  }
  engine_ = take(create_engine_from_parts(std::move(parts), engine, *store_));
}

void CachedDocuments::close() {
  engine_->stop(std::chrono::seconds(10));
  engine_.reset();
  store_.reset();
}

/// Makes the model again, because an engine owns its model.
void CachedDocuments::reopen_without_dram() {
  close();
  options_.dram_bytes = 0;
  drop_page_cache();
  open(make_model());
}

double CachedDocuments::ingest(std::vector<TokenIds> documents) {
  documents_ = std::move(documents);
  keys_.resize(documents_.size());
  std::vector<SegmentHandle> segments(documents_.size()), companions(documents_.size());
  std::vector<std::promise<void>> done(documents_.size());
  const auto start = Clock::now();
  for (std::size_t i = 0; i < documents_.size(); ++i) {
    PrefillRequest request;
    request.token_ids = documents_[i];
    request.tenant = kNamespace;
    engine_->prefill(std::move(request),
                     [this, i, &done, &segments, &companions](Result<PrefillResult> result) {
                       auto prefilled = take(std::move(result));
                       keys_[i] = prefilled.key;
                       segments[i] = prefilled.segment;
                       companions[i] = prefilled.companion;
                       done[i].set_value();
                     });
  }
  for (auto& d : done) d.get_future().wait();
  const double ms = ms_since(start);
  commit_documents(segments, companions);
  return ms;
}

/// Commits documents that name the contexts. Without them the store drops the contexts at the next
/// start.
void CachedDocuments::commit_documents(const std::vector<SegmentHandle>& segments,
                                       const std::vector<SegmentHandle>& companions) {
  for (std::size_t i = 0; i < documents_.size(); ++i) {
    DocumentManifest manifest;
    manifest.ns = kNamespace;
    manifest.id = "d" + std::to_string(i);
    manifest.status = DocumentStatus::kReady;
    DocumentChunk chunk;
    chunk.byte_begin = 0;
    chunk.byte_end = 1;
    chunk.token_ids = documents_[i];
    chunk.block_tokens = static_cast<std::uint32_t>(
        engine_->names().block_tokens_for(static_cast<std::int64_t>(documents_[i].size())));
    chunk.key = keys_[i];
    manifest.chunks.push_back(std::move(chunk));
    std::vector<SegmentHandle> own;
    own.reserve(2);
    own.push_back(segments[i]);
    if (companions[i]) {
      manifest.companions.push_back(companions[i]->key);
      own.push_back(companions[i]);
    }
    check(store_->commit_document(std::move(manifest), "x", own).status());
  }
}

Answered CachedDocuments::ask(std::span<const std::size_t> documents, const TokenIds& question,
                              const CacheOptions& cache, From from) {
  QueryRequest request;
  request.id = "bench";
  request.tenant = from == From::kStore ? kNamespace : kStrangers;
  request.prefix_ids = {1};
  for (const std::size_t i : documents) {
    QueryContext context;
    context.token_ids = documents_[i];
    if (from == From::kStore) {
      context.document_id = "d" + std::to_string(i);
      context.key = keys_[i];
    }
    request.contexts.push_back(std::move(context));
  }
  request.suffix_ids = question;
  request.cache = cache;
  request.sampling.max_tokens = options_.answer_tokens;
  request.sampling.ignore_eos = true;
  auto waiter = std::make_shared<Waiter>();
  take(engine_->query(std::move(request), waiter));
  return waiter->wait();
}

std::vector<ModelShape> shapes_named(const std::string& names) {
  std::vector<ModelShape> shapes;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "tiny")
      shapes.push_back(kTiny);
    else if (name == "qwen")
      shapes.push_back(kQwen05B);
    else if (name == "llama")
      shapes.push_back(kLlama1B);
    else
      check(Status::invalid("--shape", "'" + name + "' is not known: tiny, qwen or llama"));
  }
  if (shapes.empty()) check(Status::invalid("--shape", "names none of tiny, qwen, llama"));
  return shapes;
}

TokenIds random_ids(std::int64_t n, std::int32_t vocab_size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> id(8, vocab_size - 1);
  TokenIds ids(static_cast<std::size_t>(n));
  for (auto& t : ids) t = id(random);
  return ids;
}

std::string default_tokenizer_dir() {
  return (fs::read_symlink("/proc/self/exe").parent_path() / "../../../models/demo").string();
}

}  // namespace quire::bench
