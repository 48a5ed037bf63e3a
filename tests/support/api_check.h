/// Checks the replies of a service against its description of the API.
#pragma once

#include <string>
#include <vector>

#include "tests/support/loopback_client.h"

namespace quire::testing {

/// Returns the faults of a reply, one line each; empty: none. Its status and media type must be
/// described for the route. JSON bodies and the data of server-sent events must fit their schemas
/// and hold nothing else. A path or method without a route must get the problem body.
std::vector<std::string> check_reply(const std::string& method, const std::string& target,
                                     const RawResponse& reply);

}  // namespace quire::testing
