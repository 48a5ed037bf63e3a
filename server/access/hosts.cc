#include "server/access/hosts.h"

#include <algorithm>

#include "server/access/auth.h"
#include "server/http/http_message.h"

namespace quire {

std::string host_name(std::string_view header) {
  while (header.starts_with(' ')) header.remove_prefix(1);
  while (header.ends_with(' ')) header.remove_suffix(1);
  const std::size_t bracket = header.starts_with('[') ? header.find(']') : 0;
  const std::size_t colon = bracket == std::string_view::npos ? bracket : header.find(':', bracket);
  if (colon != std::string_view::npos) header = header.substr(0, colon);
  if (header.ends_with('.')) header.remove_suffix(1);
  std::string out(header);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool host_allowed(std::string_view header, std::string_view bound,
                  const std::vector<std::string>& allowed) {
  if (allowed.empty() && !is_loopback(bound)) return true;
  const std::string host = host_name(header);
  const std::string own = bound.find(':') != std::string_view::npos && !bound.starts_with('[')
                              ? "[" + std::string(bound) + "]"
                              : std::string(bound);
  if (is_loopback(host) || host == host_name(own)) return true;
  return std::ranges::any_of(
      allowed, [&](const std::string& name) { return name == "*" || host_name(name) == host; });
}

bool is_own_origin(std::string_view origin, std::string_view host_header,
                   const std::vector<std::string>& allowed) {
  const auto scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;  // "null": of a page that hides it
  const std::string_view host = origin.substr(scheme + 3);
  if (!host.empty() && iequals(host, trim(host_header))) return true;
  const std::string own = host_name(host);
  return std::ranges::any_of(
      allowed, [&](const std::string& name) { return name == "*" || host_name(name) == own; });
}

bool is_cors_safelisted(std::string_view media_type) {
  return media_type.empty() || media_type == "text/plain" || media_type == "multipart/form-data" ||
         media_type == "application/x-www-form-urlencoded";
}

}  // namespace quire
