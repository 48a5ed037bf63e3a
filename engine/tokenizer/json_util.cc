#include "engine/tokenizer/json_util.h"

#include <boost/json.hpp>

#include "engine/tokenizer/tokenizer_base.h"

namespace quire::tokenizer_internal {

Result<json::object> parse_json_object(const std::string& file, std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  json::stream_parser parser;
  json::error_code error;
  const std::size_t read = parser.write_some(text.data(), text.size(), error);
  if (!error && read < text.size() && text.find_first_not_of(" \t\r\n", read) != std::string_view::npos) {
    return Status::invalid(file, file + ": more text after the end of the JSON, at byte " + std::to_string(read));
  }
  if (!error) parser.finish(error);
  if (error) return Status::invalid(file, file + ": invalid JSON near byte " + std::to_string(read) + ": " + error.message());
  json::value value = parser.release();
  if (!value.is_object()) return Status::invalid(file, file + ": must hold a JSON object");
  return std::move(value.get_object());
}

const json::object* object_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

const json::array* array_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_array();
}

std::optional<std::string> string_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return std::string(value->get_string());
}

std::optional<bool> bool_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_bool()) return std::nullopt;
  return value->get_bool();
}

std::optional<std::int32_t> id_of(const json::value& value) {
  if (!value.is_int64() && !value.is_uint64()) return std::nullopt;
  json::error_code error;
  const auto id = value.to_number<std::int64_t>(error);
  if (error || id < 0 || id >= kMaxVocabulary) return std::nullopt;
  return static_cast<std::int32_t>(id);
}

}  // namespace quire::tokenizer_internal
