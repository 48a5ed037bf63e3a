/// This file checks a request before anything is looked up.
#pragma once

#include "base/status.h"
#include "engine/api/facts.h"
#include "engine/api/requests.h"

namespace quire {

/// Checks all that needs neither store nor model: option names and ranges, token ids, the window.
/// Errors: kInvalidArgument with the field; window_exceeded_status().
Status validate_query(const EngineFacts& facts, const QueryRequest& request);
/// Checks the same except the window, for a prompt that will be cut first.
Status validate_uncut(const EngineFacts& facts, const QueryRequest& request);

}  // namespace quire
