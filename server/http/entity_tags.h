/// Values of If-Match and If-None-Match (RFC 9110, sections 8.8.3, 13.1.1 and 13.1.2).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_message.h"

namespace quire {

struct EntityTags {
  bool any = false;                       ///< "*"
  std::vector<std::string> strong, weak;  ///< without quotes and W/
};

/// Reads a list of tags. A tag without quotes is taken as if it had them. None: it is malformed.
std::optional<EntityTags> parse_entity_tags(std::string_view text);

/// Returns all fields of that name as one list; none: there is no such field.
std::optional<std::string> joined_fields(const Headers& headers, std::string_view name);

}  // namespace quire
