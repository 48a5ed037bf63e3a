#include "engine/model/config.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>

#include "engine/model/gguf_model.h"
#include "engine/model/json_fields.h"
#include "engine/model/quantisation.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24;
constexpr double kBigFactor = 1e6;  ///< of a RoPE scaling
constexpr std::int64_t kMaxHeads = 1024;
constexpr std::int64_t kMaxGroup = 16;
constexpr std::int64_t kMaxHeadDim = 256;

struct FamilyRow {
  const char *architecture, *model_type;
  ModelFamily family;
};
constexpr FamilyRow kFamilies[] = {
    {"LlamaForCausalLM", "llama", ModelFamily::kLlama},
    {"MistralForCausalLM", "mistral", ModelFamily::kMistral},
    {"Qwen2ForCausalLM", "qwen2", ModelFamily::kQwen2},
    {"Qwen3ForCausalLM", "qwen3", ModelFamily::kQwen3},
    {"Phi3ForCausalLM", "phi3", ModelFamily::kPhi3},
};
constexpr const char* kSupported =
    "supported are LlamaForCausalLM (Llama, Yi, TinyLlama, DeepSeek-R1-Distill-Llama), "
    "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and Phi3ForCausalLM (Phi-3, Phi-4)";

/// Refuses latent attention before the family is checked, because such models have many names and
/// this build supports none of them.
void refuse_latents(JsonFields& in) {
  if (in.find("kv_lora_rank") != nullptr) {
    in.unsupported("kv_lora_rank",
                   "multi-head latent attention (MLA: one compressed KV of each token for all "
                   "heads) is not supported; use a model with MHA, GQA or MQA");
  }
}

void read_family(JsonFields& in, ModelConfig& c) {
  const json::value* list = in.find("architectures");
  std::string architecture;
  if (list) {
    if (!list->is_array() || list->get_array().empty() || !list->get_array()[0].is_string()) {
      return in.fail("architectures", "must be a list of class names");
    }
    const json::string& name = list->get_array()[0].get_string();
    architecture.assign(name.data(), name.size());
  }
  c.model_type = in.text("model_type");
  if (!in.status().ok()) return;
  if (architecture.empty() && c.model_type.empty()) {
    return in.fail("architectures", std::string("is missing; ") + kSupported);
  }
  for (const FamilyRow& row : kFamilies) {
    if (architecture.empty() ? c.model_type == row.model_type : architecture == row.architecture) {
      c.family = row.family;
      if (c.model_type.empty()) c.model_type = row.model_type;
      if (c.model_type != row.model_type) {
        in.fail("model_type", "is \"" + c.model_type + "\" but the architecture " + architecture +
                                  " goes with \"" + row.model_type + "\"");
      }
      return;
    }
  }
  const bool by_type = architecture.empty();
  in.unsupported(by_type ? "model_type" : "architectures",
                 (by_type ? "model type " + c.model_type : "architecture " + architecture) +
                     " is not supported; " + kSupported);
}

void refuse_unsupported(JsonFields& in, ModelConfig& c) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (in.find(key) && in.integer(key, 0, kMaxWidth, 0) > 0) {
      in.unsupported(key, "mixture-of-experts models are not supported");
    }
  }
  if (const json::value* quantised = in.find("quantization_config")) {
    if (!quantised->is_object())
      return in.fail("quantization_config",
                     "must be an object or null, not " + JsonFields::shown(*quantised));
    JsonFields inner(quantised->get_object(), "quantization_config");
    read_quantisation(inner);
    in.adopt(inner);
    c.quantised_weights = true;
  }
  if (const std::string act = in.text("hidden_act");
      !act.empty() && act != "silu" && act != "swish") {
    in.unsupported("hidden_act", "activation " + act + " is not supported, only silu");
  }
}

void read_shape(JsonFields& in, ModelConfig& c) {
  auto i32 = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  c.num_layers = i32(in.integer("num_hidden_layers", 1, kMaxLayers));
  c.hidden_size = i32(in.integer("hidden_size", 1, kMaxWidth));
  c.intermediate_size = i32(in.integer("intermediate_size", 1, kMaxWidth));
  c.vocab_size = i32(in.integer("vocab_size", 1, kMaxVocab));
  c.num_heads = i32(in.integer("num_attention_heads", 1, kMaxHeads));
  c.num_kv_heads = i32(in.integer("num_key_value_heads", 1, kMaxHeads, c.num_heads));
  c.max_position_embeddings = in.integer("max_position_embeddings", 1, kMaxPositions);
  if (!in.status().ok()) return;
  if (c.num_heads % c.num_kv_heads != 0) {
    return in.fail("num_key_value_heads", "(" + std::to_string(c.num_kv_heads) +
                                              ") must divide num_attention_heads (" +
                                              std::to_string(c.num_heads) + ")");
  }
  if (c.group_size() > kMaxGroup) {
    return in.unsupported("num_key_value_heads", std::to_string(c.group_size()) +
                                                     " query heads share one KV head; at most " +
                                                     std::to_string(kMaxGroup) + " are supported");
  }
  if (!in.find("head_dim") && c.hidden_size % c.num_heads != 0) {
    return in.fail("hidden_size", "(" + std::to_string(c.hidden_size) +
                                      ") must be a multiple of num_attention_heads (" +
                                      std::to_string(c.num_heads) + ") when head_dim is not given");
  }
  c.head_dim = i32(in.integer("head_dim", 1, kMaxWidth, c.hidden_size / c.num_heads));
  if (c.head_dim % 8 != 0 || c.head_dim > kMaxHeadDim) {
    in.unsupported("head_dim", "head_dim " + std::to_string(c.head_dim) +
                                   " is not supported: it must be a multiple of 8 up to " +
                                   std::to_string(kMaxHeadDim));
  }
}

void read_switches(JsonFields& in, ModelConfig& c) {
  c.rms_norm_eps = static_cast<float>(in.number("rms_norm_eps", 1e-12, 1, 1e-6));
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", false);
  const bool attention_bias = in.boolean("attention_bias", false);
  const bool mlp_bias = in.boolean("mlp_bias", false);
  switch (c.family) {
    case ModelFamily::kLlama:
      c.qkv_bias = c.attention_output_bias = attention_bias;
      c.mlp_bias = mlp_bias;
      break;
    case ModelFamily::kMistral:
      break;
    case ModelFamily::kQwen2:
      c.qkv_bias = true;
      break;
    case ModelFamily::kQwen3:
      c.qkv_bias = c.attention_output_bias = attention_bias;
      c.qk_norm = true;
      break;
    case ModelFamily::kPhi3:
      if (attention_bias)
        in.unsupported("attention_bias", "the Phi-3 classes have no biases of this kind");
      c.fused_projections = true;
      break;
  }
}

void read_sliding_window(JsonFields& in, ModelConfig& c) {
  if (c.family == ModelFamily::kLlama) return;  // the Llama classes have no biases of this kind
  std::int64_t window = in.integer("sliding_window", 0, std::numeric_limits<std::int64_t>::max(),
                                   0);
  if (window == 0) return;
  if (c.family != ModelFamily::kMistral && c.family != ModelFamily::kPhi3) {
    if (!in.boolean("use_sliding_window", false)) return;
    if (in.integer("max_window_layers", 0, std::numeric_limits<std::int32_t>::max(), 0) >=
        c.num_layers)
      return;
  }
  if (const json::value* types = in.find("layer_types")) {
    if (!types->is_array()) return in.fail("layer_types", "must be a list of names");
    bool any = false;
    for (const json::value& type : types->get_array())
      any |= type.is_string() && type.get_string() == "sliding_attention";
    if (!any) return;
  }
  c.sliding_window = window;
}

/// Reads which part of a head is rotated through `in`, the configuration or its rope_parameters.
void read_rotary_part(JsonFields& in, ModelConfig& c) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (!in.find(kKey)) return;
  const double part = in.number(kKey, 0, 1, 1.0);
  if (part == 1.0 || !in.status().ok()) return;
  if (c.family != ModelFamily::kPhi3)
    return in.unsupported(kKey, "partly rotated heads are supported for Phi-3 and Phi-4 only");
  constexpr double kRounding = 1e-6;  // of a part that was divided
  c.rope.rotary_dim = static_cast<std::int32_t>(c.head_dim * part + kRounding);
  if (c.rope.rotary_dim < 2 || c.rope.rotary_dim % 2 != 0)
    in.fail(kKey, "leaves " + std::to_string(c.rope.rotary_dim) +
                      " values of a head to rotate, which must be an even number");
}

/// Reads LongRoPE's members of rope_scaling or rope_parameters.
void read_long_rope(JsonFields& in, ModelConfig& c, std::int64_t top_level_original) {
  RopeConfig& rope = c.rope;
  rope.scaling = RopeScaling::kLongRope;
  const auto half = static_cast<std::size_t>(rope.rotary_dim / 2);
  c.short_divisors = in.numbers("short_factor", half, 1e-6, kBigFactor);
  c.long_divisors = in.numbers("long_factor", half, 1e-6, kBigFactor);
  rope.attention_factor = static_cast<float>(in.number("attention_factor", 0, kBigFactor, 0.0));
  std::optional<std::int64_t> fallback;
  if (top_level_original > 0) fallback = top_level_original;
  rope.original_max_position = in.integer("original_max_position_embeddings", 2, kMaxPositions,
                                          fallback);
  if (!in.status().ok()) return;
  const double ratio = static_cast<double>(c.max_position_embeddings) /
                       static_cast<double>(rope.original_max_position);
  rope.factor = static_cast<float>(in.number("factor", 1e-6, kBigFactor, std::max(ratio, 1e-6)));
  rope.factor = std::max(rope.factor, 1.0f);
}

/// Reads the rope_scaling or rope_parameters object through `in`.
void read_rope_scaling(JsonFields& in, ModelConfig& c, std::int64_t top_level_original) {
  RopeConfig& rope = c.rope;
  std::string type = in.text("rope_type");
  if (type.empty()) type = in.text("type");
  const bool theta_only = in.path("").rfind("rope_parameters", 0) == 0;
  if (!in.status().ok()) return;
  if (type.empty() && !theta_only)
    return in.fail("rope_type", "is missing; it must be default, linear, llama3, yarn or longrope");
  if (type.empty() || type == "default") return;
  if (type == "longrope" || type == "su") return read_long_rope(in, c, top_level_original);
  constexpr double kBig = kBigFactor;
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = static_cast<float>(in.number("factor", 1, kBig));
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.factor = static_cast<float>(in.number("factor", 1, kBig));
    rope.low_freq_factor = static_cast<float>(in.number("low_freq_factor", 1e-6, kBig));
    rope.high_freq_factor = static_cast<float>(in.number("high_freq_factor", 1e-6, kBig));
    if (in.status().ok() && !(rope.high_freq_factor > rope.low_freq_factor)) {
      in.fail("high_freq_factor", "must be larger than low_freq_factor");
    }
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.factor = static_cast<float>(in.number("factor", 1, kBig));
    rope.beta_fast = static_cast<float>(in.number("beta_fast", 1e-6, kBig, 32.0));
    rope.beta_slow = static_cast<float>(in.number("beta_slow", 1e-6, kBig, 1.0));
    rope.attention_factor = static_cast<float>(in.number("attention_factor", 0, kBig, 0.0));
    const double mscale = in.number("mscale", 0, kBig, 0.0),
                 all_dim = in.number("mscale_all_dim", 0, kBig, 0.0);
    if (rope.attention_factor == 0 && mscale > 0 && all_dim > 0 && rope.factor > 1) {
      const double log_factor = std::log(static_cast<double>(rope.factor));
      rope.attention_factor = static_cast<float>((0.1 * mscale * log_factor + 1.0) /
                                                 (0.1 * all_dim * log_factor + 1.0));
    }
    if (!in.boolean("truncate", true))
      in.unsupported("truncate", "YaRN without truncated correction bounds is not supported");
  } else {
    return in.unsupported(
        "rope_type", "RoPE scaling \"" + type +
                         "\" is not supported; default, linear, llama3, yarn and longrope are");
  }
  if (rope.scaling == RopeScaling::kLinear) return;
  // llama3 must state its original window; YaRN falls back to the window itself, as Hugging Face
  // does.
  std::optional<std::int64_t> fallback;
  if (top_level_original > 0)
    fallback = top_level_original;
  else if (rope.scaling == RopeScaling::kYarn)
    fallback = c.max_position_embeddings;
  rope.original_max_position = in.integer("original_max_position_embeddings", 1, kMaxPositions,
                                          fallback);
}

void read_rope(JsonFields& in, ModelConfig& c) {
  RopeConfig& rope = c.rope;
  constexpr double kMaxTheta = 1e15;
  rope.head_dim = rope.rotary_dim = c.head_dim;
  read_rotary_part(in, c);
  rope.interleaved = in.boolean("rope_interleaved", false);
  rope.theta = static_cast<float>(in.number("rope_theta", 1, kMaxTheta, 10000.0));
  const char* key = in.find("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json::value* scaling = in.find(key);
  if (!in.status().ok() || !scaling) return;
  if (!scaling->is_object())
    return in.fail(key, "must be an object or null, not " + JsonFields::shown(*scaling));
  if (scaling->get_object().empty()) return;

  JsonFields inner(scaling->get_object(), key);
  if (inner.find("full_attention") || inner.find("sliding_attention")) {
    return in.unsupported(key, "different RoPE settings per layer are not supported");
  }
  if (inner.find("rope_theta"))
    rope.theta = static_cast<float>(inner.number("rope_theta", 1, kMaxTheta));
  read_rotary_part(inner, c);
  const std::int64_t original = in.integer("original_max_position_embeddings", 1, kMaxPositions, 0);
  read_rope_scaling(inner, c, original);
  if (!inner.status().ok()) {
    return in.adopt(inner);
  }
  // Folders that enable YaRN manually keep the trained window in max_position_embeddings.
  if (rope.scaling == RopeScaling::kYarn) {
    const auto scaled = static_cast<std::int64_t>(std::floor(
        static_cast<double>(rope.factor) * static_cast<double>(rope.original_max_position)));
    c.max_position_embeddings = std::clamp(scaled, c.max_position_embeddings, kMaxPositions);
  }
}

/// Returns each id once, in order. Some converters write -1 for none.
std::vector<std::int32_t> token_ids(JsonFields& in, std::string_view key, std::int32_t vocab_size) {
  std::vector<std::int32_t> out;
  const json::value* value = in.find(key);
  if (value != nullptr && value->is_int64() && value->get_int64() == -1) return out;
  for (const std::int32_t id : in.indices(key, vocab_size, 256, "token of a vocabulary")) {
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  }
  return out;
}

Result<ModelConfig> parse_config_object(const json::object& object) {
  ModelConfig c;
  JsonFields in(object, "");
  using Step = void (*)(JsonFields&, ModelConfig&);
  constexpr Step kSteps[] = {[](JsonFields& r, ModelConfig&) { refuse_latents(r); },
                             read_family,
                             refuse_unsupported,
                             read_shape,
                             read_switches,
                             read_sliding_window,
                             read_rope};
  for (Step step : kSteps) {
    step(in, c);
    if (!in.status().ok()) return in.status();
  }
  c.bos_token_ids = token_ids(in, "bos_token_id", c.vocab_size);
  c.eos_token_ids = token_ids(in, "eos_token_id", c.vocab_size);
  if (!in.status().ok()) return in.status();
  // Larger shapes are typing errors: they would overflow the arithmetic of sizes.
  if (c.num_parameters() > (std::int64_t{1} << 42)) {
    return Status::invalid("hidden_size", "the shapes describe " +
                                              std::to_string(c.num_parameters()) +
                                              " parameters; check the sizes");
  }
  return c;
}

Status add_generation_eos(const std::filesystem::path& path, ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(std::string text, read_json_file(path));
  QUIRE_ASSIGN_OR_RETURN(const json::object object,
                         parse_json_object("generation_config.json", text));
  JsonFields in(object, "");
  for (std::int32_t id : token_ids(in, "eos_token_id", config.vocab_size)) {
    auto& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return in.status().ok() ? Status() : in.status().with_context("generation_config.json");
}

}  // namespace

std::int64_t ModelConfig::num_parameters() const {
  const std::int64_t h = hidden_size, d = head_dim, q = num_heads * d, kv = num_kv_heads * d,
                     f = intermediate_size;
  std::int64_t layer = h * (q + 2 * kv) + q * h + 3 * h * f + 2 * h;
  if (qkv_bias) layer += q + 2 * kv;
  if (attention_output_bias) layer += h;
  if (mlp_bias) layer += 2 * f + h;
  if (qk_norm) layer += 2 * d;
  return layer * num_layers + h * vocab_size * (tie_word_embeddings ? 1 : 2) + h;
}

void choose_long_rope(ModelConfig& config, std::int64_t positions) {
  if (config.rope.scaling != RopeScaling::kLongRope) return;
  config.rope.divisors = positions > config.rope.original_max_position ? config.long_divisors
                                                                       : config.short_divisors;
}

Result<ModelConfig> parse_model_config(std::string_view text) {
  try {
    QUIRE_ASSIGN_OR_RETURN(const json::object object, parse_json_object("config.json", text));
    return parse_config_object(object);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return Status::invalid("config.json", std::string("config.json cannot be read: ") + e.what());
  }
}

Result<ModelConfig> load_model_config(const std::filesystem::path& dir) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(dir));
  if (gguf) {
    QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(*gguf));
    return gguf_model_config(*file);
  }
  QUIRE_ASSIGN_OR_RETURN(std::string text, read_json_file(dir / "config.json"));
  Result<ModelConfig> config = parse_model_config(text);
  if (!config.ok()) return config.status().with_context((dir / "config.json").string());
  const std::filesystem::path generation = dir / "generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(generation, error))
    QUIRE_RETURN_IF_ERROR(add_generation_eos(generation, *config));
  return config;
}

}  // namespace quire
