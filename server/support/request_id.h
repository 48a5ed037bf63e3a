/// Makes and checks ids of requests and queries.
#pragma once

#include <string>
#include <string_view>

namespace quire {

/// Returns `prefix` and 16 random letters and digits, "req_4fK...". Threads: any.
std::string make_id(std::string_view prefix);
/// Returns whether the id matches [A-Za-z0-9_.-]{1,64}.
bool valid_request_id(std::string_view id);
/// Returns the trace id of a W3C traceparent header; empty: there is none or it is malformed.
std::string trace_id_of(std::string_view traceparent);

}  // namespace quire
