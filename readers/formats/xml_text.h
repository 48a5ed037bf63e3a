/// What the readers of office formats share: strict XML within limits.
#pragma once

#include <map>
#include <pugixml.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// Parses `entry` of an unpacked archive into `out`, whose strings then lie in it. Errors:
/// kInvalidArgument (it is missing, no XML, or nests more than 500 levels).
Status parse_entry(const std::map<std::string, std::string>& entries, const std::string& entry,
                   pugi::xml_document& out);

/// Returns a name without its namespace prefix: "p" of "w:p".
std::string_view local_name(const pugi::xml_node& node);
/// Returns the value of the attribute with this local name; empty: there is none.
std::string_view local_attribute(const pugi::xml_node& node, std::string_view name);
/// Returns the first child with this local name; null: there is none.
/// Returns an attribute as a whole number; `otherwise` where it is none.
int local_number(const pugi::xml_node& node, std::string_view name, int otherwise);
pugi::xml_node local_child(const pugi::xml_node& node, std::string_view name);
/// Returns the text of the first node below `node` with this local name.
std::string text_of_first(const pugi::xml_node& node, std::string_view name);

}  // namespace quire
