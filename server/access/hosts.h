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

/// Returns whether a page of this origin (a header Origin) is the service's own: it is that of the
/// request's Host header, or its name is in `allowed`, where "*" stands for any.
bool is_own_origin(std::string_view origin, std::string_view host_header,
                   const std::vector<std::string>& allowed);

/// Returns whether a body of this media type (without parameters, in lower case; empty: none) is
/// CORS-safelisted: a browser then sends it to another site without a preflight request.
bool is_cors_safelisted(std::string_view media_type);

}  // namespace quire
