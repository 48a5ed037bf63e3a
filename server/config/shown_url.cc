#include "server/config/shown_url.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace quire {
namespace {

constexpr std::string_view kHidden = "***";

bool names_secret(std::string_view option) {
  std::string name(option);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 4> kSecrets = {"password", "passphrase", "secret",
                                                        "token"};
  return std::ranges::any_of(kSecrets,
                             [&](std::string_view s) { return name.find(s) != name.npos; });
}

}  // namespace

std::string url_without_secrets(std::string_view url) {
  const auto scheme = url.find("://");
  if (scheme == url.npos) return std::string(url);
  const std::size_t begin = scheme + 3, options = std::min(url.find('?', begin), url.size());
  // A password may hold any byte, so what precedes the last '@' belongs to it.
  const std::string_view servers = url.substr(begin, options - begin);
  const auto at = servers.rfind('@');
  std::string out(url.substr(0, begin));
  if (at == servers.npos) {
    out += servers;
  } else {
    const auto colon = servers.find(':');
    if (colon < at)
      out.append(servers.substr(0, colon + 1)).append(kHidden);
    else
      out += servers.substr(0, at);
    out += servers.substr(at);
  }
  for (std::size_t next = options; next < url.size();) {
    const std::size_t end = std::min(url.find('&', next + 1), url.size());
    const std::string_view option = url.substr(next, end - next);  // with the '?' or '&'
    const auto equals = option.find('=');
    if (equals != option.npos && names_secret(option.substr(0, equals)))
      out.append(option.substr(0, equals + 1)).append(kHidden);
    else
      out += option;
    next = end;
  }
  return out;
}

}  // namespace quire
