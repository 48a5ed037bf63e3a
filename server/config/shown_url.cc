#include "server/config/shown_url.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace quire {
namespace {

constexpr std::string_view kHidden = "***";

/// `option` is a name behind its '?' or '&'.
bool names_secret(std::string_view option, bool over_http) {
  std::string name;  // of letters and digits alone: api_key is api-key and apiKey
  for (const char c : option)
    if (const auto byte = static_cast<unsigned char>(c); std::isalnum(byte) != 0)
      name += static_cast<char>(std::tolower(byte));
  constexpr std::array<std::string_view, 9> kSecrets = {
      "password",  "passphrase",      "secret",    "token",     "apikey",
      "accesskey", "subscriptionkey", "signature", "credential"};
  if (std::ranges::any_of(kSecrets, [&](std::string_view s) { return name.find(s) != name.npos; }))
    return true;
  // Elsewhere `key` is a file.
  constexpr std::array<std::string_view, 4> kOverHttp = {"key", "sig", "code", "auth"};
  return over_http && std::ranges::find(kOverHttp, name) != kOverHttp.end();
}

/// Returns where the address ends that the text begins with: at a space with another address behind
/// it, as in remote.url.
std::size_t end_of_address(std::string_view text) {
  for (auto space = text.find(' '); space != text.npos; space = text.find(' ', space + 1)) {
    const auto scheme = text.find("://", space);
    const std::string_view name = text.substr(space + 1,
                                              scheme == text.npos ? 0 : scheme - space - 1);
    const auto in_scheme = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.';
    };
    if (!name.empty() && std::ranges::all_of(name, in_scheme)) return space;
  }
  return text.size();
}

std::string address_without_secrets(std::string_view url) {
  const auto scheme = url.find("://");
  if (scheme == url.npos) return std::string(url);
  const std::size_t begin = scheme + 3;
  const bool over_http = url.starts_with("http");
  std::size_t options = std::min(url.find('?', begin), url.size());
  // A '?' may stand in a password, as libpq reads one: up to an '@' that no '/' precedes.
  if (const auto in_front = url.substr(0, url.find('/', begin)).rfind('@');
      in_front != url.npos && in_front > options && url.find(':', begin) < options)
    options = std::min(url.find('?', in_front), url.size());
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
    if (equals != option.npos && names_secret(option.substr(0, equals), over_http))
      out.append(option.substr(0, equals + 1)).append(kHidden);
    else
      out += option;
    next = end;
  }
  return out;
}

}  // namespace

std::string url_without_secrets(std::string_view url) {
  std::string out;
  while (!url.empty()) {
    const std::size_t end = end_of_address(url);
    out += address_without_secrets(url.substr(0, end));
    url.remove_prefix(end);
    if (url.empty()) break;
    out += ' ';
    url.remove_prefix(1);
  }
  return out;
}

}  // namespace quire
