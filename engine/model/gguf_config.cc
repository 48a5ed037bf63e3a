// These functions convert the metadata of a GGUF file to the fields of a config.json, which
// config.cc checks.
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "engine/model/gguf_model.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::int64_t kBig = std::numeric_limits<std::int64_t>::max();
constexpr const char* kArchitectures[] = {"llama", "qwen2", "qwen3", "phi3"};

std::string joined(std::span<const char* const> names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + std::string(names[i]);
  }
  return out;
}

/// ArchitectureFields reads keys of the file's architecture: "block_count" is llama.block_count.
class ArchitectureFields {
 public:
  ArchitectureFields(const GgufMetadata& metadata, std::string_view architecture)
      : in_(metadata), prefix_(std::string(architecture) + ".") {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const { return in_.has(key(name)); }
  std::int64_t integer(std::string_view name, std::optional<std::int64_t> fallback = {}) {
    if (in_.array(key(name)) != nullptr) {
      in_.fail(key(name), "is a list: layers of different shapes are not supported");
    }
    return in_.integer(key(name), 0, kBig, fallback);
  }
  double number(std::string_view name, std::optional<double> fallback = {}) {
    return in_.number(key(name), fallback);
  }
  GgufFields& all() { return in_; }
  void fail(std::string_view name, const std::string& message) { in_.fail(key(name), message); }

 private:
  GgufFields in_;
  std::string prefix_;
};

/// Returns the divisor of a frequency by Llama 3.1's formula.
double llama3_factor(double frequency, double factor, double original) {
  constexpr double kLow = 1, kHigh = 4;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / kHigh) return 1;
  if (wavelength > original / kLow) return factor;
  const double smooth = (original / wavelength - kLow) / (kHigh - kLow);
  return 1 / ((1 - smooth) / factor + smooth);
}

/// Derives the formula's parameters from the stored factors; false if no published ones give them.
bool derive_llama3(const std::vector<float>& factors, double theta, std::int64_t said,
                   json::object& scaling) {
  const double factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  if (!(factor >= 1)) return false;
  for (const std::int64_t original :
       {said, std::int64_t{8192}, std::int64_t{4096}, std::int64_t{16384}, std::int64_t{32768}}) {
    bool all = original > 0;
    for (std::size_t i = 0; all && i < factors.size(); ++i) {
      const double exponent = static_cast<double>(i) / static_cast<double>(factors.size());
      const double wanted = llama3_factor(std::pow(theta, -exponent), factor,
                                          static_cast<double>(original));
      all = std::abs(static_cast<double>(factors[i]) - wanted) <= 1e-4 * wanted;
    }
    if (!all) continue;
    scaling = {{"rope_type", "llama3"},
               {"factor", factor},
               {"low_freq_factor", 1.0},
               {"high_freq_factor", 4.0},
               {"original_max_position_embeddings", original}};
    return true;
  }
  return false;
}

/// Returns the divisor for each frequency that a tensor holds; none: there is no such tensor.
Result<std::optional<std::vector<float>>> divisors(const GgufFile& file, const std::string& name,
                                                   std::int64_t rotary_dim) {
  using Values = std::optional<std::vector<float>>;
  const GgufView view = file.find(name);
  if (view.tensor == nullptr) return Values();
  if (view.tensor->type.dtype != DType::kF32 || view.bytes.empty() ||
      view.bytes.size() != static_cast<std::size_t>(rotary_dim / 2) * sizeof(float)) {
    return Status::invalid(
        name, name + " must hold " + std::to_string(rotary_dim / 2) + " values of type F32");
  }
  std::vector<float> values(view.bytes.size() / sizeof(float));
  std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
  return Values(std::move(values));
}

json::object long_rope(json::array short_ones, json::array long_ones, std::int64_t original,
                       double attention_factor) {
  return {{"rope_type", "longrope"},
          {"short_factor", std::move(short_ones)},
          {"long_factor", std::move(long_ones)},
          {"original_max_position_embeddings", original},
          {"attention_factor", attention_factor}};
}

/// Reads rope_freqs.weight, whose divisors hold for the whole `window`.
Status read_factors(const GgufFile& file, std::int64_t rotary_dim, double theta, std::int64_t said,
                    std::int64_t window, json::object& scaling) {
  const std::string name = "rope_freqs.weight";
  QUIRE_ASSIGN_OR_RETURN(const auto read, divisors(file, name, rotary_dim));
  if (!read) return {};
  const std::vector<float>& factors = *read;
  if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1.0f; })) return {};
  if (!scaling.empty()) {
    return Status(Code::kUnimplemented, name + " beside another RoPE scaling is not supported",
                  name);
  }
  // A folder of the same model states the formula, so the fingerprints are alike where it is known.
  if (derive_llama3(factors, theta, said, scaling)) return {};
  const json::array all(factors.begin(), factors.end());
  scaling = long_rope(all, all, window, 1.0);
  return {};
}

/// Reads the tensors of LongRoPE, of which there are two or none.
Status read_long_rope(const GgufFile& file, ArchitectureFields& in, std::int64_t rotary_dim,
                      std::int64_t original, json::object& scaling) {
  QUIRE_ASSIGN_OR_RETURN(const auto short_ones,
                         divisors(file, "rope_factors_short.weight", rotary_dim));
  QUIRE_ASSIGN_OR_RETURN(const auto long_ones,
                         divisors(file, "rope_factors_long.weight", rotary_dim));
  if (!short_ones && !long_ones) return {};
  const std::string missing = short_ones ? "rope_factors_long.weight" : "rope_factors_short.weight";
  if (!short_ones || !long_ones)
    return Status::invalid(missing, missing + " is missing beside its other");
  if (!scaling.empty()) {
    return Status(Code::kUnimplemented, "LongRoPE beside another RoPE scaling is not supported",
                  "rope_factors_short.weight");
  }
  scaling = long_rope(json::array(short_ones->begin(), short_ones->end()),
                      json::array(long_ones->begin(), long_ones->end()), original,
                      in.number("rope.scaling.attn_factor", 0.0));
  return {};
}

Status read_scaling(const GgufFile& file, ArchitectureFields& in, std::int64_t rotary_dim,
                    double theta, json::object& out) {
  const bool old_name = !in.has("rope.scaling.factor") && in.has("rope.scale_linear");
  const char* factor_key = old_name ? "rope.scale_linear" : "rope.scaling.factor";
  // A file with a factor and without a type means linear.
  const std::string type(
      in.all().text(in.key("rope.scaling.type")).value_or(in.has(factor_key) ? "linear" : "none"));
  const std::int64_t original = in.integer("rope.scaling.original_context_length", 0);
  json::object scaling;
  const bool long_rope = type == "longrope";  // which its tensors tell without this name, too
  if (type != "none" && type != "linear" && type != "yarn" && !long_rope) {
    return Status(
        Code::kUnimplemented,
        "RoPE scaling \"" + type + "\" is not supported; none, linear, yarn and longrope are",
        in.key("rope.scaling.type"));
  }
  if (type != "none" && !long_rope) {
    const double factor = in.number(factor_key);
    if (type == "yarn" || (factor != 0 && factor != 1))  // 0 and 1: not scaled
      scaling = {{"rope_type", type}, {"factor", factor}};
    if (type == "yarn" && original > 0) scaling["original_max_position_embeddings"] = original;
  }
  if (type == "yarn") {
    // The file's factor multiplies the formula's; Hugging Face's replaces it.
    const double more = in.number("rope.scaling.attn_factor",
                                  in.number("rope.scaling.yarn_attn_factor", 1.0));
    const double factor = in.number(factor_key);
    if (more != 1 && factor > 0) scaling["attention_factor"] = more * (0.1 * std::log(factor) + 1);
    if (in.has("rope.scaling.yarn_beta_fast"))
      scaling["beta_fast"] = in.number("rope.scaling.yarn_beta_fast");
    if (in.has("rope.scaling.yarn_beta_slow"))
      scaling["beta_slow"] = in.number("rope.scaling.yarn_beta_slow");
    if (in.number("rope.scaling.yarn_log_multiplier", 0.0) != 0)
      in.fail("rope.scaling.yarn_log_multiplier", "is not supported");
    if (in.number("rope.scaling.yarn_ext_factor", 1.0) != 1)
      in.fail("rope.scaling.yarn_ext_factor", "is not supported");
  }
  QUIRE_RETURN_IF_ERROR(in.all().status());
  QUIRE_RETURN_IF_ERROR(read_long_rope(file, in, rotary_dim, original, scaling));
  if (long_rope && scaling.empty())
    in.fail("rope.scaling.type", "is longrope, but the file has no rope_factors_short.weight");
  QUIRE_RETURN_IF_ERROR(in.all().status());
  QUIRE_RETURN_IF_ERROR(
      read_factors(file, rotary_dim, theta, original, in.integer("context_length"), scaling));
  if (!scaling.empty()) out["rope_scaling"] = std::move(scaling);
  return {};
}

/// Reads token ids; converters write 2^32 - 1 for none.
void read_ids(GgufFields& in, json::object& out) {
  constexpr std::int64_t kNone = 0xffffffff;
  const auto id = [&](const char* name) {
    return in.integer(std::string("tokenizer.ggml.") + name + "_token_id", -1, kNone, kNone);
  };
  if (const std::int64_t bos = id("bos"); bos >= 0 && bos != kNone) out["bos_token_id"] = bos;
  json::array ends;
  for (const char* name : {"eos", "eot", "eom"}) {
    if (const std::int64_t end = id(name); end >= 0 && end != kNone) ends.emplace_back(end);
  }
  if (!ends.empty()) out["eos_token_id"] = std::move(ends);
}

Status read_shape(const GgufFile& file, ArchitectureFields& in, json::object& out) {
  const std::int64_t hidden = in.integer("embedding_length"),
                     heads = in.integer("attention.head_count");
  const std::int64_t kv_heads = in.integer("attention.head_count_kv", heads);
  const GgufArray* tokens = in.all().array("tokenizer.ggml.tokens");
  std::optional<std::int64_t> vocab;
  if (tokens != nullptr) vocab = static_cast<std::int64_t>(tokens->size);
  const std::int64_t head_dim = in.integer("attention.key_length", heads > 0 ? hidden / heads : 0);
  out["num_hidden_layers"] = in.integer("block_count");
  out["hidden_size"] = hidden;
  out["intermediate_size"] = in.integer("feed_forward_length");
  out["num_attention_heads"] = heads;
  out["num_key_value_heads"] = kv_heads;
  if (in.has("attention.key_length")) out["head_dim"] = head_dim;
  out["vocab_size"] = in.integer("vocab_size", vocab);
  out["max_position_embeddings"] = in.integer("context_length");
  out["rms_norm_eps"] = in.number("attention.layer_norm_rms_epsilon");
  out["tie_word_embeddings"] = file.find("output.weight").tensor == nullptr;
  if (const std::int64_t experts = in.integer("expert_count", 0); experts > 0)
    out["num_experts"] = experts;
  if (in.integer("attention.value_length", head_dim) != head_dim) {
    in.fail("attention.value_length", "differs from the length of keys, which is not supported");
  }
  const std::int64_t rotary_dim = in.integer("rope.dimension_count", head_dim);
  if (rotary_dim != head_dim && head_dim > 0)
    out["partial_rotary_factor"] = static_cast<double>(rotary_dim) / static_cast<double>(head_dim);
  const double theta = in.number("rope.freq_base", 10000.0);
  out["rope_theta"] = theta;
  QUIRE_RETURN_IF_ERROR(in.all().status());
  return read_scaling(file, in, rotary_dim, theta, out);
}

Result<ModelConfig> read_config(const GgufFile& file) {
  GgufFields general(file.metadata());
  const auto architecture = general.text("general.architecture");
  QUIRE_RETURN_IF_ERROR(general.status());
  if (!architecture)
    return Status::invalid("general.architecture",
                           "general.architecture is missing: the file holds no model");
  const bool known = std::find(std::begin(kArchitectures), std::end(kArchitectures),
                               *architecture) != std::end(kArchitectures);
  if (!known) {
    return Status(
        Code::kUnimplemented,
        "the architecture \"" + std::string(architecture->substr(0, 100)) +
            "\" is not supported; supported are " + joined(kArchitectures) +
            " (llama is also what Mistral, SmolLM, Yi and TinyLlama are, phi3 what Phi-4 is)",
        "general.architecture");
  }
  if (file.find("token_embd.weight").tensor == nullptr) {
    return Status::invalid("token_embd.weight", "the file holds no weights, only a vocabulary");
  }
  ArchitectureFields in(file.metadata(), *architecture);
  json::object out;
  out["model_type"] = *architecture;
  QUIRE_RETURN_IF_ERROR(read_shape(file, in, out));
  read_ids(in.all(), out);
  const std::int64_t window = in.integer("attention.sliding_window", 0);
  QUIRE_RETURN_IF_ERROR(in.all().status());
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(json::serialize(out)));
  // Files do not state these properties; their tensors show them.
  const auto has = [&](const char* name) { return file.find(name).tensor != nullptr; };
  config.qkv_bias = has("blk.0.attn_q.bias") || config.family == ModelFamily::kQwen2;
  config.attention_output_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_gate.bias");
  if (window < config.max_position_embeddings) config.sliding_window = window;
  std::size_t in_blocks = 0, in_all = 0;
  for (const auto& [name, view] : file.tensors()) {
    in_all += view.bytes.size();
    if (view.tensor->type.blocks) in_blocks += view.bytes.size();
  }
  config.quantised_weights = 2 * in_blocks > in_all;
  return config;
}

}  // namespace

Result<ModelConfig> gguf_model_config(const GgufFile& file) {
  Result<ModelConfig> config = read_config(file);
  if (!config.ok()) return config.status().with_context(file.path());
  return config;
}

}  // namespace quire
