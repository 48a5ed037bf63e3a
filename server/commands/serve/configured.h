/// Makes what the settings of access, tracing and citations ask for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/access/token_issuer.h"
#include "server/config/config.h"
#include "server/config/namespace_wordings.h"
#include "server/service/services.h"

namespace quire {

/// Returns the configured keys. Without keys only loopback is served. Errors name the setting.
Result<std::shared_ptr<const KeyRing>> configured_keys(const Config& c);

/// Returns the issuer whose tokens are taken; null: none. A file of keys is read once now, so that
/// what is wrong with it is said at the start. Errors name the setting.
Result<std::shared_ptr<TokenIssuer>> configured_issuer(const Config& c);

/// Returns the headers that the environment asks for with spans.
Result<std::vector<std::string>> configured_trace_headers();

/// Returns how citations are written, for the service and for namespaces of their own. Errors:
/// kInvalidArgument naming the setting.
Result<CitationStyles> configured_citations(const Config& config, const NamespaceWordings& words);

}  // namespace quire
