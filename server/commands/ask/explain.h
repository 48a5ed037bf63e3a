/// This file declares the explanation of a query as text for a person.
#pragma once

#include <string>

#include "base/status.h"
#include "server/commands/client.h"

namespace quire {

/// Fetches the explanation of a query and returns it as text: strategy and reason, a strip of
/// blocks for each document, the fate of the prompt's tokens, and the time of each stage. Errors:
/// the service's own (kNotFound: the service has forgotten the query).
Result<std::string> explain_query(const ClientFlags& flags, const std::string& id);

}  // namespace quire
