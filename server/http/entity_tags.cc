#include "server/http/entity_tags.h"

#include <algorithm>

namespace quire {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t'; }

}  // namespace

std::optional<EntityTags> parse_entity_tags(std::string_view text) {
  EntityTags out;
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    if (is_space(text[at]) || text[at] == ',') {
      ++at;
      continue;
    }
    found = true;
    const bool weak = text.substr(at, 3) == "W/\"";
    if (weak) at += 2;
    std::string tag;
    if (text[at] == '"') {
      const auto end = text.find('"', at + 1);
      if (end == std::string_view::npos) return std::nullopt;
      tag = text.substr(at + 1, end - at - 1);
      at = end + 1;
    } else {
      const auto end = std::min(text.find_first_of(", \t", at), text.size());
      tag = text.substr(at, end - at);
      if (tag.find('"') != std::string::npos) return std::nullopt;
      at = end;
      if (tag == "*") {
        out.any = true;
        tag.clear();
      }
    }
    while (at < text.size() && is_space(text[at])) ++at;
    if (at < text.size() && text[at] != ',') return std::nullopt;
    if (!tag.empty()) (weak ? out.weak : out.strong).push_back(std::move(tag));
  }
  const bool alone = out.strong.empty() && out.weak.empty();
  if (!found || (out.any && !alone)) return std::nullopt;
  return out;
}

std::optional<std::string> joined_fields(const Headers& headers, std::string_view name) {
  std::optional<std::string> out;
  for (const auto& [n, value] : headers.fields()) {
    if (!iequals(n, name)) continue;
    if (out)
      out->append(", ").append(value);
    else
      out = value;
  }
  return out;
}

}  // namespace quire
