#include "engine/tokenizer/config_files.h"

#include <boost/json.hpp>
#include <charconv>

#include "base/json_object.h"
#include "engine/tokenizer/tokenizer_base.h"

namespace quire::tokenizer_internal {
namespace json = boost::json;
namespace {

/// A token written as its spelling or as {"content": spelling, ...}.
std::optional<std::string> spelling(const json::value& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_object()) return string_at(value.get_object(), "content");
  return std::nullopt;
}

std::optional<std::string> spelling_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? std::nullopt : spelling(*value);
}

Status add_token_ids(const std::string& file, const json::object& object, std::string_view key,
                     std::vector<std::int32_t>& ids) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return {};
  const auto bad = [&] {
    return Status::invalid(
        file, file + ": '" + std::string(key) + "' must be a token id or a list of token ids");
  };
  if (const json::array* list = value->if_array()) {
    for (const json::value& item : *list) {
      const auto id = id_of(item);
      if (!id) return bad();
      ids.push_back(*id);
    }
    return {};
  }
  const auto id = id_of(*value);
  if (!id) {
    // -1 is written by some converters for "none".
    return value->is_int64() && value->get_int64() == -1 ? Status() : bad();
  }
  ids.push_back(*id);
  return {};
}

void collect_special(const json::object& object, ConfigFiles& out) {
  for (const std::string_view key : {"bos_token", "eos_token", "unk_token", "pad_token",
                                     "sep_token", "cls_token", "mask_token"}) {
    if (auto text = spelling_at(object, key)) out.special.push_back(std::move(*text));
  }
  const json::value* more = object.if_contains("additional_special_tokens");
  if (more == nullptr) more = object.if_contains("extra_special_tokens");
  if (more == nullptr || !more->is_array()) return;
  for (const json::value& item : more->get_array()) {
    if (auto text = spelling(item)) out.special.push_back(std::move(*text));
  }
}

Status parse_tokenizer_config(const std::string& text, ConfigFiles& out) {
  const std::string file = "tokenizer_config.json";
  QUIRE_ASSIGN_OR_RETURN(const json::object root, parse_json_object(file, text));
  out.has_tokenizer_config = true;
  out.bos = spelling_at(root, "bos_token");
  out.eos = spelling_at(root, "eos_token");
  out.add_bos = bool_at(root, "add_bos_token");
  out.legacy = bool_at(root, "legacy");
  out.tokenizer_class = string_at(root, "tokenizer_class").value_or("");
  collect_special(root, out);
  const json::object* decoder = object_at(root, "added_tokens_decoder");
  if (decoder == nullptr) return {};
  for (const auto& entry : *decoder) {
    const std::string key(entry.key());
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const json::object* token = entry.value().if_object();
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMaxVocabulary ||
        token == nullptr) {
      return Status::invalid(
          file, file + ": added_tokens_decoder has no token id as key '" + key.substr(0, 80) + "'");
    }
    const auto content = string_at(*token, "content");
    if (!content || content->empty() || content->size() > kMaxPieceBytes) {
      return Status::invalid(
          file, file + ": added_tokens_decoder." + key + ".content must be a non-empty string");
    }
    out.added.push_back({.id = id,
                         .text = *content,
                         .special = bool_at(*token, "special").value_or(false),
                         .lstrip = bool_at(*token, "lstrip").value_or(false),
                         .rstrip = bool_at(*token, "rstrip").value_or(false),
                         .single_word = bool_at(*token, "single_word").value_or(false)});
  }
  return {};
}

Status parse_added_tokens(const std::string& text, ConfigFiles& out) {
  const std::string file = "added_tokens.json";
  QUIRE_ASSIGN_OR_RETURN(const json::object root, parse_json_object(file, text));
  for (const auto& entry : root) {
    const std::string token(entry.key());
    const auto id = id_of(entry.value());
    if (!id || token.empty() || token.size() > kMaxPieceBytes) {
      return Status::invalid(file, file + ": '" + token.substr(0, 80) + "' must have a token id");
    }
    bool listed = false;
    for (const AddedToken& known : out.added) listed = listed || known.id == *id;
    if (!listed) out.added.push_back({.id = *id, .text = token});
  }
  return {};
}

Status parse_model_config(const std::string& text, ConfigFiles& out) {
  const std::string file = "config.json";
  QUIRE_ASSIGN_OR_RETURN(const json::object root, parse_json_object(file, text));
  out.model_type = string_at(root, "model_type").value_or("");
  QUIRE_RETURN_IF_ERROR(add_token_ids(file, root, "eos_token_id", out.eos_ids));
  std::vector<std::int32_t> bos;
  QUIRE_RETURN_IF_ERROR(add_token_ids(file, root, "bos_token_id", bos));
  if (!bos.empty()) out.bos_id = bos.front();
  if (const json::value* size = root.if_contains("vocab_size")) {
    out.model_vocab_size = id_of(*size);
    if (!out.model_vocab_size)
      return Status::invalid("vocab_size", file + ": vocab_size must be a positive number");
  }
  return {};
}

}  // namespace

std::optional<std::int32_t> id_of(const json::value& value) {
  if (!value.is_int64() && !value.is_uint64()) return std::nullopt;
  json::error_code error;
  const auto id = value.to_number<std::int64_t>(error);
  if (error || id < 0 || id >= kMaxVocabulary) return std::nullopt;
  return static_cast<std::int32_t>(id);
}

Result<ConfigFiles> parse_config_files(const TokenizerFiles& files) {
  ConfigFiles out;
  if (files.tokenizer_config)
    QUIRE_RETURN_IF_ERROR(parse_tokenizer_config(*files.tokenizer_config, out));
  if (files.added_tokens) QUIRE_RETURN_IF_ERROR(parse_added_tokens(*files.added_tokens, out));
  if (files.special_tokens_map) {
    QUIRE_ASSIGN_OR_RETURN(const json::object root,
                           parse_json_object("special_tokens_map.json", *files.special_tokens_map));
    collect_special(root, out);
    if (!out.has_tokenizer_config) {
      out.bos = spelling_at(root, "bos_token");
      out.eos = spelling_at(root, "eos_token");
    }
  }
  if (files.config) QUIRE_RETURN_IF_ERROR(parse_model_config(*files.config, out));
  if (files.generation_config) {
    QUIRE_ASSIGN_OR_RETURN(const json::object root,
                           parse_json_object("generation_config.json", *files.generation_config));
    QUIRE_RETURN_IF_ERROR(
        add_token_ids("generation_config.json", root, "eos_token_id", out.eos_ids));
  }
  for (AddedToken& token : out.added) {
    for (const std::string& text : out.special) token.special = token.special || token.text == text;
  }
  return out;
}

}  // namespace quire::tokenizer_internal
