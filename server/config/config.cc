#include "server/config/config.h"
#include "base/index.h"
#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/remote/remote_url.h"
#include "server/config/byte_size.h"
#include "server/config/shown_url.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/nearest_name.h"
#include "base/stems.h"
#include "server/config/toml.h"

extern char** environ;

namespace quire {
namespace {

constexpr std::int64_t kLeastModelLen = 64;  // tokens

std::string number_text(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.10g", v);
  return text;
}

Status bad(const Setting& s, const std::string& what, const std::string& where) {
  return Status::invalid(s.name(), s.name() + " " + what + " (" + where + ")");
}

Status check_range(const Setting& s, double v, const std::string& where) {
  if (v >= s.min && v <= s.max) return {};
  return bad(s,
             "is " + number_text(v) + "; it must be between " + number_text(s.min) + " and " +
                 number_text(s.max),
             where);
}

Status set_string(const Setting& s, std::string value, Config& config, const std::string& where) {
  auto* target = std::get<std::string*>(s.pointer(config));
  if (!s.choices.empty() &&
      std::find(s.choices.begin(), s.choices.end(), value) == s.choices.end()) {
    std::string list;
    for (const auto c : s.choices) list.append(list.empty() ? "" : ", ").append(c);
    return bad(s, "is '" + value + "'; use one of: " + list, where);
  }
  *target = std::move(value);
  return {};
}

Status unknown(std::string_view section, std::string_view key, const std::string& where) {
  const std::string name = std::string(section) + (key.empty() ? "" : "." + std::string(key));
  std::vector<std::string> names;
  for (const auto& s : setting_table()) {
    names.push_back(s.name());
    if (key.empty()) names.emplace_back(s.section);
  }
  const std::string near = nearest_name(name, names);
  return Status::invalid(name, "unknown setting '" + name + "' (" + where + ")" +
                                   (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

const Setting* find(std::string_view section, std::string_view key) {
  for (const auto& s : setting_table())
    if (s.section == section && s.key == key) return &s;
  return nullptr;
}

/// Returns whether the setting is a number of bytes, which may be written with a unit.
bool is_size(const Setting& s) { return std::string_view(s.key).ends_with("_bytes"); }

Status set_size(const Setting& s, std::string_view text, Config& config, const std::string& where) {
  const auto v = parse_byte_size(text);
  if (!v)
    return bad(s,
               "is '" + std::string(text) +
                   "'; a number of bytes is wanted, such as 512MiB, 4GB or 4294967296",
               where);
  QUIRE_RETURN_IF_ERROR(check_range(s, static_cast<double>(*v), where));
  *std::get<std::int64_t*>(s.pointer(config)) = *v;
  return {};
}

/// Sets a value from text, the form of values from the environment and flags.
Status set_from_text(const Setting& s, std::string_view text, Config& config,
                     const std::string& where) {
  const auto pointer = s.pointer(config);
  if (std::holds_alternative<std::string*>(pointer))
    return set_string(s, std::string(text), config, where);
  if (auto* const* b = std::get_if<bool*>(&pointer)) {
    if (text == "true" || text == "1" || text == "yes" || text == "on")
      **b = true;
    else if (text == "false" || text == "0" || text == "no" || text == "off")
      **b = false;
    else
      return bad(s, "is '" + std::string(text) + "'; use true or false", where);
    return {};
  }
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&pointer)) {
    (*list)->clear();
    std::stringstream stream{std::string(text)};
    for (std::string item; std::getline(stream, item, ',');)
      if (!item.empty()) (*list)->push_back(item);
    return {};
  }
  if (auto* const* i = std::get_if<std::int64_t*>(&pointer)) {
    std::int64_t v = 0;
    if (is_size(s)) return set_size(s, text, config, where);
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (ec != std::errc() || end != text.data() + text.size())
      return bad(s, "is '" + std::string(text) + "'; an integer is wanted", where);
    QUIRE_RETURN_IF_ERROR(check_range(s, static_cast<double>(v), where));
    **i = v;
    return {};
  }
  double v = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc() || end != text.data() + text.size())
    return bad(s, "is '" + std::string(text) + "'; a number is wanted", where);
  QUIRE_RETURN_IF_ERROR(check_range(s, v, where));
  *std::get<double*>(pointer) = v;
  return {};
}

Status set_from_node(const Setting& s, const toml::node& node, Config& config,
                     const std::string& where) {
  const auto pointer = s.pointer(config);
  if (std::holds_alternative<std::string*>(pointer)) {
    const auto* v = node.as_string();
    if (!v) return bad(s, "must be a string", where);
    return set_string(s, v->get(), config, where);
  }
  if (auto* const* b = std::get_if<bool*>(&pointer)) {
    const auto* v = node.as_boolean();
    if (!v) return bad(s, "must be true or false", where);
    **b = v->get();
    return {};
  }
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&pointer)) {
    const auto* v = node.as_array();
    if (!v) return bad(s, "must be an array of strings", where);
    (*list)->clear();
    for (const auto& item : *v) {
      const auto* text = item.as_string();
      if (!text) return bad(s, "must be an array of strings", where);
      (*list)->push_back(text->get());
    }
    return {};
  }
  if (auto* const* i = std::get_if<std::int64_t*>(&pointer)) {
    if (const auto* text = node.as_string(); text != nullptr && is_size(s))
      return set_size(s, text->get(), config, where);
    const auto* v = node.as_integer();
    if (!v) return bad(s, "must be an integer", where);
    QUIRE_RETURN_IF_ERROR(check_range(s, static_cast<double>(v->get()), where));
    **i = v->get();
    return {};
  }
  const auto v = node.value<double>();
  if (!v || node.is_boolean()) return bad(s, "must be a number", where);
  QUIRE_RETURN_IF_ERROR(check_range(s, *v, where));
  *std::get<double*>(pointer) = *v;
  return {};
}

std::string toml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out.append("\\").push_back(c);
    else if (u < 0x20 || u == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04X", u);
      out += escaped;
    } else
      out.push_back(c);
  }
  return out + "\"";
}

std::string value_text(const Setting& s, const Config& config) {
  const auto pointer = s.pointer(const_cast<Config&>(config));  // read only
  if (auto* const* v = std::get_if<std::string*>(&pointer)) return toml_quoted(**v);
  if (auto* const* v = std::get_if<std::int64_t*>(&pointer)) return std::to_string(**v);
  if (auto* const* v = std::get_if<bool*>(&pointer)) return **v ? "true" : "false";
  if (auto* const* v = std::get_if<double*>(&pointer)) {
    const std::string text = number_text(**v);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }
  std::string out = "[";
  for (const auto& item : *std::get<std::vector<std::string>*>(pointer))
    out.append(out.size() > 1 ? ", " : "").append(toml_quoted(item));
  return out + "]";
}

/// value_text() without secrets.
std::string shown_value(const Setting& s, const Config& config) {
  const auto pointer = s.pointer(const_cast<Config&>(config));  // read only
  if (auto* const* v = std::get_if<std::string*>(&pointer))
    return toml_quoted(url_without_secrets(**v));
  return value_text(s, config);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_http(std::string_view url) {
  return url.starts_with("http://") || url.starts_with("https://");
}

/// A backup within the store's folder would be lost with it.
Status check_backup_path(const Config& c) {
  if (c.backup.path.empty()) return {};
  std::error_code ec;
  const auto whole = [&ec](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ec), ec);
  };
  const std::filesystem::path store = whole(c.disk.path), backup = whole(c.backup.path);
  if (ec) return {};  // the first backup says why
  const auto [end, rest] = std::ranges::mismatch(store, backup);
  if (end != store.end()) return {};
  return Status::invalid("backup.path", "backup.path is " + c.backup.path +
                                            ", which lies in the store's own folder (disk.path, " +
                                            c.disk.path +
                                            ") and would be lost with it; name another folder");
}

/// Returns whether the server of an address has a user or a password in front of it.
bool names_user(std::string_view url) {
  const auto scheme = url.find("://");
  if (scheme == std::string_view::npos) return false;
  const std::string_view rest = url.substr(scheme + 3);
  return rest.substr(0, rest.find_first_of("/?#")).find('@') != std::string_view::npos;
}

/// Returns whether the text is "*" or an origin as browsers send it: scheme://host[:port], in lower
/// case.
bool is_origin(std::string_view text) {
  if (text == "*") return true;
  const auto scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0) return false;
  const auto in_scheme = [](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '+' || c == '-' || c == '.';
  };
  if (!std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(scheme), in_scheme))
    return false;
  std::string_view host = text.substr(scheme + 3);
  const auto after = host.starts_with('[') ? host.find(']') : 0;  // an IPv6 address
  if (after == std::string_view::npos) return false;
  const auto colon = host.find(':', after);
  if (colon != std::string_view::npos) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || port.size() > 5 || !std::all_of(port.begin(), port.end(), is_digit))
      return false;
    host = host.substr(0, colon);
  }
  const bool v6 = after != 0;
  const auto in_host = [v6](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '.' || c == '_' ||
           (v6 && (c == ':' || c == '[' || c == ']'));
  };
  return !host.empty() && std::all_of(host.begin(), host.end(), in_host);
}

Status check_origins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    if (is_origin(origin)) continue;
    const bool list = origin.starts_with('[') || origin.ends_with(']');
    return Status::invalid(
        "server.cors_origins",
        "server.cors_origins has '" + origin + "', which is no origin; " +
            (list ? "only TOML files take a list in brackets, elsewhere write a comma between "
                    "origins: https://a.example,https://b.example"
                  : "write scheme://host[:port] in lower case without a path, such as "
                    "https://a.example or http://localhost:3000, or * for any"));
  }
  return {};
}

}  // namespace

Status apply_toml(std::string_view text, const std::string& file_name, Config& config,
                  const std::function<std::string(const Setting&)>& refused) {
  try {
    const toml::table root = toml::parse(text, file_name);
    for (const auto& [section, node] : root) {
      const auto* table = node.as_table();
      const std::string where = file_name + ", line " + std::to_string(node.source().begin.line);
      const auto& all = setting_table();
      const std::string_view name = section.str();
      const bool known = std::any_of(all.begin(), all.end(),
                                     [name](const Setting& s) { return s.section == name; });
      if (!known) return unknown(name, {}, where);
      if (!table)
        return Status::invalid(
            std::string(section.str()),
            "'" + std::string(section.str()) + "' must be a section (" + where + ")");
      for (const auto& [key, value] : *table) {
        const std::string at = file_name + ", line " + std::to_string(value.source().begin.line);
        const Setting* s = find(section.str(), key.str());
        if (!s) return unknown(section.str(), key.str(), at);
        if (const std::string why = refused ? refused(*s) : std::string(); !why.empty())
          return bad(*s, why, at);
        QUIRE_RETURN_IF_ERROR(set_from_node(*s, value, config, at));
      }
    }
    return {};
  } catch (const toml::parse_error& e) {
    return Status::invalid(file_name, file_name + ", line " +
                                          std::to_string(e.source().begin.line) + ": " +
                                          std::string(e.description()));
  } catch (const std::runtime_error& e) {
    return Status::invalid(file_name, file_name + ": " + e.what());
  }
}

namespace {

/// Refuses a variable that is a setting but for one underscore. Those that Kubernetes makes of a
/// service's name, such as QUIRE_SERVER_PORT=tcp://10.0.0.1:80, are none.
Status check_single_underscore(const std::string& name, std::string_view text,
                               std::string_view value) {
  if (value.starts_with("tcp://") || value.starts_with("udp://")) return {};
  for (const Setting& s : setting_table()) {
    const std::string section(s.section);
    if (text != section + "_" + std::string(s.key)) continue;
    std::string right = name;
    right.insert(6 + section.size(), "_");
    return Status::invalid(s.name(), "the environment variable " + name + " sets nothing; write " +
                                         right + " for " + s.name());
  }
  return {};
}

}  // namespace

Status apply_environment(const std::vector<std::pair<std::string, std::string>>& variables,
                         Config& config) {
  for (const auto& [name, value] : variables) {
    if (!name.starts_with("QUIRE_")) continue;
    std::string text = name.substr(6);
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
      return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    });
    const auto split = text.find("__");
    if (split == std::string::npos) {
      QUIRE_RETURN_IF_ERROR(check_single_underscore(name, text, value));
      continue;
    }
    const std::string section = text.substr(0, split), key = text.substr(split + 2);
    const std::string where = "environment variable " + name;
    const Setting* s = find(section, key);
    if (!s) return unknown(section, key, where);
    QUIRE_RETURN_IF_ERROR(set_from_text(*s, value, config, where));
  }
  return {};
}

Status apply_flags(const std::vector<std::string>& assignments, Config& config) {
  for (const auto& text : assignments) {
    const auto eq = text.find('='), dot = text.find('.');
    if (dot == std::string::npos || (eq != std::string::npos && dot > eq))
      return Status::invalid(text, "'--" + text + "' is no setting; write --section.key=value");
    if (eq == std::string::npos)
      return Status::invalid(text, "'--" + text + "' has no value; write --" + text + "=value");
    const std::string where = "flag --" + text.substr(0, eq);
    const Setting* s = find(text.substr(0, dot), text.substr(dot + 1, eq - dot - 1));
    if (!s) return unknown(text.substr(0, dot), text.substr(dot + 1, eq - dot - 1), where);
    QUIRE_RETURN_IF_ERROR(set_from_text(*s, text.substr(eq + 1), config, where));
  }
  return {};
}

namespace {

bool is_loopback_address(std::string_view url) {
  for (const std::string_view host : {"http://127.0.0.1", "http://localhost", "http://[::1]"})
    if (url.starts_with(host) &&
        (url.size() == host.size() || url[host.size()] == ':' || url[host.size()] == '/'))
      return true;
  return false;
}

/// Checks the settings of tokens. Keys that came over plain http could be anybody's.
Status check_tokens(const Config::Auth& a) {
  if (a.jwt_issuer.empty()) {
    for (const auto& [name, value] :
         {std::pair{"auth.jwt_audience", &a.jwt_audience}, std::pair{"auth.jwt_keys", &a.jwt_keys},
          std::pair{"auth.jwt_scope_prefix", &a.jwt_scope_prefix}})
      if (!value->empty())
        return Status::invalid(
            name, std::string(name) + " is set without auth.jwt_issuer; name the issuer");
    return {};
  }
  if (a.jwt_audience.empty())
    return Status::invalid("auth.jwt_audience",
                           "auth.jwt_audience is empty; name the audience that tokens of " +
                               a.jwt_issuer +
                               " must have, or tokens for its other services would be taken");
  if (a.jwt_namespace_claim.empty() || a.jwt_scope_claim.empty())
    return Status::invalid(
        a.jwt_scope_claim.empty() ? "auth.jwt_scope_claim" : "auth.jwt_namespace_claim",
        "auth.jwt_namespace_claim and auth.jwt_scope_claim must each name a claim");
  const std::string& from = a.jwt_keys.empty() ? a.jwt_issuer : a.jwt_keys;
  const bool is_file = !a.jwt_keys.empty() && a.jwt_keys.find("://") == std::string::npos;
  if (is_file || from.starts_with("https://") || is_loopback_address(from)) return {};
  const std::string field = a.jwt_keys.empty() ? "auth.jwt_issuer" : "auth.jwt_keys";
  return Status::invalid(field, field + " is '" + from +
                                    "'; keys are read over https (http on loopback), or from the "
                                    "file that auth.jwt_keys names");
}

}  // namespace

Status check_config(const Config& c) {
  if (c.server.host.empty())
    return Status::invalid("server.host", "server.host is empty; use 127.0.0.1 or 0.0.0.0");
  if (c.disk.path.empty())
    return Status::invalid("disk.path", "disk.path is empty; name the folder of the store");
  if (!c.disk.copy_path.empty() && c.disk.record_copies < 2)
    return Status::invalid("disk.copy_path",
                           "disk.copy_path is " + c.disk.copy_path +
                               ", but no copy is kept; set disk.record_copies = 2, too");
  for (const std::string& alias : c.model.aliases)
    if (alias.empty() || alias.size() > 128 || alias == c.model.name ||
        std::ranges::count(c.model.aliases, alias) > 1 ||
        alias.find_first_of(" \t\r\n") != std::string::npos)
      return Status::invalid("model.aliases",
                             "model.aliases has '" + alias.substr(0, 128) +
                                 "'; name each once, in 1 to 128 bytes without spaces, and other "
                                 "than model.name");
  if (c.model.name.empty()) return Status::invalid("model.name", "model.name is empty");
  QUIRE_RETURN_IF_ERROR(check_origins(c.server.cors_origins));
  for (const std::string& name : c.server.allowed_hosts)
    if (name.empty() || name.find_first_of("/\"' \t,") != std::string::npos)
      return Status::invalid(
          "server.allowed_hosts",
          "server.allowed_hosts has '" + name +
              "'; name hosts without scheme, path and quotes, as in example.org");
  if (c.server.tls_certificate.empty() != c.server.tls_key.empty()) {
    const std::string field = c.server.tls_key.empty() ? "server.tls_key"
                                                       : "server.tls_certificate";
    return Status::invalid(field, field + " is empty; https needs a certificate and its key");
  }
  QUIRE_RETURN_IF_ERROR(check_tokens(c.auth));
  if (c.server.max_held_body_bytes < c.server.max_body_bytes)
    return Status::invalid(
        "server.max_held_body_bytes",
        "server.max_held_body_bytes is " + std::to_string(c.server.max_held_body_bytes) +
            ", less than server.max_body_bytes (" + std::to_string(c.server.max_body_bytes) +
            "); no body of that size could be taken");
  if (c.cache.block_tokens != 0 && c.cache.block_tokens != 16 && c.cache.block_tokens != 32 &&
      c.cache.block_tokens != 64)
    return Status::invalid("cache.block_tokens", "cache.block_tokens is " +
                                                     std::to_string(c.cache.block_tokens) +
                                                     "; use 16, 32, 64, or 0 for the length's own");
  QUIRE_RETURN_IF_ERROR(check_catalog_url(c.catalog.url));
  QUIRE_RETURN_IF_ERROR(parse_remote_url(c.remote.url).status());
  // A shorter one could end while its holder waits for a renewal.
  if (constexpr std::int64_t kShortestMs = 1000;
      c.remote.lease_ms != 0 && c.remote.lease_ms < kShortestMs)
    return Status::invalid("remote.lease_ms", "remote.lease_ms is " +
                                                  std::to_string(c.remote.lease_ms) +
                                                  "; use 1000 or more, or 0 for no leases");
  if (!c.remote.keys_file.empty() && c.cache.share_across_namespaces)
    return Status::invalid("remote.keys_file",
                           "remote.keys_file gives namespaces keys of their own, but "
                           "cache.share_across_namespaces lets them share KV; leave one out");
  if (!c.cache.quotas_file.empty() && c.cache.share_across_namespaces)
    return Status::invalid("cache.quotas_file",
                           "cache.quotas_file gives namespaces quotas of KV, but "
                           "cache.share_across_namespaces lets them share KV; leave one out");
  if (const std::string& at = c.trace.endpoint; !at.empty()) {
    if (!is_http(at))
      return Status::invalid("trace.endpoint", "trace.endpoint is '" + url_without_secrets(at) +
                                                   "'; name the whole address, as in "
                                                   "http://127.0.0.1:4318/v1/traces");
    if (names_user(at))
      return Status::invalid("trace.endpoint",
                             "trace.endpoint holds a user or a password, which are not sent; leave "
                             "them out, and set OTEL_EXPORTER_OTLP_HEADERS");
  }
  QUIRE_RETURN_IF_ERROR(check_backup_path(c));
  for (const std::string& host : c.fetch.hosts)
    if (host.empty() || host.find_first_of("/\"' \t,") != std::string::npos ||
        (host.starts_with('[') && host.find(':') == std::string::npos))
      return Status::invalid("fetch.hosts", "fetch.hosts has '" + url_without_secrets(host) +
                                                "'; name hosts alone, as in example.org, "
                                                "*.example.org or example.org:8443, in flags and "
                                                "the environment with commas and no spaces "
                                                "between");
  if (c.model.max_model_len > 0 && c.model.max_model_len < kLeastModelLen)
    return Status::invalid("model.max_model_len",
                           "model.max_model_len is " + std::to_string(c.model.max_model_len) +
                               ", which no prompt and answer fit into; use " +
                               std::to_string(kLeastModelLen) + " at least, or 0");
  if (c.trace.service_name.empty())
    return Status::invalid("trace.service_name", "trace.service_name is empty; use quire");
  QUIRE_RETURN_IF_ERROR(check_stem_language(c.retrieve.language, "retrieve.language"));
  if (c.retrieve.embeddings && !c.retrieve.enabled)
    return Status::invalid("retrieve.embeddings",
                           "retrieve.embeddings is set, but retrieve.enabled = false switches "
                           "retrieval off; set it to true");
  const std::string& url = c.retrieve.embeddings_url;
  if (!url.empty() && !is_http(url))
    return Status::invalid("retrieve.embeddings_url", "retrieve.embeddings_url is '" +
                                                          url_without_secrets(url) +
                                                          "'; use http://... or https://...");
  if (names_user(url))
    return Status::invalid("retrieve.embeddings_url",
                           "retrieve.embeddings_url holds a user or a password, which are not "
                           "sent; leave them out, and name the variable with the key in "
                           "retrieve.embeddings_key_env");
  if (!url.empty() && (!c.retrieve.encoder.empty() || c.retrieve.embeddings))
    return Status::invalid("retrieve.embeddings_url",
                           "retrieve.embeddings_url is set beside retrieve.encoder or "
                           "retrieve.embeddings; one of them embeds: leave the others out");
  if (url.empty() && !(c.retrieve.embeddings_model + c.retrieve.embeddings_key_env).empty())
    return Status::invalid("retrieve.embeddings_url",
                           "retrieve.embeddings_model and retrieve.embeddings_key_env need "
                           "retrieve.embeddings_url");
  if (const std::string& scorer = c.retrieve.scorer;
      (scorer == "embedding" || scorer == "hybrid") && c.retrieve.encoder.empty() && url.empty() &&
      !c.retrieve.embeddings)
    return Status::invalid("retrieve.scorer",
                           "retrieve.scorer is " + scorer +
                               ", which needs retrieve.encoder (the folder of a text encoder), "
                               "retrieve.embeddings_url or retrieve.embeddings = true");
  return {};
}

std::string config_to_toml(const Config& config, bool with_help) {
  std::string out;
  std::string_view section;
  for (const auto& s : setting_table()) {
    if (s.section != section) {
      out.append(section.empty() ? "[" : "\n[").append(s.section).append("]\n");
      section = s.section;
    }
    std::string line = std::string(s.key) + " = " + shown_value(s, config);
    if (with_help) {
      line.resize(std::max<std::size_t>(line.size() + 1, 36), ' ');
      line.append("# ").append(s.help);
      if (!s.choices.empty()) {
        line.append(": ");
        for (std::size_t i = 0; i < s.choices.size(); ++i)
          line.append(i ? ", " : "").append(s.choices[i]);
      }
    }
    out.append(line).append("\n");
  }
  return out;
}

std::string changed_to_toml(const Config& config, const Config& base) {
  std::string out;
  for (const auto& s : setting_table()) {
    if (value_text(s, config) == value_text(s, base)) continue;
    out.append(s.name()).append(" = ").append(shown_value(s, config)).append("\n");
  }
  return out;
}

std::vector<std::string> changed_settings(const Config& a, const Config& b) {
  std::vector<std::string> names;
  for (const auto& s : setting_table())
    if (value_text(s, a) != value_text(s, b)) names.push_back(s.name());
  return names;
}

std::vector<std::pair<std::string, std::string>> quire_environment() {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** e = environ; e && *e; ++e) {
    const std::string_view entry = *e;
    const auto eq = entry.find('=');
    if (entry.starts_with("QUIRE_") && eq != std::string_view::npos)
      out.emplace_back(entry.substr(0, eq), entry.substr(eq + 1));
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (!std::filesystem::exists(status)) return Status::not_found("no such file: " + path);
  if (std::filesystem::is_directory(status)) return Status::io(path + " is a folder, not a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status::io("cannot read " + path + ": check its permissions");
  std::string out;
  char buffer[64 << 10];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    out.append(buffer, to_size(in.gcount()));
    if (out.size() > max_bytes)
      return Status::invalid(path,
                             path + " is larger than " + std::to_string(max_bytes) + " bytes");
  }
  return out;
}

Result<Config> load_config(const std::string& file, const std::vector<std::string>& flags) {
  Config config;
  if (!file.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const std::string text, read_file(file, 1 << 20));
    QUIRE_RETURN_IF_ERROR(apply_toml(text, file, config));
  }
  QUIRE_RETURN_IF_ERROR(apply_environment(quire_environment(), config));
  QUIRE_RETURN_IF_ERROR(apply_flags(flags, config));
  QUIRE_RETURN_IF_ERROR(check_config(config));
  return config;
}

}  // namespace quire
