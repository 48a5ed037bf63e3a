/// Tells the service manager what the service does (sd_notify(3)).
#pragma once

#include <string_view>

namespace quire {

/// Sends a state such as "READY=1" or "STOPPING=1" to the socket that NOTIFY_SOCKET names. Without
/// that variable, or if nobody listens, nothing happens. Threads: any, while the environment stays
/// as it is.
void notify_service_manager(std::string_view state);

}  // namespace quire
