#include "base/json_object.h"

#include <boost/json.hpp>
#include <fstream>
#include <system_error>

#include "base/index.h"
#include "base/json_parse.h"

namespace quire {
namespace json = boost::json;

Result<json::object> parse_json_object(std::string_view file_name, std::string_view text) {
  const std::string file(file_name);
  json::value value;
  // Python's json module, with which models are published, accepts repeated keys too.
  if (const auto error = parse_json(text, value, {.repeated_keys = true})) {
    const std::string byte = std::to_string(error->byte);
    if (error->kind == JsonTextError::Kind::kTrailing)
      return Status::invalid(file, file + ": more text after the end of the JSON, at byte " + byte);
    return Status::invalid(file, file + ": invalid JSON near byte " + byte + ": " + error->reason);
  }
  if (!value.is_object()) return Status::invalid(file, file + ": must hold a JSON object");
  return std::move(value.get_object());
}

Result<std::string> read_json_file(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMaxBytes = 16 << 20;
  const std::string name = path.filename().string();
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error)
    return Status(Code::kNotFound, "cannot read " + path.string() + ": " + error.message(), name);
  if (size > kMaxBytes)
    return Status::invalid(name, path.string() + " is larger than any model configuration");
  std::ifstream file(path, std::ios::binary);
  std::string text(to_size(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) return Status(Code::kIo, "cannot read " + path.string(), name);
  return text;
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

}  // namespace quire
