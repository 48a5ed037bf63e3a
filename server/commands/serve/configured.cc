#include "server/commands/serve/configured.h"

#include <cstdlib>
#include <utility>

#include "server/service/tracer.h"

namespace quire {

Result<std::shared_ptr<const KeyRing>> configured_keys(const Config& c) {
  if (!c.auth.keys_file.empty()) return KeyRing::load(c.auth.keys_file);
  // Without keys only tokens open the service.
  if (!c.auth.jwt_issuer.empty()) return std::make_shared<const KeyRing>();
  if (!is_loopback(c.server.host) && !c.auth.allow_insecure) {
    return Status::invalid(
        "auth.keys_file",
        "server.host is " + c.server.host +
            ", which others can reach, but there are no API keys: set auth.keys_file "
            "('quire key' makes one), listen on 127.0.0.1, or set auth.allow_insecure = true");
  }
  return KeyRing::open();
}

Result<std::shared_ptr<TokenIssuer>> configured_issuer(const Config& c) {
  if (c.auth.jwt_issuer.empty()) return std::shared_ptr<TokenIssuer>();
  auto read = read_keys_from(c.auth.jwt_issuer, c.auth.jwt_keys);
  const bool is_file = !c.auth.jwt_keys.empty() && c.auth.jwt_keys.find("://") == std::string::npos;
  if (is_file) {
    const auto text = read({});
    const Status usable = text.ok() ? WebKeys::parse(*text).status() : text.status();
    if (!usable.ok())
      return Status::invalid("auth.jwt_keys", c.auth.jwt_keys + ": " + usable.message());
  }
  TokenRules rules;
  rules.issuer = c.auth.jwt_issuer;
  rules.audience = c.auth.jwt_audience;
  rules.clock_skew_seconds = c.auth.jwt_clock_skew_seconds;
  rules.namespace_claim = c.auth.jwt_namespace_claim;
  rules.scope_claim = c.auth.jwt_scope_claim;
  rules.scope_prefix = c.auth.jwt_scope_prefix;
  TokenIssuer::Options options;
  options.rules = std::move(rules);
  options.read_keys = std::move(read);
  return std::make_shared<TokenIssuer>(std::move(options));
}

Result<std::vector<std::string>> configured_trace_headers() {
  const char* text = std::getenv("OTEL_EXPORTER_OTLP_HEADERS");
  return collector_headers(text == nullptr ? "" : text);
}

Result<CitationStyles> configured_citations(const Config& config, const NamespaceWordings& words) {
  CitationStyles styles;
  QUIRE_ASSIGN_OR_RETURN(styles.service, CitationStyle::parse(config.prompt.citation));
  for (const auto& [ns, own] : words) {
    if (!own.citation) continue;
    auto style = CitationStyle::parse(*own.citation);
    if (!style.ok())
      return Status::invalid("prompt.namespaces_file", config.prompt.namespaces_file +
                                                           ", namespace '" + ns + "': citation " +
                                                           style.status().message());
    styles.namespaces.emplace(ns, std::move(*style));
  }
  return styles;
}

}  // namespace quire
