#include "cachestore/remote/remote_url.h"

#include <charconv>
#include <optional>
#include <utility>

namespace quire {
namespace {

constexpr std::uint16_t kRedisPort = 6379, kSentinelPort = 26379;
constexpr std::size_t kMaxHosts = 64;

Status wrong(const std::string& what) {
  return Status::invalid("remote.url", "remote.url " + what);
}

/// Takes the text up to `mark` off `rest`; without a mark it takes all.
std::string_view take_until(std::string_view& rest, char mark) {
  const std::size_t end = rest.find(mark);
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  return part;
}

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

Result<std::string> unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const auto high = i + 2 < text.size() ? hex_digit(text[i + 1]) : std::nullopt;
    const auto low = high ? hex_digit(text[i + 2]) : std::nullopt;
    if (!low) return wrong("has a '%' that two hexadecimal digits must follow");
    out += static_cast<char>(*high * 16 + *low);
    i += 2;
  }
  return out;
}

bool has_only_letters_and(std::string_view text, std::string_view extra) {
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && extra.find(c) == extra.npos) return false;
  }
  return true;
}

Result<RemoteHost> parse_host(std::string_view text, std::uint16_t default_port) {
  RemoteHost host{.name = {}, .port = default_port};
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == text.npos) return wrong("has an address that begins with '[' and lacks the ']'");
    host.name = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    has_port = !text.empty();
    if (has_port && text[0] != ':') return wrong("has text after the ']' of an address");
    port = has_port ? text.substr(1) : text;
  } else {
    const std::size_t colon = text.find(':');
    host.name = text.substr(0, colon);
    has_port = colon != text.npos;
    port = has_port ? text.substr(colon + 1) : std::string_view();
  }
  if (host.name.empty()) return wrong("has an empty host name; use redis://host or redis://a,b");
  if (has_port) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), host.port);
    if (error != std::errc() || end != port.data() + port.size() || host.port == 0)
      return wrong("has the port '" + std::string(port) + "'; use 1 to 65535");
  }
  return host;
}

using Options = std::vector<std::pair<std::string_view, std::string*>>;

Status parse_options(std::string_view text, const Options& known) {
  while (!text.empty()) {
    std::string_view value = take_until(text, '&');
    const std::string_view name = take_until(value, '=');
    std::string* place = nullptr;
    std::string names;
    for (const auto& [option, target] : known) {
      if (option == name) place = target;
      names += (names.empty() ? "" : ", ") + std::string(option);
    }
    if (place == nullptr) return wrong("has the option '" + std::string(name) + "'; use " + names);
    QUIRE_ASSIGN_OR_RETURN(*place, unescaped(value));
  }
  return {};
}

Result<RedisServer> parse_redis(std::string_view rest, bool tls, bool sentinel) {
  RedisServer server;
  server.tls = tls;
  std::string_view address = take_until(rest, '?');
  Options options{
      {"ca", &server.ca_file}, {"cert", &server.certificate_file}, {"key", &server.key_file}};
  if (sentinel) {
    options.emplace_back("sentinel_user", &server.sentinel_user);
    options.emplace_back("sentinel_password", &server.sentinel_password);
  }
  QUIRE_RETURN_IF_ERROR(parse_options(rest, options));
  if (!server.sentinel_user.empty() && server.sentinel_password.empty())
    return wrong("has the option sentinel_user without sentinel_password");
  if (server.certificate_file.empty() != server.key_file.empty())
    return wrong("has one of the options cert and key; a certificate needs its key");
  if (!tls && !(server.ca_file + server.certificate_file).empty())
    return wrong("has options of TLS; use rediss:// for a connection over TLS");
  if (const std::size_t at = address.rfind('@'); at != address.npos) {
    std::string_view password = address.substr(0, at);
    address.remove_prefix(at + 1);
    if (password.find(':') == password.npos)
      return wrong("has a user without a password; use redis://user:password@host");
    const std::string_view user = take_until(password, ':');
    QUIRE_ASSIGN_OR_RETURN(server.user, unescaped(user));
    QUIRE_ASSIGN_OR_RETURN(server.password, unescaped(password));
    if (server.password.empty())
      return wrong("has an empty password; use redis://user:password@host");
  }
  if (sentinel) {
    std::string_view name = address;
    address = take_until(name, '/');
    server.sentinel_master = name;
    if (name.empty() || !has_only_letters_and(name, "._-"))
      return wrong(
          "names no master after the sentinels, of letters, digits, '.', '_' and '-'; use "
          "redis+sentinel://host,host/master");
  }
  if (address.ends_with('/')) address.remove_suffix(1);
  if (address.find('/') != address.npos)
    return wrong("names a database; a cluster has only the first one, so leave the path out");
  if (address.empty()) return wrong("has no host; use redis://host or redis://a,b");
  while (!address.empty()) {
    if (server.hosts.size() == kMaxHosts)
      return wrong("has more than " + std::to_string(kMaxHosts) + " hosts");
    QUIRE_ASSIGN_OR_RETURN(RemoteHost host, parse_host(take_until(address, ','),
                                                       sentinel ? kSentinelPort : kRedisPort));
    server.hosts.push_back(std::move(host));
  }
  return server;
}

Result<S3Bucket> parse_s3(std::string_view rest) {
  S3Bucket s3;
  std::string_view path = take_until(rest, '?');
  QUIRE_RETURN_IF_ERROR(parse_options(rest, {{"endpoint", &s3.endpoint}, {"region", &s3.region}}));
  s3.bucket = take_until(path, '/');
  if (path.ends_with('/')) path.remove_suffix(1);
  s3.prefix = path;
  if (s3.bucket.empty()) return wrong("has no bucket; use s3://bucket/prefix");
  if (!has_only_letters_and(s3.bucket, ".-"))
    return wrong("has a bucket with other characters than letters, digits, '.' and '-'");
  if (!has_only_letters_and(s3.prefix, "./_-"))
    return wrong("has a prefix with other characters than letters, digits, '.', '_', '-' and '/'");
  if (s3.region.empty() || !has_only_letters_and(s3.region, "-"))
    return wrong("has a region with other characters than letters, digits and '-'");
  if (s3.endpoint.empty()) s3.endpoint = "https://s3." + s3.region + ".amazonaws.com";
  if (!s3.endpoint.starts_with("http://") && !s3.endpoint.starts_with("https://"))
    return wrong("has an endpoint without scheme; use endpoint=https://host:port");
  while (s3.endpoint.ends_with('/')) s3.endpoint.pop_back();
  return s3;
}

}  // namespace

Result<RemoteUrl> parse_remote_url(std::string_view url) {
  RemoteUrl out;
  while (!url.empty()) {
    std::string_view one = take_until(url, ' ');
    if (one.empty()) continue;
    const std::size_t end = one.find("://");
    const std::string_view scheme = one.substr(0, end == one.npos ? 0 : end);
    const bool tls = scheme.starts_with("rediss"), sentinel = scheme.ends_with("+sentinel");
    if (scheme == std::string(tls ? "rediss" : "redis") + (sentinel ? "+sentinel" : "")) {
      one.remove_prefix(end + 3);
      QUIRE_ASSIGN_OR_RETURN(RedisServer server, parse_redis(one, tls, sentinel));
      out.redis.push_back(std::move(server));
    } else if (one.starts_with("s3://")) {
      one.remove_prefix(5);
      QUIRE_ASSIGN_OR_RETURN(S3Bucket bucket, parse_s3(one));
      out.s3.push_back(std::move(bucket));
    } else {
      return wrong(
          "begins with no scheme that is known; use redis://, rediss://, redis+sentinel://, "
          "rediss+sentinel:// or s3://");
    }
  }
  if (out.redis.size() > 1 || out.s3.size() > 1)
    return wrong("names two tiers of one kind; name the hosts of one cluster as redis://a,b");
  return out;
}

}  // namespace quire
