#include "ingest/document/metadata.h"

#include <boost/json.hpp>

#include "base/json_parse.h"

namespace quire {
namespace {

namespace json = boost::json;

Result<json::object> parse_object(std::string_view text, const JsonLimits& limits) {
  if (text.empty()) return json::object();
  json::value value;
  if (const auto error = parse_json(text, value, limits)) {
    return Status::invalid(
        "metadata", error->kind == JsonTextError::Kind::kUtf8
                        ? "metadata is not valid UTF-8 at byte " + std::to_string(error->byte)
                        : "metadata is not valid JSON: " + error->reason);
  }
  if (!value.is_object()) return Status::invalid("metadata", "metadata must be a JSON object");
  return std::move(value.get_object());
}

Result<std::string> bounded(const json::object& object, std::size_t max_bytes) {
  std::string text = json::serialize(object);
  if (text.size() > max_bytes) {
    return Status::invalid("metadata", "metadata has " + std::to_string(text.size()) +
                                           " bytes, the limit is " + std::to_string(max_bytes));
  }
  return text;
}

void merge(json::object& base, const json::object& patch) {
  for (const auto& [key, value] : patch) {
    if (value.is_null()) {
      base.erase(key);
    } else if (value.is_object()) {
      json::value& old = base[key];
      if (!old.is_object()) old = json::object();
      merge(old.get_object(), value.get_object());
    } else {
      base[key] = value;
    }
  }
}

}  // namespace

Result<std::string> normalize_metadata(std::string_view text, std::size_t max_bytes) {
  QUIRE_ASSIGN_OR_RETURN(const json::object object, parse_object(text, kOutsideJson));
  return bounded(object, max_bytes);
}

Result<std::string> merge_metadata(std::string_view base, std::string_view patch,
                                   std::size_t max_bytes) {
  QUIRE_ASSIGN_OR_RETURN(json::object object, parse_object(base, {}));
  QUIRE_ASSIGN_OR_RETURN(const json::object change, parse_object(patch, kOutsideJson));
  merge(object, change);
  return bounded(object, max_bytes);
}

}  // namespace quire
