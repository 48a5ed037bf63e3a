#include "engine/engine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "base/index.h"
#include "base/log.h"
#include "base/system/free_memory.h"
#include "base/words.h"
#include "engine/api/speed_meter.h"
#include "engine/cache/page_pool.h"
#include "engine/calibrate/citation_calibration.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/calibrate/stable_layers.h"
#include "engine/chat/tools.h"
#include "engine/draft/draft.h"
#include "engine/engine_checks.h"
#include "engine/engine_parts.h"
#include "engine/model/model.h"
#include "engine/plan/plan_builder.h"
#include "engine/plan/store_lookup.h"
#include "engine/prefill/kv_writer.h"
#include "engine/prefill/record_kind.h"
#include "engine/query/query_resources.h"
#include "engine/query/recall.h"
#include "engine/record/fingerprint.h"
#include "engine/residency/device_pool.h"
#include "engine/residency/memory_speed.h"
#include "engine/residency/transfer_streams.h"
#include "engine/retrieve/head/retrieval_head.h"
#include "engine/sample/token_mask.h"
#include "engine/schedule/prefill_recall.h"
#include "engine/schedule/scheduler.h"
#include "engine/select/resident_means.h"
#include "engine/stages/prompt_stage.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// One brings what the next step needs while another's copy is under way
constexpr std::int32_t kCopyStreams = 2;
/// Prompt tokens of a piece: as many rows as weights have to be read for on a CPU
constexpr std::int32_t kCpuChunk = 512;

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::unique_ptr<Model> model, std::shared_ptr<const Tokenizer> tokenizer,
             PromptFormat format, Store& store)
      : model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        format_(std::move(format)),
        store_(store) {}
  ~EngineImpl() override { stop(std::chrono::milliseconds(0)); }

  /// draft: null, or a model that looks ahead, with its tokenizer.
  Status init(const EngineOptions& options, std::unique_ptr<Model> draft,
              std::unique_ptr<Tokenizer> draft_tokenizer);

  const EngineInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const PromptFormat& prompt_format() const override { return format_; }
  const PromptFormat& prompt_format_of(std::string_view ns) const override {
    const auto own = namespaces_.find(ns);
    return own == namespaces_.end() ? format_ : own->second.format;
  }
  std::string document_fingerprint(std::string_view ns) const override {
    const auto own = namespaces_.find(ns);
    return info_.fingerprint + (own == namespaces_.end() ? "" : own->second.mark);
  }
  const ContextNames& names() const override { return core_.facts.names; }

  void prefill(PrefillRequest request, std::function<void(Result<PrefillResult>)> done) override;
  Result<QueryHandle> query(QueryRequest request, std::shared_ptr<QuerySink> sink) override;
  void embed(EmbedRequest request, std::function<void(Result<std::vector<float>>)> done) override;
  Result<Plan> plan(const QueryRequest& request) override;
  EngineLoad load() const override {
    return {.queries_running = scheduler_->queries_running(),
            .queries_waiting = scheduler_->queries_waiting(),
            .expected_wait = scheduler_->expected_wait(),
            .prefill_tokens_per_second = 1000 * meter_.speeds().prefill_tokens_per_ms,
            .decode_tokens_per_second = 1000 * meter_.decode_tokens_per_ms(),
            .decode_steps = scheduler_->decode_steps()};
  }
  std::vector<PoolUse> memory() const override {
    std::vector<PoolUse> out = {{"working_cache", pool_->bytes_in_use(PageTier::kDevice),
                                 pool_->max_bytes(PageTier::kDevice)}};
    if (pool_->has_host_tier())
      out.push_back(
          {"host_cache", pool_->bytes_in_use(PageTier::kHost), pool_->max_bytes(PageTier::kHost)});
    if (prompts_) out.push_back({"prompt_file", prompts_->bytes(), prompts_->max_bytes()});
    out.push_back({"device_cache", device_->bytes_in_use(), device_->max_bytes()});
    return out;
  }
  std::vector<RequestInfo> requests() const override { return scheduler_->requests(); }
  bool cancel(const std::string& id) override { return scheduler_->cancel(id); }
  void stop(std::chrono::milliseconds grace) override;

 private:
  Status make_core(const EngineOptions& options);
  Status plan_device(const EngineOptions& options, const PageFormat& page);
  Status make_draft(const EngineOptions& options, std::unique_ptr<Model> model,
                    std::unique_ptr<Tokenizer> tokenizer);
  Status make_head(const EngineOptions& options);
  Status make_namespaces(const EngineOptions& options);
  void load_prompts(const EngineOptions& options);
  Status warm_up();
  Status measure_memory();

  std::unique_ptr<Model> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const TokenTrie> token_trie_;
  PromptFormat format_;
  struct Namespace {
    PromptFormat format;
    std::string mark;  ///< "." and a digest of the words around documents; empty: the service's
  };
  std::map<std::string, Namespace, std::less<>> namespaces_;  ///< those with words of their own
  Store& store_;
  EngineInfo info_;
  SpeedMeter meter_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<ResidentMeans> means_;
  std::unique_ptr<PrefixCache> prefixes_;
  std::unique_ptr<PromptFile> prompts_;
  std::unique_ptr<KvWriter> writer_;
  std::unique_ptr<Draft> draft_;
  std::unique_ptr<RetrievalHead> head_;
  std::unique_ptr<DevicePool> device_;
  TransferStreams transfers_{{}, kCopyStreams};
  QueryResources core_;
  std::string fingerprint_text_;           ///< recorded with each segment
  std::unique_ptr<Scheduler> scheduler_;   // its thread uses everything above
  std::unique_ptr<PrefillRecall> recall_;  // null: there is no shared tier
};

Status EngineImpl::make_core(const EngineOptions& options) {
  const ModelConfig& config = model_->config();
  EngineFacts& facts = core_.facts;
  facts = facts_of(*model_, *tokenizer_, format_, options.block_tokens, options.layers_per_value);
  facts.words = [tokenizer = tokenizer_,
                 language = options.language](std::span<const std::int32_t> ids) {
    return token_words(*tokenizer, ids, language);
  };
  facts.title_words = [language = options.language](std::string_view title) {
    Stemmer stemmer(language);
    return title_words(title, stemmer);
  };
  // The prompts a model with a small window is made for are to be answered from the cache too.
  facts.small_context_tokens = std::min(options.small_context_tokens, facts.window / 4);
  facts.stable_layers = default_stable_layers(config.model_type, config.num_layers);
  if (const auto calibrated = load_stable_layers(store_, facts.names.fingerprint(),
                                                 config.num_layers);
      calibrated.ok()) {
    facts.stable_layers = *calibrated;
  } else if (calibrated.code() != Code::kNotFound) {
    log_warning("the stored calibration is not readable: run 'quire model calibrate' again",
                {{"reason", calibrated.status().to_string()}});
  }
  if (auto heads = load_selection_heads(store_, facts.names.fingerprint(), config.num_layers,
                                        config.num_heads);
      heads.ok()) {
    facts.selection_heads = std::move(*heads);
  } else if (heads.status().code() != Code::kNotFound) {
    log_warning("the stored retrieval heads are not readable: run 'quire model calibrate' again",
                {{"reason", heads.status().to_string()}});
  }
  if (const auto confidence = load_citation_confidence(store_, facts.names.fingerprint());
      confidence.ok()) {
    info_.citation_confidence = *confidence;
  } else if (confidence.code() != Code::kNotFound) {
    log_warning(
        "the stored confidence of citations is not readable: run 'quire model calibrate' "
        "again",
        {{"reason", confidence.status().to_string()}});
  }
  const std::shared_ptr<ComputeMemory> memory = model_->compute().memory();
  std::int64_t budget = options.working_cache_bytes > 0 ? options.working_cache_bytes
                                                        : available_memory() / 4;
  // f32 weights are the exact path: nothing is rounded for speed. What is fastest for a CPU says
  // nothing about a device.
  const bool exact = model_->options().weights == WeightFormat::kF32 || memory != nullptr;
  QUIRE_RETURN_IF_ERROR(check_device_kv(options, config.head_dim, memory != nullptr));
  const DType cached = options.device_kv_dtype == "f8" ? DType::kF8
                       : exact                         ? facts.shape.dtype
                               : cached_kv_dtype(facts.shape.dtype, config.head_dim);
  info_.cached_kv_dtype = dtype_name(cached);
  const PageFormat page{config.num_kv_heads, config.head_dim, cached};
  if (memory != nullptr) {
    QUIRE_RETURN_IF_ERROR(plan_device(options, page));
    budget = info_.device_memory->cache_bytes;
  }
  // What stays "on the device" of a CPU is where it was: a limit would only make requests wait for
  // each other.
  std::int64_t retrieved = std::max<std::int64_t>(0, options.device_cache_bytes), host = 0;
  facts.split_kv = model_->compute().splits_kv();
  if (memory != nullptr) {
    retrieved = info_.device_memory->retrieved_bytes;
    host = facts.split_kv                 ? 0
           : options.host_cache_bytes < 0 ? available_memory() / 4
                                          : options.host_cache_bytes;
  }
  QUIRE_ASSIGN_OR_RETURN(
      std::shared_ptr<ComputeMemory> page_memory,
      model_->compute().page_memory(page.num_kv_heads, page.page_bytes() / page.num_kv_heads));
  pool_ = std::make_unique<PagePool>(page, budget, std::move(page_memory), host);
  const std::int64_t kept = options.prefix_cache_bytes < 0 ? budget / 4
                                                           : options.prefix_cache_bytes;
  if (kept > 0) prefixes_ = std::make_unique<PrefixCache>(*pool_, config.num_layers, kept);
  core_.prefixes = prefixes_.get();
  core_.model = model_.get();
  core_.store = &store_;
  core_.tokenizer = tokenizer_.get();
  token_trie_ = std::make_unique<const TokenTrie>(*tokenizer_, tool_marker_ids(*tokenizer_));
  core_.token_trie = token_trie_.get();
  core_.pool = pool_.get();
  core_.meter = &meter_;
  device_ = std::make_unique<DevicePool>(retrieved, memory);
  core_.device = device_.get();
  core_.device_requests = options.device_requests;
  facts.device.cache_bytes = retrieved;
  facts.device.requests = options.device_requests;
  // Several devices read their shares at the same time.
  facts.device.weight_bytes = model_->decode_weight_bytes() / model_->compute().devices();
  facts.device.row_bytes = pool_->format().page_bytes() / kPageTokens;
  facts.device.num_layers = config.num_layers;
  if (memory != nullptr)
    facts.choosing = RetrieveShape{.num_layers = config.num_layers,
                                   .num_heads = config.num_heads,
                                   .num_kv_heads = config.num_kv_heads,
                                   .head_dim = config.head_dim};
  QUIRE_RETURN_IF_ERROR(check_record_names(options.records, "model.records"));
  core_.more_records = options.records;
  core_.transfers = &transfers_;
  core_.stop_strings = format_.stop_strings();
  core_.chunk_tokens = info_.device_memory                ? info_.device_memory->chunk_tokens
                       : options.prefill_chunk_tokens > 0 ? options.prefill_chunk_tokens
                                                          : kCpuChunk;
  fingerprint_text_ = facts.names.fingerprint_text();
  return {};
}

/// The weights are loaded: what the device has left is shared out.
Status EngineImpl::plan_device(const EngineOptions& options, const PageFormat& page) {
  Compute& compute = model_->compute();
  ComputeMemory& memory = *compute.memory();
  constexpr const char* kSetting = "model.working_cache_bytes";
  // The first device has so many of the heads of all KV, and no other one has more.
  const bool split = compute.splits_kv();
  const std::int64_t heads = page.num_kv_heads,
                     its_heads = (heads + compute.devices() - 1) / compute.devices(),
                     wanted = split ? options.working_cache_bytes / heads * its_heads
                                    : options.working_cache_bytes;
  if (split) QUIRE_RETURN_IF_ERROR(check_split_caches(options));
  QUIRE_RETURN_IF_ERROR(memory.budget(wanted, kSetting).status());
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t left, memory.budget(0, kSetting));
  const MemoryRequest wishes{.model = model_->config(),
                             .window = core_.facts.window,
                             .kv_row_bytes = page.page_bytes() / kPageTokens,
                             .cache_bytes = wanted,
                             .retrieved_bytes = split ? 0 : options.device_cache_bytes,
                             .chunk_tokens = options.prefill_chunk_tokens,
                             .devices = compute.devices(),
                             .split_kv = split};
  QUIRE_ASSIGN_OR_RETURN(MemoryPlan plan, plan_memory(left, wishes));
  if (split) {
    // The others compute with parts of what the first one does.
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t theirs, compute.share_budget(kSetting));
    const std::int64_t most = std::max<std::int64_t>(0, theirs - plan.compute_bytes);
    if (wanted > most)
      return Status(Code::kResourceExhausted,
                    "model.working_cache_bytes asks for " + std::to_string(wanted) +
                        " bytes on each GPU, and one of them has " + std::to_string(most) +
                        " left; lower it",
                    kSetting);
    plan.cache_bytes = std::min(plan.cache_bytes, most) / its_heads * heads;
  }
  info_.device_memory = plan;
  if (plan.means_bytes > 0)
    means_ = std::make_unique<ResidentMeans>(model_->compute(), model_->rope(), plan.means_bytes);
  core_.means = means_.get();
  log_info("memory of the device", {{"kv_dtype", std::string(dtype_name(page.dtype))},
                                    {"left_bytes", std::to_string(plan.left_bytes)},
                                    {"cache_bytes", std::to_string(plan.cache_bytes)},
                                    {"compute_bytes", std::to_string(plan.compute_bytes)},
                                    {"means_bytes", std::to_string(plan.means_bytes)},
                                    {"retrieved_bytes", std::to_string(plan.retrieved_bytes)},
                                    {"chunk_tokens", std::to_string(plan.chunk_tokens)},
                                    {"decode_rows", std::to_string(plan.decode_rows)}});
  return {};
}

Status EngineImpl::make_draft(const EngineOptions& options, std::unique_ptr<Model> model,
                              std::unique_ptr<Tokenizer> tokenizer) {
  core_.draft_wait_ms = options.draft_wait_ms;
  if (!model && options.draft_path.empty()) {
    return options.draft_document_kv
               ? Status::invalid("model.draft_document_kv",
                                 "needs a draft: set model.draft_path, or switch it off")
               : Status();
  }
  DraftOptions draft;
  draft.path = options.draft_path;
  draft.model = model_->options();
  draft.model.max_positions = 0;
  draft.model.first_layers = options.draft_layers;
  if (options.draft_weights != "same") {
    const auto weights = parse_weights(options.draft_weights, false);
    if (!weights.ok())
      return Status::invalid(
          "model.draft_weights",
          "'" + options.draft_weights +
              "' is not a weight format; use same, auto, f32, bf16, int8, w8a8 or w4");
    draft.model.weights = *weights;
  }
  if (options.draft_document_kv) draft.store = &store_;
  if (model) {
    draft_ = quire::make_draft(draft, std::move(model), std::move(tokenizer), tokenizer_);
  } else {
    auto loaded = load_draft(draft, tokenizer_);
    if (!loaded.ok() && loaded.status().field() == "first_layers")
      return Status::invalid("model.draft_layers", loaded.status().message());
    if (!loaded.ok())
      return Status::invalid(
          "model.draft_path",
          "the draft in " + options.draft_path + " cannot be used: " + loaded.status().to_string());
    draft_ = std::move(*loaded);
  }
  core_.draft = draft_.get();
  if (draft_->same_tokens() && draft_->reader().compute().memory() == nullptr)
    core_.facts.draft_window = draft_->reader().rope().max_positions();
  info_.draft_path = options.draft_path;
  info_.draft_max_model_len = draft_->reader().rope().max_positions();
  info_.draft_fingerprint = kv_fingerprint("quire-draft", draft_->reader(), draft_->tokenizer(), {})
                                .hex();
  info_.draft_kv_bytes_per_token = draft_->document_bytes_per_token();
  return {};
}

Status EngineImpl::make_head(const EngineOptions& options) {
  if (options.retrieval_head_path.empty()) return {};
  auto loaded = RetrievalHead::load(options.retrieval_head_path, *model_);
  if (!loaded.ok()) {
    return Status::invalid("model.retrieval_head_path",
                           "the retrieval head in " + options.retrieval_head_path +
                               " cannot be used: " + loaded.status().to_string());
  }
  head_ = std::move(*loaded);
  core_.head = head_.get();
  core_.facts.retrieval_head = true;
  if (core_.facts.choosing) core_.facts.choosing->head = head_.get();
  info_.retrieval_head_path = options.retrieval_head_path;
  Sha256 head;
  head.update(std::as_bytes(std::span(head_->digest())))
      .update_u64(static_cast<std::uint64_t>(head_->config().trained_positions))
      .update_u64(head_->config().embeds_only ? 1 : 0);
  info_.retrieval_head_fingerprint = head.finish().hex();
  return {};
}

Status EngineImpl::make_namespaces(const EngineOptions& options) {
  for (const auto& [name, wording] : options.namespace_wordings) {
    auto format = format_.with(wording);
    if (!format.ok()) return format.status().with_context("namespace " + name);
    std::string mark;
    if (wording.document != PromptWording().document)
      mark = "." + sha256(wording.document).hex().substr(0, 8);
    namespaces_.emplace(name, Namespace{std::move(*format), std::move(mark)});
  }
  return {};
}

/// Reads the prompts that were kept before the last stop. Without them prompts are computed anew,
/// so no fault of the file keeps the engine from starting.
void EngineImpl::load_prompts(const EngineOptions& options) {
  if (!prefixes_ || options.prompt_file.empty() || options.prompt_file_bytes <= 0) return;
  const auto started = Clock::now();
  auto file = PromptFile::open(options.prompt_file,
                               {.fingerprint = core_.facts.names.fingerprint(),
                                .page = pool_->format(),
                                .num_layers = core_.facts.shape.num_layers},
                               options.prompt_file_bytes, core_.waker);
  if (!file.ok()) {
    log_warning("prompts are not kept on disk", {{"reason", file.status().to_string()}});
    return;
  }
  prompts_ = std::move(*file);
  prefixes_->save_to(prompts_->num_slots());
  std::int64_t pages = 0;
  if (pool_->synchronize().ok()) {
    prompts_->load([&](std::int32_t slot, const PromptPage& page) {
      const bool added = prefixes_->restore(slot, page.key, page.parent, page.token_ids, page.rows);
      pages += added ? 1 : 0;
      return added;
    });
  }
  core_.prompts = prompts_.get();
  if (pages > 0) {
    const auto ms = static_cast<std::int64_t>(ms_between(started, Clock::now()));
    log_info("kept prompts read",
             {{"tokens", std::to_string(pages * kPageTokens)}, {"ms", std::to_string(ms)}});
  }
}

/// One pass before the first request: kernels prepare their buffers, and predictions have a speed
/// to start from.
Status EngineImpl::warm_up() {
  const auto n = to_size(std::min<std::int64_t>(64, core_.facts.window));
  const std::vector<std::int32_t> ids(n, 0);
  std::vector<std::int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> logits(to_size(core_.facts.vocab_size));
  const auto last = static_cast<std::int32_t>(n) - 1;
  for (int round = 0; round < 2; ++round) {
    WorkingCache cache(*pool_, core_.facts.shape.num_layers);
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.logit_rows = std::span(&last, 1);
    request.logits = logits.data();
    const auto started = Clock::now();
    QUIRE_RETURN_IF_ERROR(forward(*model_, request, core_.workspace));
    if (round > 0)
      meter_.add_prefill(static_cast<std::int64_t>(n), ms_between(started, Clock::now()));
  }
  return {};
}

/// What `auto` decides by. Without it, it decides for dense decoding.
Status EngineImpl::measure_memory() {
  DeviceFacts& device = core_.facts.device;
  device.is_host = model_->compute().memory() == nullptr;
  const Result<MemorySpeed> speed = measure_memory_speed(model_->compute(), transfers_);
  if (speed.code() == Code::kDeviceLost) return speed.status();
  if (!speed.ok()) {
    log_warning("the speed of the device's memory could not be measured: decode = auto is dense",
                {{"reason", speed.status().to_string()}});
    return {};
  }
  device.read_bytes_per_ms = speed->read_bytes_per_ms;
  device.copy_bytes_per_ms = speed->copy_bytes_per_ms;
  return {};
}

Status EngineImpl::init(const EngineOptions& options, std::unique_ptr<Model> draft,
                        std::unique_ptr<Tokenizer> draft_tokenizer) {
  QUIRE_RETURN_IF_ERROR(make_core(options));
  const ModelConfig& config = model_->config();
  info_.model_name = options.model_name;
  info_.model_path = options.model_path;
  info_.model_type = config.model_type;
  info_.weights_format = weight_format_name(model_->options().weights);
  info_.kv_dtype = dtype_name(model_->options().kv_dtype);
  info_.isa = model_->compute().memory() == nullptr ? cpu_isa() : model_->compute().name();
  info_.fingerprint = fingerprint_text_;
  const Digest& fingerprint = core_.facts.names.fingerprint();
  std::transform(fingerprint.bytes.begin(), fingerprint.bytes.end(),
                 info_.fingerprint_digest.begin(),
                 [](std::byte b) { return static_cast<std::uint8_t>(b); });
  info_.num_parameters = config.num_parameters();
  info_.memory_bytes = model_->memory_bytes();
  info_.max_model_len = core_.facts.window;
  info_.kv_bytes_per_token = config.kv_bytes_per_token_layer(model_->options().kv_dtype) *
                             config.num_layers;
  info_.config = config;
  info_.block_tokens = options.block_tokens;
  info_.language = options.language;
  info_.stable_layers = core_.facts.stable_layers;
  info_.selection_heads = core_.facts.selection_heads;
  // The warm-up runs on the calling thread; its team must be as large as the engine thread's will
  // be.
  set_num_threads(options.num_threads);
  QUIRE_RETURN_IF_ERROR(warm_up());
  QUIRE_RETURN_IF_ERROR(measure_memory());
  QUIRE_RETURN_IF_ERROR(make_draft(options, std::move(draft), std::move(draft_tokenizer)));
  QUIRE_RETURN_IF_ERROR(make_head(options));
  QUIRE_RETURN_IF_ERROR(make_namespaces(options));
  writer_ = std::make_unique<KvWriter>(store_, model_->rope(), config.num_heads, fingerprint_text_);
  core_.writer = writer_.get();
  load_prompts(options);
  SchedulerLimits limits;
  limits.max_queue = options.max_queue;
  if (info_.device_memory) limits.max_running = info_.device_memory->decode_rows;
  limits.num_threads = options.num_threads;
  limits.unseen_decode_ms = options.unseen_decode_ms;
  limits.mixed_steps = options.mixed_steps;
  scheduler_ = std::make_unique<Scheduler>(core_, limits);
  if (store_.recalls())
    recall_ = std::make_unique<PrefillRecall>(
        store_, [this](const ContextKey& key, PrefillRequest request, PrefillTask::Done done) {
          scheduler_->submit(key, std::move(request), std::move(done));
        });
  log_info("engine ready", {{"model", info_.model_name},
                            {"fingerprint", info_.fingerprint},
                            {"weights", info_.weights_format},
                            {"kv_dtype", info_.kv_dtype},
                            {"isa", info_.isa},
                            {"window", std::to_string(info_.max_model_len)}});
  return {};
}

void EngineImpl::prefill(PrefillRequest request, std::function<void(Result<PrefillResult>)> done) {
  const EngineFacts& facts = core_.facts;
  if (request.token_ids.empty())
    return done(Status::invalid("token_ids", "a context needs at least one token"));
  const std::int64_t tokens = count_of(request.token_ids) + count_of(request.left_context);
  if (tokens + count_of(facts.ingest_prefix) > facts.window) {
    return done(Status::invalid("token_ids",
                                "the context has " + std::to_string(tokens) +
                                    " tokens with those before it, the model's window holds " +
                                    std::to_string(facts.window - count_of(facts.ingest_prefix)) +
                                    ": cut it into smaller chunks"));
  }
  for (const auto* ids : {&request.token_ids, &request.left_context}) {
    for (std::int32_t id : *ids) {
      if (id >= 0 && id < facts.vocab_size) continue;
      return done(Status::invalid("token_ids",
                                  "token id " + std::to_string(id) + " is outside the vocabulary"));
    }
  }
  const ContextKey key = facts.names.context_key(request.token_ids, request.tenant,
                                                 request.salt_digest, request.left_context);
  if (recall_ && !store_.peek_segment(key)) {
    RecallRequest wanted = recall_request(facts, meter_.speeds(), key, count_of(request.token_ids),
                                          count_of(request.left_context), request.tenant);
    // Nobody waits for ingest, so it has at least the time of an exchange.
    wanted.worth_ms = std::max(wanted.worth_ms,
                               static_cast<double>(store_.options().remote.timeout.count()));
    return recall_->start(std::move(wanted), std::move(request), std::move(done));
  }
  scheduler_->submit(key, std::move(request), std::move(done));
}

Result<QueryHandle> EngineImpl::query(QueryRequest request, std::shared_ptr<QuerySink> sink) {
  QUIRE_CHECK(sink != nullptr, "a query needs a sink");
  QUIRE_ASSIGN_OR_RETURN(const bool cut_first, cuts_prompt(core_, request));
  // Whether what stays fits the window is seen when it is known.
  if (cut_first) return scheduler_->submit(std::move(request), std::move(sink));
  // The plan is made when the query's turn comes; this finds what no waiting would change.
  QUIRE_RETURN_IF_ERROR(check_request(core_.facts, request));
  return scheduler_->submit(std::move(request), std::move(sink));
}

void EngineImpl::embed(EmbedRequest request, std::function<void(Result<std::vector<float>>)> done) {
  const EngineFacts& facts = core_.facts;
  if (request.token_ids.empty())
    return done(Status::invalid("input", "there is nothing to embed: the input has no tokens"));
  if (count_of(request.token_ids) > facts.window) {
    return done(window_exceeded_status({facts.window, count_of(request.token_ids)}, "input"));
  }
  for (const std::int32_t id : request.token_ids) {
    if (id < 0 || id >= facts.vocab_size)
      return done(Status::invalid("input",
                                  "token id " + std::to_string(id) + " is outside the vocabulary"));
  }
  scheduler_->submit(std::move(request), std::move(done));
}

Result<Plan> EngineImpl::plan(const QueryRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(const bool cut_first, cuts_prompt(core_, request));
  if (cut_first) {
    Plan plan;
    plan.query_id = request.id;
    plan.prompt_pending = true;
    return plan;
  }
  QUIRE_ASSIGN_OR_RETURN(
      QueryPlan planned,
      build_plan(core_.facts, request, store_lookup(store_, LookupKind::kPeek), meter_.speeds()));
  return std::move(planned.plan);
}

void EngineImpl::stop(std::chrono::milliseconds grace) {
  if (recall_) recall_->stop();
  if (scheduler_) scheduler_->stop(grace);
  if (draft_) draft_->stop();
  if (writer_) writer_->stop();
}

}  // namespace

Result<std::unique_ptr<Engine>> create_engine(const EngineOptions& options, Store& store) {
  return create_engine_on(nullptr, options, store);
}

EngineFacts facts_of(const Model& model, const Tokenizer& tokenizer, const PromptFormat& format,
                     std::int32_t block_tokens, std::int32_t layers_per_value) {
  const ModelConfig& config = model.config();
  EngineFacts facts;
  facts.shape = {config.num_layers, config.num_kv_heads, config.head_dim, model.options().kv_dtype};
  facts.num_heads = config.num_heads;
  facts.vocab_size = config.vocab_size;
  facts.window = model.rope().max_positions();
  facts.stop_ids = format.stop_ids();
  facts.ingest_prefix = ingest_prefix_of(tokenizer, format);
  facts.names = ContextNames(kv_fingerprint("quire-kv", model, tokenizer, facts.ingest_prefix),
                             block_tokens, layers_per_value);
  return facts;
}

Result<EngineParts> load_engine_parts(std::shared_ptr<Compute> compute,
                                      const EngineOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_engine_options(options));
  if (options.model_path.empty()) return Status::invalid("model.path", "no model folder given");
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(options.model_path));
  QUIRE_RETURN_IF_ERROR(check_device_kv(options, config.head_dim,
                                        compute != nullptr && compute->memory() != nullptr));
  ModelOptions model_options;
  QUIRE_ASSIGN_OR_RETURN(model_options.weights,
                         parse_weights(options.weights, config.quantised_weights));
  // Every device multiplies bf16, and reads the four bits of a quantised model as they are.
  if (compute != nullptr && compute->memory() != nullptr && options.weights == "auto" &&
      !config.quantised_weights)
    model_options.weights = WeightFormat::kBF16;
  const auto kv_dtype = parse_dtype(options.kv_dtype);
  if (!kv_dtype.ok() || *kv_dtype == DType::kI8) {
    return Status::invalid("model.kv_dtype",
                           "'" + options.kv_dtype + "' is not a KV dtype; use f16, bf16 or f32");
  }
  model_options.kv_dtype = *kv_dtype;
  if (options.max_model_len > config.max_position_embeddings) {
    return Status::invalid("model.max_model_len",
                           std::to_string(options.max_model_len) +
                               " exceeds the model's window of " +
                               std::to_string(config.max_position_embeddings));
  }
  model_options.max_positions = options.max_model_len > 0 ? options.max_model_len
                                                          : config.longest_sequence();
  // Small files first: a wrong tokenizer is found before gigabytes are read.
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, load_tokenizer(options.model_path));
  const std::shared_ptr<const Tokenizer> shared(std::move(tokenizer));
  QUIRE_ASSIGN_OR_RETURN(
      PromptFormat format,
      PromptFormat::load(options.model_path, shared,
                         {.format = options.prompt_format, .wording = options.prompt_wording}));
  QUIRE_RETURN_IF_ERROR(check_tokenizer(config, *shared, format));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                         load_model(options.model_path, model_options, std::move(compute)));
  return EngineParts{std::move(model), shared, std::move(format), nullptr, nullptr};
}

Result<std::unique_ptr<Engine>> create_engine_on(std::shared_ptr<Compute> compute,
                                                 const EngineOptions& options, Store& store) {
  QUIRE_ASSIGN_OR_RETURN(EngineParts parts, load_engine_parts(std::move(compute), options));
  return create_engine_from_parts(std::move(parts), options, store);
}

Result<std::unique_ptr<Engine>> create_engine_from_parts(EngineParts parts,
                                                         const EngineOptions& options,
                                                         Store& store) {
  QUIRE_RETURN_IF_ERROR(check_engine_options(options));
  QUIRE_RETURN_IF_ERROR(check_tokenizer(parts.model->config(), *parts.tokenizer, parts.format));
  auto engine = std::make_unique<EngineImpl>(std::move(parts.model), std::move(parts.tokenizer),
                                             std::move(parts.format), store);
  QUIRE_RETURN_IF_ERROR(
      engine->init(options, std::move(parts.draft), std::move(parts.draft_tokenizer)));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace quire
