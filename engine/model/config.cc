#include "engine/model/config.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <system_error>

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeads = 1024;
constexpr std::int64_t kMaxGroup = 16;
constexpr std::int64_t kMaxHeadDim = 256;
constexpr std::uintmax_t kMaxConfigBytes = 16 << 20;

/// Reads typed fields of one JSON object and remembers the first thing that is wrong with them; after that every read
/// returns its fallback. null counts as missing, as Hugging Face writes it.
class FieldReader {
 public:
  FieldReader(const json::object& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }
  std::string path(std::string_view key) const { return prefix_ + std::string(key); }
  void fail(std::string_view key, std::string message) {
    if (status_.ok()) status_ = Status::invalid(path(key), path(key) + " " + std::move(message));
  }
  void unsupported(std::string_view key, std::string message) {
    if (status_.ok()) status_ = Status(Code::kUnimplemented, std::move(message), path(key));
  }

  /// Takes over what a reader of an inner object found.
  void adopt(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  const json::value* find(std::string_view key) const {
    const json::value* v = object_.if_contains(json::string_view(key.data(), key.size()));
    return v && !v->is_null() ? v : nullptr;
  }

  /// A whole number in [low, high]. Without a fallback the field is required.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high, std::optional<std::int64_t> fallback = {}) {
    const json::value* v = find(key);
    if (!v) {
      if (!fallback) fail(key, "is missing; a whole number is needed");
      return fallback.value_or(low);
    }
    const std::optional<std::int64_t> x = whole_number(*v);
    if (!x || *x < low || *x > high) {
      fail(key, "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high) + ", not " + shown(*v));
      return fallback.value_or(low);
    }
    return *x;
  }

  double number(std::string_view key, double low, double high, std::optional<double> fallback = {}) {
    const json::value* v = find(key);
    if (!v) {
      if (!fallback) fail(key, "is missing; a number is needed");
      return fallback.value_or(low);
    }
    const double x = v->is_double() ? v->get_double()
                     : v->is_int64() ? static_cast<double>(v->get_int64())
                     : v->is_uint64() ? static_cast<double>(v->get_uint64())
                                      : std::numeric_limits<double>::quiet_NaN();
    if (!(x >= low && x <= high)) {
      std::ostringstream message;
      message << "must be a number from " << low << " to " << high << ", not " << shown(*v);
      fail(key, message.str());
      return fallback.value_or(low);
    }
    return x;
  }

  bool boolean(std::string_view key, bool fallback) {
    const json::value* v = find(key);
    if (!v) return fallback;
    if (!v->is_bool()) {
      fail(key, "must be true or false, not " + shown(*v));
      return fallback;
    }
    return v->get_bool();
  }

  std::string text(std::string_view key) {
    const json::value* v = find(key);
    if (!v) return {};
    if (!v->is_string()) {
      fail(key, "must be text, not " + shown(*v));
      return {};
    }
    return std::string(v->get_string().data(), v->get_string().size());
  }

  /// One id or a list of ids, each in [0, vocab_size).
  std::vector<std::int32_t> token_ids(std::string_view key, std::int64_t vocab_size) {
    std::vector<std::int32_t> ids;
    const json::value* v = find(key);
    if (!v) return ids;
    auto add = [&](const json::value& item) {
      const std::optional<std::int64_t> id = whole_number(item);
      if (!id || *id < 0 || *id >= vocab_size) {
        fail(key, "holds " + shown(item) + ", which is no token of a vocabulary of " + std::to_string(vocab_size));
        return;
      }
      const auto token = static_cast<std::int32_t>(*id);
      if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
    };
    if (v->is_array()) {
      if (v->get_array().size() > 256) fail(key, "lists more than 256 ids");
      else for (const json::value& item : v->get_array()) add(item);
    } else {
      add(*v);
    }
    return ids;
  }

  static std::string shown(const json::value& v) {
    std::string text = json::serialize(v);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
  }

 private:
  static std::optional<std::int64_t> whole_number(const json::value& v) {
    if (v.is_int64()) return v.get_int64();
    if (v.is_double() && std::abs(v.get_double()) < 9e15 && v.get_double() == std::floor(v.get_double())) {
      return static_cast<std::int64_t>(v.get_double());
    }
    return std::nullopt;
  }

  const json::object& object_;
  std::string prefix_;
  Status status_;
};

struct FamilyRow {
  const char *architecture, *model_type;
  ModelFamily family;
};
constexpr FamilyRow kFamilies[] = {
    {"LlamaForCausalLM", "llama", ModelFamily::kLlama},
    {"MistralForCausalLM", "mistral", ModelFamily::kMistral},
    {"Qwen2ForCausalLM", "qwen2", ModelFamily::kQwen2},
    {"Qwen3ForCausalLM", "qwen3", ModelFamily::kQwen3},
};
constexpr const char* kSupported =
    "supported are LlamaForCausalLM (Llama, Yi, TinyLlama, DeepSeek-R1-Distill-Llama), MistralForCausalLM, Qwen2ForCausalLM and "
    "Qwen3ForCausalLM";

void read_family(FieldReader& in, ModelConfig& c) {
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
        in.fail("model_type", "is \"" + c.model_type + "\" but the architecture " + architecture + " goes with \"" + row.model_type + "\"");
      }
      return;
    }
  }
  const bool by_type = architecture.empty();
  in.unsupported(by_type ? "model_type" : "architectures",
                 (by_type ? "model type " + c.model_type : "architecture " + architecture) + " is not supported; " + kSupported);
}

void refuse_unsupported(FieldReader& in) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (in.find(key) && in.integer(key, 0, kMaxWidth, 0) > 0) {
      in.unsupported(key, "mixture-of-experts models are not supported");
    }
  }
  if (in.find("quantization_config")) {
    in.unsupported("quantization_config",
                   "the folder holds quantised weights; use the original f32, f16 or bf16 weights (they can be quantised at load)");
  }
  if (const std::string act = in.text("hidden_act"); !act.empty() && act != "silu" && act != "swish") {
    in.unsupported("hidden_act", "activation " + act + " is not supported, only silu");
  }
  if (in.find("partial_rotary_factor") && in.number("partial_rotary_factor", 0, 1, 1.0) != 1.0) {
    in.unsupported("partial_rotary_factor", "partly rotated heads are not supported");
  }
}

void read_shape(FieldReader& in, ModelConfig& c) {
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
    return in.fail("num_key_value_heads", "(" + std::to_string(c.num_kv_heads) + ") must divide num_attention_heads (" +
                                              std::to_string(c.num_heads) + ")");
  }
  if (c.group_size() > kMaxGroup) {
    return in.unsupported("num_key_value_heads", std::to_string(c.group_size()) + " query heads share one KV head; at most " +
                                                     std::to_string(kMaxGroup) + " are supported");
  }
  if (!in.find("head_dim") && c.hidden_size % c.num_heads != 0) {
    return in.fail("hidden_size", "(" + std::to_string(c.hidden_size) + ") must be a multiple of num_attention_heads (" +
                                      std::to_string(c.num_heads) + ") when head_dim is not given");
  }
  c.head_dim = i32(in.integer("head_dim", 1, kMaxWidth, c.hidden_size / c.num_heads));
  if (c.head_dim % 8 != 0 || c.head_dim > kMaxHeadDim) {
    in.unsupported("head_dim", "head_dim " + std::to_string(c.head_dim) + " is not supported: it must be a multiple of 8 up to " +
                                   std::to_string(kMaxHeadDim));
  }
}

void read_switches(FieldReader& in, ModelConfig& c) {
  c.rms_norm_eps = static_cast<float>(in.number("rms_norm_eps", 1e-12, 1, 1e-6));
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", false);
  const bool attention_bias = in.boolean("attention_bias", false);
  const bool mlp_bias = in.boolean("mlp_bias", false);
  switch (c.family) {
    case ModelFamily::kLlama:
      c.qkv_bias = c.attention_output_bias = attention_bias;
      c.mlp_bias = mlp_bias;
      break;
    case ModelFamily::kMistral: break;
    case ModelFamily::kQwen2: c.qkv_bias = true; break;
    case ModelFamily::kQwen3:
      c.qkv_bias = c.attention_output_bias = attention_bias;
      c.qk_norm = true;
      break;
  }
}

void read_sliding_window(FieldReader& in, ModelConfig& c) {
  if (c.family == ModelFamily::kLlama) return;  // the Llama classes have no such thing
  std::int64_t window = in.integer("sliding_window", 0, std::numeric_limits<std::int64_t>::max(), 0);
  if (window == 0) return;
  if (c.family != ModelFamily::kMistral) {
    if (!in.boolean("use_sliding_window", false)) return;
    if (in.integer("max_window_layers", 0, std::numeric_limits<std::int32_t>::max(), 0) >= c.num_layers) return;
  }
  if (const json::value* types = in.find("layer_types")) {
    if (!types->is_array()) return in.fail("layer_types", "must be a list of names");
    bool any = false;
    for (const json::value& type : types->get_array()) any |= type.is_string() && type.get_string() == "sliding_attention";
    if (!any) return;
  }
  c.sliding_window = window;
}

/// `in` reads the rope_scaling or rope_parameters object.
void read_rope_scaling(FieldReader& in, const ModelConfig& c, std::int64_t top_level_original, RopeConfig& rope) {
  std::string type = in.text("rope_type");
  if (type.empty()) type = in.text("type");
  const bool theta_only = in.path("").rfind("rope_parameters", 0) == 0;
  if (!in.status().ok()) return;
  if (type.empty() && !theta_only) return in.fail("rope_type", "is missing; it must be default, linear, llama3 or yarn");
  if (type.empty() || type == "default") return;
  constexpr double kBig = 1e6;
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
    const double mscale = in.number("mscale", 0, kBig, 0.0), all_dim = in.number("mscale_all_dim", 0, kBig, 0.0);
    if (rope.attention_factor == 0 && mscale > 0 && all_dim > 0 && rope.factor > 1) {
      const double log_factor = std::log(static_cast<double>(rope.factor));
      rope.attention_factor = static_cast<float>((0.1 * mscale * log_factor + 1.0) / (0.1 * all_dim * log_factor + 1.0));
    }
    if (!in.boolean("truncate", true)) in.unsupported("truncate", "YaRN without truncated correction bounds is not supported");
  } else {
    return in.unsupported("rope_type", "RoPE scaling \"" + type + "\" is not supported; default, linear, llama3 and yarn are");
  }
  if (rope.scaling == RopeScaling::kLinear) return;
  // llama3 must say where it was trained first; YaRN falls back to the window itself, as Hugging Face does.
  std::optional<std::int64_t> fallback;
  if (top_level_original > 0) fallback = top_level_original;
  else if (rope.scaling == RopeScaling::kYarn) fallback = c.max_position_embeddings;
  rope.original_max_position = in.integer("original_max_position_embeddings", 1, kMaxPositions, fallback);
}

void read_rope(FieldReader& in, ModelConfig& c) {
  RopeConfig& rope = c.rope;
  constexpr double kMaxTheta = 1e15;
  rope.head_dim = rope.rotary_dim = c.head_dim;
  rope.interleaved = in.boolean("rope_interleaved", false);
  rope.theta = static_cast<float>(in.number("rope_theta", 1, kMaxTheta, 10000.0));
  const char* key = in.find("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json::value* scaling = in.find(key);
  if (!in.status().ok() || !scaling) return;
  if (!scaling->is_object()) return in.fail(key, "must be an object or null, not " + FieldReader::shown(*scaling));
  if (scaling->get_object().empty()) return;

  FieldReader inner(scaling->get_object(), std::string(key) + ".");
  if (inner.find("full_attention") || inner.find("sliding_attention")) {
    return in.unsupported(key, "different RoPE settings per layer are not supported");
  }
  if (inner.find("rope_theta")) rope.theta = static_cast<float>(inner.number("rope_theta", 1, kMaxTheta));
  if (inner.find("partial_rotary_factor") && inner.number("partial_rotary_factor", 0, 1, 1.0) != 1.0) {
    inner.unsupported("partial_rotary_factor", "partly rotated heads are not supported");
  }
  const std::int64_t original = in.integer("original_max_position_embeddings", 1, kMaxPositions, 0);
  read_rope_scaling(inner, c, original, rope);
  if (!inner.status().ok()) {
    return in.adopt(inner.status());
  }
  // Folders that enable YaRN by hand keep the trained window in max_position_embeddings.
  if (rope.scaling == RopeScaling::kYarn) {
    const auto scaled = static_cast<std::int64_t>(std::floor(static_cast<double>(rope.factor) * static_cast<double>(rope.original_max_position)));
    c.max_position_embeddings = std::clamp(scaled, c.max_position_embeddings, kMaxPositions);
  }
}

Result<json::value> parse_json(std::string_view text, std::string_view file) {
  boost::system::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) return Status::invalid(std::string(file), std::string(file) + " is not valid JSON: " + error.message());
  if (!value.is_object()) return Status::invalid(std::string(file), std::string(file) + " must hold one JSON object");
  return value;
}

Result<ModelConfig> parse_config_object(const json::object& object) {
  ModelConfig c;
  FieldReader in(object, "");
  using Step = void (*)(FieldReader&, ModelConfig&);
  constexpr Step kSteps[] = {read_family, [](FieldReader& r, ModelConfig&) { refuse_unsupported(r); },
                             read_shape,  read_switches, read_sliding_window, read_rope};
  for (Step step : kSteps) {
    step(in, c);
    if (!in.status().ok()) return in.status();
  }
  c.bos_token_ids = in.token_ids("bos_token_id", c.vocab_size);
  c.eos_token_ids = in.token_ids("eos_token_id", c.vocab_size);
  if (!in.status().ok()) return in.status();
  // Anything past this is a typing error, not a model: it would overflow the arithmetic of sizes.
  if (c.num_parameters() > (std::int64_t{1} << 42)) {
    return Status::invalid("hidden_size", "the shapes describe " + std::to_string(c.num_parameters()) + " parameters; check the sizes");
  }
  return c;
}

Result<std::string> read_text_file(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return Status(Code::kNotFound, "cannot read " + path.string() + ": " + error.message(), name);
  if (size > kMaxConfigBytes) return Status::invalid(name, path.string() + " is larger than any model configuration");
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) return Status(Code::kIo, "cannot read " + path.string(), name);
  return text;
}

Status add_generation_eos(const std::filesystem::path& path, ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(std::string text, read_text_file(path));
  QUIRE_ASSIGN_OR_RETURN(json::value value, parse_json(text, "generation_config.json"));
  FieldReader in(value.get_object(), "");
  for (std::int32_t id : in.token_ids("eos_token_id", config.vocab_size)) {
    auto& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return in.status().ok() ? Status() : in.status().with_context("generation_config.json");
}

}  // namespace

std::int64_t ModelConfig::num_parameters() const {
  const std::int64_t h = hidden_size, d = head_dim, q = num_heads * d, kv = num_kv_heads * d, f = intermediate_size;
  std::int64_t layer = h * (q + 2 * kv) + q * h + 3 * h * f + 2 * h;
  if (qkv_bias) layer += q + 2 * kv;
  if (attention_output_bias) layer += h;
  if (mlp_bias) layer += 2 * f + h;
  if (qk_norm) layer += 2 * d;
  return layer * num_layers + h * vocab_size * (tie_word_embeddings ? 1 : 2) + h;
}

Result<ModelConfig> parse_model_config(std::string_view text) {
  try {
    QUIRE_ASSIGN_OR_RETURN(json::value value, parse_json(text, "config.json"));
    return parse_config_object(value.get_object());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return Status::invalid("config.json", std::string("config.json cannot be read: ") + e.what());
  }
}

Result<ModelConfig> load_model_config(const std::filesystem::path& dir) {
  QUIRE_ASSIGN_OR_RETURN(std::string text, read_text_file(dir / "config.json"));
  Result<ModelConfig> config = parse_model_config(text);
  if (!config.ok()) return config.status().with_context((dir / "config.json").string());
  const std::filesystem::path generation = dir / "generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(generation, error)) QUIRE_RETURN_IF_ERROR(add_generation_eos(generation, *config));
  return config;
}

}  // namespace quire
