/// The JSON objects of model folders, read without exceptions. Users include <boost/json.hpp>
/// themselves, in .cc files only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace boost::json {
class object;
class array;
}  // namespace boost::json

namespace quire {

/// Parses the text of a file (base/json_parse.h); of a repeated key the last value stays. Errors:
/// kInvalidArgument (field: file) with the byte it was found at; also if the text is no JSON
/// object.
Result<boost::json::object> parse_json_object(std::string_view file, std::string_view text);

/// A file no larger than any model configuration. Errors: kNotFound, kInvalidArgument (too large),
/// kIo; field() is its name.
Result<std::string> read_json_file(const std::filesystem::path& path);

/// The member, or null where it is missing, null, or of another type.
const boost::json::object* object_at(const boost::json::object& object, std::string_view key);
const boost::json::array* array_at(const boost::json::object& object, std::string_view key);
std::optional<std::string> string_at(const boost::json::object& object, std::string_view key);
std::optional<bool> bool_at(const boost::json::object& object, std::string_view key);

}  // namespace quire
