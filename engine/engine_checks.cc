#include "engine/engine_checks.h"

#include "base/stems.h"

namespace quire {
namespace {

/// Prefill chunks end at block borders of every block size
constexpr std::int32_t kChunkStep = 64;

}  // namespace

Result<WeightFormat> parse_weights(const std::string& name, bool quantised) {
  if (name == "auto" && quantised) return WeightFormat::kW4;
  if (name == "auto") return cpu_has_bf16() ? WeightFormat::kBF16 : WeightFormat::kF32;
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kF32, WeightFormat::kInt8,
                                    WeightFormat::kW8A8, WeightFormat::kW4}) {
    if (name == weight_format_name(format)) return format;
  }
  return Status::invalid(
      "model.weights",
      "'" + name + "' is not a weight format; use auto, f32, bf16, int8, w8a8 or w4");
}

Status check_engine_options(const EngineOptions& o) {
  if (o.block_tokens != 0 && o.block_tokens != 16 && o.block_tokens != 32 && o.block_tokens != 64) {
    return Status::invalid("cache.block_tokens", "must be 16, 32, 64, or 0 for a choice by length");
  }
  if (o.layers_per_value < 0)
    return Status::invalid("cache.layers_per_value",
                           "must not be negative; 0 for as many layers as fit");
  QUIRE_RETURN_IF_ERROR(check_stem_language(o.language, "retrieve.language"));
  if (o.max_queue < 1) return Status::invalid("server.max_queue", "must be at least 1");
  if (o.prefill_chunk_tokens < 0 || o.prefill_chunk_tokens % kChunkStep != 0) {
    return Status::invalid("model.prefill_chunk_tokens",
                           "must be a multiple of 64; 0 for a choice");
  }
  if (o.max_model_len < 0)
    return Status::invalid("model.max_model_len",
                           "must not be negative; 0 means the model's own window");
  if (o.working_cache_bytes < 0)
    return Status::invalid("model.working_cache_bytes", "must not be negative");
  if (o.device_cache_bytes < -1)
    return Status::invalid("model.device_cache_bytes", "must not be negative; -1 for a choice");
  if (o.host_cache_bytes < -1)
    return Status::invalid("model.host_cache_bytes", "must not be negative; -1 for a choice");
  if (o.device_requests < 1) return Status::invalid("model.device_requests", "must be at least 1");
  if (o.draft_wait_ms < 0) return Status::invalid("model.draft_wait_ms", "must not be negative");
  if (o.device_kv_dtype != "auto" && o.device_kv_dtype != "f8")
    return Status::invalid(
        "model.device_kv_dtype",
        "'" + o.device_kv_dtype + "' is no dtype of KV in a device's memory; use auto or f8");
  if (o.num_threads < 0)
    return Status::invalid("model.threads", "must not be negative; 0 means all cores");
  return {};
}

Status check_split_caches(const EngineOptions& o) {
  const auto refuse = [](const char* setting) {
    return Status::invalid(setting, std::string("with model.split_kv no request keeps rows apart "
                                                "from the others: leave ") +
                                        setting + " out");
  };
  if (o.device_cache_bytes > 0) return refuse("model.device_cache_bytes");
  if (o.host_cache_bytes > 0) return refuse("model.host_cache_bytes");
  return {};
}

Status check_device_kv(const EngineOptions& o, std::int32_t head_dim, bool on_device) {
  constexpr const char* kSetting = "model.device_kv_dtype";
  if (o.device_kv_dtype != "f8") return {};
  if (!on_device)
    return Status::invalid(kSetting,
                           "f8 is for the memory of a GPU, and the CPU computes: set it to auto, "
                           "or model.backend to cuda");
  // Kernels read rows in pieces of 16 bytes.
  if (head_dim % 16 != 0)
    return Status::invalid(kSetting,
                           "f8 needs heads of a multiple of 16 channels, the model's have " +
                               std::to_string(head_dim) + ": set it to auto");
  return {};
}

Status check_tokenizer(const ModelConfig& config, const Tokenizer& tokenizer,
                       const PromptFormat& format) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    return Status::invalid("tokenizer", "the tokenizer (" + std::string(tokenizer.description()) +
                                            ") has " + std::to_string(tokenizer.vocab_size()) +
                                            " ids, the model's config.json says vocab_size " +
                                            std::to_string(config.vocab_size) +
                                            ": these files do not belong together");
  }
  const auto fits = [&config](std::int32_t id) { return id >= 0 && id < config.vocab_size; };
  if (tokenizer.bos_id() && !fits(*tokenizer.bos_id()))
    return Status::invalid("tokenizer", "its BOS id is outside the model's vocabulary");
  for (std::int32_t id : format.stop_ids()) {
    if (!fits(id))
      return Status::invalid("tokenizer", "end-of-text id " + std::to_string(id) +
                                              " is outside the model's vocabulary");
  }
  return {};
}

std::vector<std::int32_t> ingest_prefix_of(const Tokenizer& tokenizer, const PromptFormat& format) {
  const auto bos = tokenizer.bos_id();
  if (!bos) return {};
  const auto prefix = format.prefix();
  const bool begins = prefix.ok() ? !prefix->empty() && prefix->front() == *bos
                                  : tokenizer.add_bos();
  return begins ? std::vector<std::int32_t>{*bos} : std::vector<std::int32_t>{};
}

}  // namespace quire
