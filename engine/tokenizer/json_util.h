/// JSON of model folders, read without exceptions. Users include <boost/json.hpp> themselves, in .cc files only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace boost::json {
class value;
class object;
class array;
}  // namespace boost::json

namespace quire::tokenizer_internal {

namespace json = boost::json;

/// Errors: kInvalidArgument (field: file) with the position; also if the text is no JSON object.
Result<json::object> parse_json_object(const std::string& file, std::string_view text);

/// The member, or null where it is missing, null, or of another type.
const json::object* object_at(const json::object& object, std::string_view key);
const json::array* array_at(const json::object& object, std::string_view key);
std::optional<std::string> string_at(const json::object& object, std::string_view key);
std::optional<bool> bool_at(const json::object& object, std::string_view key);
/// An id: an integer in [0, kMaxVocabulary).
std::optional<std::int32_t> id_of(const json::value& value);

}  // namespace quire::tokenizer_internal
