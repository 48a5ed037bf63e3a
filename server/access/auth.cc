#include "server/access/auth.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include <algorithm>

#include "server/config/config.h"
#include "server/config/namespace_name.h"
#include "server/config/toml.h"
#include "server/http/http_message.h"

namespace quire {
namespace {

Result<Scope> parse_scope(std::string_view name) {
  if (name == "read") return Scope::kRead;
  if (name == "write") return Scope::kWrite;
  if (name == "query") return Scope::kQuery;
  if (name == "admin") return Scope::kAdmin;
  return Status::invalid(
      "scopes", "'" + std::string(name) + "' is no scope; use read, write, query or admin");
}

Result<std::vector<std::string>> text_list(const toml::table& table, std::string_view key) {
  const auto* array = table.get_as<toml::array>(key);
  if (!array || array->empty())
    return Status::invalid(std::string(key),
                           std::string(key) + " must be a list of strings that is not empty");
  std::vector<std::string> out;
  for (const auto& item : *array) {
    const auto* text = item.as_string();
    if (!text)
      return Status::invalid(std::string(key), std::string(key) + " must be a list of strings");
    out.push_back(text->get());
  }
  return out;
}

Result<ApiKey> parse_key(const toml::table& table) {
  static const std::vector<std::string> known = {
      "name", "sha256", "scopes", "namespaces", "requests_per_minute", "tokens_per_minute"};
  for (const auto& [key, _] : table)
    if (std::find(known.begin(), known.end(), key.str()) == known.end())
      return Status::invalid(std::string(key.str()),
                             "unknown entry '" + std::string(key.str()) +
                                 "'; known are name, sha256, scopes, namespaces, "
                                 "requests_per_minute, tokens_per_minute");
  ApiKey key;
  key.name = table["name"].value_or(std::string());
  if (key.name.empty()) return Status::invalid("name", "name is missing");
  auto digest = Digest::from_hex(table["sha256"].value_or(std::string()));
  if (!digest.ok())
    return Status::invalid(
        "sha256", "sha256 must be 64 hex digits: the SHA-256 of the key (quire key prints it)");
  key.digest = *digest;
  QUIRE_ASSIGN_OR_RETURN(const auto scopes, text_list(table, "scopes"));
  for (const auto& name : scopes) {
    QUIRE_ASSIGN_OR_RETURN(const Scope scope, parse_scope(name));
    key.scopes.push_back(scope);
  }
  QUIRE_ASSIGN_OR_RETURN(key.namespaces, text_list(table, "namespaces"));
  for (const auto& ns : key.namespaces)
    if (ns != "*" && !valid_namespace(ns))
      return Status::invalid("namespaces",
                             "'" + ns + "' is no namespace; use letters, digits, '.', '_', '-'");
  for (auto [name, target] : {std::pair{"requests_per_minute", &key.requests_per_minute},
                              std::pair{"tokens_per_minute", &key.tokens_per_minute}}) {
    if (!table.contains(name)) continue;
    const auto v = table[name].value<std::int64_t>();
    if (!v || *v < 0)
      return Status::invalid(name, std::string(name) + " must be an integer, 0 for no limit");
    *target = *v;
  }
  return key;
}

}  // namespace

std::string_view scope_name(Scope scope) {
  switch (scope) {
    case Scope::kNone:
      return "none";
    case Scope::kRead:
      return "read";
    case Scope::kWrite:
      return "write";
    case Scope::kQuery:
      return "query";
    case Scope::kAdmin:
      return "admin";
  }
  return "none";
}

bool ApiKey::allows(Scope scope) const {
  if (scope == Scope::kNone) return true;
  return std::any_of(scopes.begin(), scopes.end(),
                     [&](Scope s) { return s == scope || s == Scope::kAdmin; });
}

bool ApiKey::allows_namespace(std::string_view ns) const {
  return std::any_of(namespaces.begin(), namespaces.end(),
                     [&](const std::string& n) { return n == "*" || n == ns; });
}

bool ApiKey::allows_any_namespace() const { return std::ranges::count(namespaces, "*") > 0; }

std::shared_ptr<const KeyRing> KeyRing::open() {
  auto ring = std::make_shared<KeyRing>();
  ring->open_ = true;
  ring->anonymous_.name = "anonymous";
  ring->anonymous_.scopes = {Scope::kAdmin};
  ring->anonymous_.namespaces = {"default", "*"};
  return ring;
}

Result<std::shared_ptr<const KeyRing>> KeyRing::parse(std::string_view text,
                                                      const std::string& file_name) {
  try {
    const toml::table root = toml::parse(text, file_name);
    for (const auto& [key, _] : root)
      if (key.str() != "keys")
        return Status::invalid("auth.keys_file", file_name + ": unknown entry '" +
                                                     std::string(key.str()) +
                                                     "'; only [[keys]] tables stand here");
    const auto* keys = root.get_as<toml::array>("keys");
    if (!keys || keys->empty())
      return Status::invalid("auth.keys_file", file_name + " has no [[keys]] table");
    auto ring = std::make_shared<KeyRing>();
    for (const auto& node : *keys) {
      const auto* table = node.as_table();
      if (!table)
        return Status::invalid("auth.keys_file", file_name + ": keys must be [[keys]] tables");
      auto key = parse_key(*table);
      if (!key.ok())
        return Status::invalid("auth.keys_file", file_name + ", key " +
                                                     std::to_string(ring->keys_.size() + 1) + ": " +
                                                     key.status().message());
      for (const auto& other : ring->keys_)
        if (other.digest == key->digest || other.name == key->name)
          return Status::invalid("auth.keys_file", file_name + ": the name or sha256 of key '" +
                                                       key->name + "' stands there twice");
      ring->keys_.push_back(std::move(*key));
    }
    return std::shared_ptr<const KeyRing>(std::move(ring));
  } catch (const toml::parse_error& e) {
    return Status::invalid("auth.keys_file", file_name + ", line " +
                                                 std::to_string(e.source().begin.line) + ": " +
                                                 std::string(e.description()));
  } catch (const std::runtime_error& e) {
    return Status::invalid("auth.keys_file", file_name + ": " + e.what());
  }
}

Result<std::shared_ptr<const KeyRing>> KeyRing::load(const std::string& path) {
  auto text = read_file(path, 4 << 20);
  if (!text.ok()) return Status::invalid("auth.keys_file", text.status().message());
  return parse(*text, path);
}

const ApiKey* KeyRing::find(std::string_view secret) const {
  const Digest digest = sha256(secret);
  const ApiKey* found = nullptr;
  for (const auto& key : keys_)
    if (CRYPTO_memcmp(key.digest.bytes.data(), digest.bytes.data(), digest.bytes.size()) == 0)
      found = &key;
  return found;
}

std::string presented_key(const Headers& headers) {
  const auto authorization = headers.get("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() > kBearer.size() &&
      iequals(authorization.substr(0, kBearer.size()), kBearer)) {
    auto key = authorization.substr(kBearer.size());
    while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
    return std::string(key);
  }
  if (const auto key = headers.get("api-key"); !key.empty()) return std::string(key);
  return std::string(headers.get("x-api-key"));
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (host.starts_with("127.") &&
          host.find_first_not_of("0123456789.") == std::string_view::npos);
}

Result<std::string> make_api_secret() {
  static constexpr std::string_view kLetters =
      "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789";
  std::string out = "qk_";
  while (out.size() < 43) {
    unsigned char byte;
    if (::getrandom(&byte, 1, 0) != 1) return Status::io("the system's random source failed");
    if (byte < kLetters.size() * 4) out.push_back(kLetters[byte % kLetters.size()]);
  }
  return out;
}

}  // namespace quire
