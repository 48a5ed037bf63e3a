#include "server/commands/service_options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "cachestore/remote/remote_url.h"
#include "engine/device/team/team_compute.h"
#include "engine/plan/strategy.h"
#include "ingest/embed/encoder_embedder.h"
#include "ingest/embed/engine_embedder.h"
#include "kernels/cuda/backend/watched_ops.h"
#include "kernels/parallel.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/page_locked.h"
#include "server/config/quotas_file.h"
#include "server/config/remote_keys_file.h"
#include "server/hub/remote_embedder.h"

namespace quire {
namespace {

WeightFormat encoder_format(const Config& c) {
  return c.retrieve.encoder_weights == "bf16" ? WeightFormat::kBF16 : WeightFormat::kF32;
}

template <class Encoder>
Result<std::shared_ptr<const Encoder>> load_folder(const Config& c, const std::string& folder,
                                                   const std::string& setting) {
  if (folder.empty()) return std::shared_ptr<const Encoder>();
  auto encoder = Encoder::load(folder, encoder_format(c));
  if (!encoder.ok()) {
    const Status& s = encoder.status();
    return s.with_context(setting + " = " + folder).with_field(setting);
  }
  const EncoderInfo& info = (*encoder)->info();
  log_info(setting + " loaded", {{"folder", folder},
                                 {"weights", info.weights},
                                 {"bytes", std::to_string(info.bytes)},
                                 {"max_tokens", std::to_string(info.max_tokens)}});
  return std::shared_ptr<const Encoder>(std::move(*encoder));
}

}  // namespace

std::int64_t prompt_file_bytes(const Config& c) {
  constexpr std::int64_t kPart = 8, kLeast = 64 << 20;
  if (c.disk.max_bytes == 0) return c.disk.prompt_bytes;
  const std::int64_t part = c.disk.max_bytes / kPart;
  return part < kLeast ? 0 : std::min(c.disk.prompt_bytes, part);
}

bool holds_store(const std::string& folder) {
  std::error_code ec;
  const std::filesystem::path path(folder);
  return std::filesystem::exists(path / "STORE", ec) || std::filesystem::exists(path / "db", ec);
}

std::string record_copy_path(const Config& c) {
  if (c.disk.record_copies < 2) return {};
  if (!c.disk.copy_path.empty()) return c.disk.copy_path;
  std::string path = c.disk.path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path + "-copy";
}

Result<StoreOptions> store_options(const Config& c) {
  StoreOptions o;
  o.path = c.disk.path;
  // The store does not count the prompts in its folder.
  o.max_bytes = static_cast<std::uint64_t>(
      c.disk.max_bytes > 0 ? c.disk.max_bytes - prompt_file_bytes(c) : 0);
  o.dram_bytes = static_cast<std::uint64_t>(c.cache.dram_bytes);
  o.disk_policy = o.dram_policy = c.cache.eviction == "lru" ? StorePolicy::kLru
                                                            : StorePolicy::kS3Fifo;
  o.io_threads = static_cast<int>(c.disk.threads);
  o.direct_io = c.disk.direct_io;
  o.on_damage = c.disk.on_damage == "salvage"     ? OnDamage::kSalvage
                : c.disk.on_damage == "text_only" ? OnDamage::kTextOnly
                                                  : OnDamage::kRefuse;
  o.copy_path = record_copy_path(c);
  o.catalog.url = c.catalog.url;
  o.catalog.poll = std::chrono::milliseconds(c.catalog.poll_ms);
  o.catalog.timeout = std::chrono::milliseconds(c.catalog.timeout_ms);
  o.catalog.job_lease = std::chrono::milliseconds(c.catalog.job_lease_ms);
  o.catalog.connections = static_cast<int>(c.catalog.connections);
  o.remote.url = c.remote.url;
  o.remote.mode = c.remote.mode == "read"    ? RemoteMode::kRead
                  : c.remote.mode == "write" ? RemoteMode::kWrite
                                             : RemoteMode::kReadWrite;
  o.remote.timeout = std::chrono::milliseconds(c.remote.timeout_ms);
  o.remote.hedged_reads = c.remote.hedged_reads;
  o.remote.write_through = c.remote.write == "through";
  o.remote.ttl_seconds = c.remote.ttl_seconds;
  o.remote.lease = std::chrono::milliseconds(c.remote.lease_ms);
  QUIRE_ASSIGN_OR_RETURN(o.remote.keys, load_remote_keys(c.remote.keys_file));
  QUIRE_ASSIGN_OR_RETURN(o.quotas, load_quotas(c.cache.quotas_file));
  QUIRE_ASSIGN_OR_RETURN(const RemoteUrl remote, parse_remote_url(c.remote.url));
  if (o.quotas.limits(&TenantQuota::remote_bytes) && remote.redis.empty())
    return Status::invalid("cache.quotas_file",
                           c.cache.quotas_file +
                               ": remote_bytes is counted in Redis, but remote.url names none; "
                               "leave remote_bytes out, or add a Redis before the bucket");
  return o;
}

Status check_policy(const Config& c) {
  CacheOptions defaults;
  const auto check = [&](const std::string& value, const char* setting, std::string& option) {
    option = value;
    const Status s = validate(defaults);
    option = "auto";
    return s.ok() ? s : Status::invalid(setting, std::string(setting) + ": " + s.message());
  };
  QUIRE_RETURN_IF_ERROR(check(c.policy.strategy, "policy.strategy", defaults.strategy));
  QUIRE_RETURN_IF_ERROR(check(c.policy.compress, "policy.compress", defaults.compress));
  return check(c.policy.decode, "policy.decode", defaults.decode);
}

EngineOptions engine_options(const Config& c, const std::string& model_path) {
  EngineOptions o;
  o.model_path = model_path;
  o.model_name = c.model.name;
  o.prompt_format = c.model.prompt_format;
  o.prompt_wording = {c.prompt.intro, c.prompt.document, c.prompt.question};
  o.weights = c.model.weights;
  o.kv_dtype = c.model.kv_dtype;
  o.device_kv_dtype = c.model.device_kv_dtype;
  o.max_model_len = c.model.max_model_len;
  o.working_cache_bytes = c.model.working_cache_bytes;
  o.device_cache_bytes = c.model.device_cache_bytes;
  o.host_cache_bytes = c.model.host_cache_bytes;
  o.device_requests = static_cast<std::int32_t>(c.model.device_requests);
  o.draft_path = find_model_part(c.model.draft_path, model_path, "draft");
  o.retrieval_head_path = find_model_part(c.model.retrieval_head_path, model_path, "head");
  o.draft_layers = static_cast<std::int32_t>(c.model.draft_layers);
  o.draft_weights = c.model.draft_weights;
  o.draft_document_kv = c.model.draft_document_kv;
  o.draft_wait_ms = static_cast<std::int32_t>(c.model.draft_wait_ms);
  o.block_tokens = static_cast<std::int32_t>(c.cache.block_tokens);
  o.language = c.retrieve.language;
  o.layers_per_value = static_cast<std::int32_t>(c.cache.layers_per_value);
  o.max_queue = static_cast<std::int32_t>(c.server.max_queue);
  o.small_context_tokens = c.policy.small_ctx;
  o.prefix_cache_bytes = c.model.prefix_cache_bytes;
  o.num_threads = static_cast<std::int32_t>(c.model.threads);
  return o;
}

Result<cuda::BackendChoice> backend_choice(const Config& c) {
  if (c.model.split_kv && c.model.tensor_parallel < 2)
    return Status::invalid(
        "model.split_kv",
        "model.split_kv cuts KV over the GPUs of model.tensor_parallel, which is "
        "1: raise that, or leave this out");
  QUIRE_ASSIGN_OR_RETURN(
      cuda::BackendChoice choice,
      cuda::choose_backend(c.model.backend, c.model.device, cuda::has_device_file(),
                           cuda::backend_library_files(), c.model.tensor_parallel));
  choice.split_kv = c.model.split_kv;
  return choice;
}

namespace {

/// Opens the chosen devices; none: the CPU computes.
Result<cuda::DeviceTeam> open_devices(const cuda::BackendChoice& choice,
                                      std::function<void(const Status&)> on_lost) {
  if (choice.library == nullptr) return cuda::DeviceTeam();
  QUIRE_ASSIGN_OR_RETURN(cuda::DeviceTeam team, choice.library->open_team(choice.devices));
  if (team.devices.size() > 1)
    log_info(choice.split_kv ? "matrices and KV are cut over several GPUs"
                             : "matrices are cut over several GPUs",
             {{"gpus", std::to_string(team.devices.size())}, {"devices", choice.cuda}});
  return cuda::watch(std::move(team), std::move(on_lost));
}

}  // namespace

Result<std::shared_ptr<Compute>> open_compute(const cuda::BackendChoice& choice,
                                              std::function<void(const Status&)> on_lost) {
  QUIRE_ASSIGN_OR_RETURN(cuda::DeviceTeam team, open_devices(choice, std::move(on_lost)));
  return team.devices.empty() ? std::shared_ptr<Compute>()
                              : make_team_compute(std::move(team), choice.name, nullptr,
                                                  {.split_kv = choice.split_kv});
}

Result<ComputeAndValues> open_compute_and_values(const Config& config,
                                                 const cuda::BackendChoice& choice,
                                                 std::function<void(const Status&)> on_lost) {
  ComputeAndValues out;
  QUIRE_ASSIGN_OR_RETURN(cuda::DeviceTeam team, open_devices(choice, std::move(on_lost)));
  const bool computes = !team.devices.empty();
  QUIRE_ASSIGN_OR_RETURN(out.values,
                         page_locked_values(config, computes ? team.devices[0] : nullptr));
  if (computes)
    out.compute = make_team_compute(std::move(team), choice.name, out.values,
                                    {.split_kv = choice.split_kv});
  return out;
}

void fit_window(const ModelConfig& model, EngineOptions& options) {
  const std::int64_t longest = model.longest_sequence();
  if (options.max_model_len > 0 && options.max_model_len <= longest) return;
  options.max_model_len = longest;
  if (longest < model.max_position_embeddings)
    log_warning("the model attends through a sliding window, which prompt and answer must fit",
                {{"tokens", std::to_string(longest)}});
}

RetrievalOptions retrieval_options(const Config& c) {
  RetrievalOptions o;
  o.max_index_bytes = c.retrieve.max_index_bytes;
  o.max_index_disk_bytes = c.retrieve.max_index_disk_bytes;
  o.language = c.retrieve.language;
  o.links = c.retrieve.links;
  const bool encoder = !c.retrieve.encoder.empty() || !c.retrieve.embeddings_url.empty();
  const std::string& scorer = c.retrieve.scorer;
  if (scorer == "embedding") o.scorer = RetrieveScorer::kEmbedding;
  if (scorer == "hybrid" || (scorer == "auto" && encoder)) o.scorer = RetrieveScorer::kHybrid;
  if (encoder) o.fusion = kEncoderFusion;
  if (c.retrieve.embeddings || encoder)
    o.embeddings = EmbeddingOptions{.max_bytes = c.retrieve.max_embedding_bytes,
                                    .max_disk_bytes = c.retrieve.max_embedding_disk_bytes,
                                    .exact_vectors = c.retrieve.exact_embeddings};
  return o;
}

IngestOptions ingest_options(const Config& c) {
  IngestOptions o;
  o.max_documents_per_call = static_cast<std::int32_t>(c.limits.documents_per_call);
  o.max_document_tokens = c.limits.document_tokens;
  o.namespace_bytes = static_cast<std::uint64_t>(c.limits.namespace_bytes);
  o.default_ttl_seconds = static_cast<std::uint64_t>(c.policy.default_ttl_seconds);
  o.share_across_namespaces = c.cache.share_across_namespaces;
  return o;
}

Result<std::shared_ptr<const TextEncoder>> load_encoder(const Config& c) {
  return load_folder<TextEncoder>(c, c.retrieve.encoder, "retrieve.encoder");
}

Result<std::shared_ptr<const CrossEncoder>> load_reranker(const Config& c) {
  return load_folder<CrossEncoder>(c, c.retrieve.reranker, "retrieve.reranker");
}

Result<std::shared_ptr<Embedder>> make_embedder(const Config& c, Engine& engine,
                                                std::shared_ptr<const TextEncoder> encoder) {
  if (encoder) return make_encoder_embedder(std::move(encoder), encoder_threads(c));
  if (c.retrieve.embeddings_url.empty()) return make_engine_embedder(engine);
  hub::RemoteEmbedderOptions remote{c.retrieve.embeddings_url, c.retrieve.embeddings_model, {}};
  if (const std::string& name = c.retrieve.embeddings_key_env; !name.empty()) {
    const char* key = std::getenv(name.c_str());
    if (key == nullptr || *key == '\0')
      return Status::invalid("retrieve.embeddings_key_env",
                             "retrieve.embeddings_key_env names " + name +
                                 ", and there is no such environment variable; set it to the key");
    remote.key = key;
  }
  return hub::make_remote_embedder(std::move(remote));
}

int encoder_threads(const Config& c) {
  if (c.retrieve.encoder_threads > 0) return static_cast<int>(c.retrieve.encoder_threads);
  return std::max(1, num_threads() / 2);
}

}  // namespace quire
