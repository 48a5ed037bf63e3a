#include "engine/encoder/encoder_config.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <string_view>

#include "base/json_object.h"
#include "base/json_parse.h"
#include "engine/model/json_fields.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::int64_t kMostWidth = 1 << 16;

/// Returns the file's object, which is empty if there is no such file.
Result<json::object> optional_object(const std::filesystem::path& path) {
  const auto text = read_json_file(path);
  if (text.code() == Code::kNotFound) return json::object();
  QUIRE_RETURN_IF_ERROR(text.status());
  return parse_json_object(path.filename().string(), *text);
}

Status read_pooling(const std::filesystem::path& folder, EncoderConfig& out) {
  const std::string file = "1_Pooling/config.json";
  QUIRE_ASSIGN_OR_RETURN(const json::object object, optional_object(folder / file));
  std::string mode = string_at(object, "pooling_mode").value_or("");
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kFlags = {
      {{"pooling_mode_mean_tokens", "mean"},
       {"pooling_mode_cls_token", "cls"},
       {"pooling_mode_max_tokens", "max"},
       {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
       {"pooling_mode_weightedmean_tokens", "weightedmean"},
       {"pooling_mode_lasttoken", "lasttoken"}}};
  for (const auto& [flag, name] : kFlags) {
    if (!bool_at(object, flag).value_or(false)) continue;
    mode = mode.empty() ? std::string(name) : mode + " and " + std::string(name);
  }
  if (mode == "cls")
    out.pooling = Pooling::kFirst;
  else if (!mode.empty() && mode != "mean")
    return Status(Code::kUnimplemented,
                  file + " asks for pooling " + mode + "; this build has mean and cls", file);
  return {};
}

/// Refuses what would come behind the pooling and change the vectors.
Status check_modules(const std::filesystem::path& folder) {
  const std::string file = "modules.json";
  const auto text = read_json_file(folder / file);
  if (text.code() == Code::kNotFound) return {};
  QUIRE_RETURN_IF_ERROR(text.status());
  json::value modules;
  if (parse_json(*text, modules) || !modules.is_array())
    return Status::invalid(file, file + " must hold a JSON array");
  for (const json::value& module : modules.get_array()) {
    const json::object* object = module.if_object();
    const std::string type = object ? string_at(*object, "type").value_or("") : "";
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name != "Transformer" && name != "Pooling" && name != "Normalize")
      return Status(Code::kUnimplemented,
                    file + " names the module '" + type +
                        "'; this build has Transformer, Pooling and Normalize",
                    file);
  }
  return {};
}

Status read_limits(const std::filesystem::path& folder, EncoderConfig& out) {
  out.max_tokens = out.bert.positions;
  QUIRE_ASSIGN_OR_RETURN(const json::object object,
                         optional_object(folder / "sentence_bert_config.json"));
  JsonFields fields(object, "sentence_bert_config.json");
  out.max_tokens = std::min(out.max_tokens,
                            fields.integer("max_seq_length", 8, 1 << 20, out.max_tokens));
  return fields.status();
}

Status read_prompts(const std::filesystem::path& folder, EncoderConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(const json::object object,
                         optional_object(folder / "config_sentence_transformers.json"));
  const json::object* prompts = object_at(object, "prompts");
  if (!prompts) return {};
  out.question_prompt = string_at(*prompts, "query").value_or("");
  for (const char* name : {"document", "passage"}) {
    if (const auto text = string_at(*prompts, name)) out.text_prompt = *text;
  }
  return {};
}

}  // namespace

Result<BertConfig> parse_bert_config(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const json::object object, parse_json_object("config.json", text));
  JsonFields f(object, "");
  BertConfig c;
  if (const std::string type = f.text("model_type"); type != "bert")
    f.unsupported("model_type", "model_type is '" + type +
                                    "'; this build runs encoders of type bert (MiniLM, BGE, E5)");
  c.hidden = f.integer("hidden_size", 8, kMostWidth);
  c.layers = f.integer("num_hidden_layers", 1, 1000);
  c.heads = f.integer("num_attention_heads", 1, kMostWidth);
  c.intermediate = f.integer("intermediate_size", 1, 8 * kMostWidth);
  c.vocab = f.integer("vocab_size", 1, 1 << 22);
  c.positions = f.integer("max_position_embeddings", 8, 1 << 20);
  c.types = f.integer("type_vocab_size", 1, 1 << 10, 2);
  c.eps = static_cast<float>(f.number("layer_norm_eps", 0, 1, 1e-12));
  if (const json::value* act = f.find("hidden_act"); act && *act != json::value("gelu"))
    f.unsupported("hidden_act",
                  "hidden_act is " + JsonFields::shown(*act) + "; this build has gelu");
  if (const json::value* kind = f.find("position_embedding_type");
      kind && *kind != json::value("absolute"))
    f.unsupported(
        "position_embedding_type",
        "position_embedding_type is " + JsonFields::shown(*kind) + "; this build has absolute");
  QUIRE_RETURN_IF_ERROR(f.status());
  if (c.hidden % c.heads != 0)
    return Status::invalid("num_attention_heads",
                           "hidden_size is no multiple of num_attention_heads");
  if (const std::int64_t d = c.hidden / c.heads; d % 8 != 0 || d > 256)
    return Status(
        Code::kUnimplemented,
        "heads have " + std::to_string(d) + " values; this build has multiples of 8 up to 256",
        "num_attention_heads");
  return c;
}

Result<EncoderConfig> read_encoder_config(const std::filesystem::path& folder) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_json_file(folder / "config.json"));
  EncoderConfig out;
  QUIRE_ASSIGN_OR_RETURN(out.bert, parse_bert_config(text));
  QUIRE_RETURN_IF_ERROR(check_modules(folder));
  QUIRE_RETURN_IF_ERROR(read_pooling(folder, out));
  QUIRE_RETURN_IF_ERROR(read_limits(folder, out));
  QUIRE_RETURN_IF_ERROR(read_prompts(folder, out));
  return out;
}

}  // namespace quire
