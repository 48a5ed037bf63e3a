/// The service behind the HTTP server finds the route, checks key, namespace and limits, runs the
/// handler, and logs the end.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/service/route_table.h"

namespace quire {

struct Services;

/// Makes the service; `services` must outlive it. Threads: those of HttpService.
std::unique_ptr<HttpService> make_app(Services& services, const RouteTable& routes);

}  // namespace quire
