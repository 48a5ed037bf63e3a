/// Holds the replies of a service against its description of the API.
#pragma once

#include <string>
#include <vector>

#include "tests/support/loopback_client.h"

namespace quire::testing {

/// What is wrong with the reply, one line each; empty: nothing. Its status and media type must be
/// described for the route, JSON bodies and the data of server-sent events must fit their schemas
/// and hold nothing that is not described. Paths and methods that are no route must be answered by
/// the problem body.
std::vector<std::string> check_reply(const std::string& method, const std::string& target,
                                     const RawResponse& reply);

}  // namespace quire::testing
