/// Host names that a service answers to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Returns the name of a Host header without its port, in lower case and without a final dot; an
/// IPv6 address keeps its brackets.
std::string host_name(std::string_view host_header);

/// Returns whether a service bound to `bound` answers a request with this Host header. Names of
/// loopback, `bound` itself and every name in `allowed` are answered. A service that others can
/// reach answers to any name, unless `allowed` has one. "*" in `allowed` stands for any.
bool host_allowed(std::string_view host_header, std::string_view bound,
                  const std::vector<std::string>& allowed);

}  // namespace quire
