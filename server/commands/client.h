/// Functions shared by the commands that call a running service.
#pragma once

#include <boost/json/value.hpp>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/http/http_client.h"

namespace CLI {
class App;
}

namespace quire {

/// Where the service is, and as whom it is called.
struct ClientFlags {
  std::string server = "http://127.0.0.1:8080", key, ns, ca_file;
};
/// Adds --server (QUIRE_SERVER), --key (QUIRE_API_KEY), --namespace and --ca-file.
void add_client_flags(CLI::App& command, ClientFlags& flags);

/// Adds what a load balancer routes a question about these documents by. Without a namespace it is
/// that of `default`.
void add_affinity(const ClientFlags& flags, std::span<const std::string> document_ids,
                  ClientRequest& request);

/// Makes one call. A reply of 400 or above is an error with the service's message.
Result<HttpResponse> client_call(const ClientFlags& flags, ClientRequest request,
                                 const std::function<bool(std::string_view)>& on_piece = {});
Result<boost::json::value> client_json(const ClientFlags& flags, ClientRequest request);
Status error_of(const HttpResponse& response);

/// Returns a text of a document or a model, in UTF-8, as a terminal may show it: with U+FFFD in
/// place of control characters, which could drive the terminal. Line ends (as "\n") and tabs stay
/// with `lines`, and are spaces without.
std::string printable(std::string_view text, bool lines);

}  // namespace quire
