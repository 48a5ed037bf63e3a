// The Model Context Protocol over HTTP, without sessions: each message is a request of its own. A
// call of a tool becomes a call of the service's own route, inside.
#include <boost/json/serialize.hpp>
#include <memory>
#include <utility>

#include "base/json_parse.h"
#include "base/json_reader.h"
#include "server/http/reply_channel.h"
#include "server/json/text.h"
#include "server/protocols/mcp.h"
#include "server/protocols/protocols.h"
#include "server/service/services.h"
#include "server/support/problem.h"
#include "server/support/version.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Returns the body of a reply; for one that says what is wrong, its message.
Result<json::value> body_of(const HttpResponse& response) {
  QUIRE_ASSIGN_OR_RETURN(json::value body, parse_json(response.body));
  if (response.status < 400) return body;
  const auto* error = body.is_object() ? body.get_object().if_contains("error") : nullptr;
  const auto* message = error && error->is_object() ? error->get_object().if_contains("message")
                                                    : nullptr;
  return Status(Code::kFailedPrecondition,
                message && message->is_string()
                    ? std::string(message->get_string())
                    : "the service replied with " + std::to_string(response.status));
}

/// Posts a body to a path of the service for the caller of `outer`.
void post_inside(const std::shared_ptr<Call>& outer, const std::string& path,
                 const json::object& body, McpServer::Reply done) {
  HttpRequest request;
  request.method = "POST";
  request.target = path;
  QUIRE_CHECK(parse_target(path, request).ok(), path);
  request.headers.add("Content-Type", "application/json");
  request.body = to_text(body);
  request.peer = outer->request().peer;
  Services& services = outer->services;
  const RouteMatch match = services.routes->match(request.method, request.path);
  QUIRE_CHECK(match.route, path);
  if (outer->key && !outer->key->allows(match.route->scope))
    return done(Status(Code::kFailedPrecondition,
                       "this tool needs the scope '" + std::string(scope_name(match.route->scope)) +
                           "', which the key '" + outer->key->name + "' does not have"));

  // The reply wakes whoever waits for it, which is this function's caller; it holds the outer call
  // until then.
  auto inbox = std::make_shared<std::weak_ptr<ReplyChannel>>();
  auto channel = std::make_shared<ReplyChannel>([inbox, outer, done = std::move(done)] {
    const auto from = inbox->lock();
    if (!from) return;
    for (const ReplyPiece& piece : from->take_or_wait())
      return done(piece.kind == ReplyPiece::Kind::kRespond
                      ? body_of(piece.response)
                      : Result<json::value>(Status::internal("the tool gave no reply")));
  });
  *inbox = channel;
  (void)channel->take_or_wait();  // from now on a reply calls it
  outer->exchange->on_disconnect([inbox] {
    if (const auto from = inbox->lock()) from->close(/*client_left=*/true);
  });
  auto exchange = std::make_shared<Exchange>(std::move(request), std::move(channel));
  auto call = std::make_shared<Call>(services);
  call->exchange = exchange.get();
  call->route = match.route;
  call->params = match.params;
  call->request_id = outer->request_id;
  call->trace_id = outer->trace_id;
  call->trace = outer->trace;
  call->ns = outer->ns;
  call->instance = exchange->request.path_text();
  call->keys = outer->keys;
  call->token_key = outer->token_key;
  call->key = outer->key;
  if (call->changes_something()) outer->changed_inside = true;
  Call* raw = call.get();
  exchange->state = std::move(call);
  match.route->handler(std::shared_ptr<Call>(std::move(exchange), raw));
}

}  // namespace

namespace handlers {

void mcp(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const auto version = call->request().headers.get("mcp-protocol-version");
  if (!version.empty() && !McpServer::speaks(version))
    return call->fail(make_problem("invalid_value",
                                   "MCP-Protocol-Version is '" +
                                       std::string(version.substr(0, 64)) +
                                       "', which this service does not speak; initialize agrees "
                                       "on one",
                                   "MCP-Protocol-Version"));
  const auto message = body_json(*call);
  if (!message) return;
  const McpServer server(
      [call](const std::string& path, const json::object& body, McpServer::Reply done) {
        post_inside(call, path, body, std::move(done));
      },
      std::string(quire::version()));
  server.handle(to_text(*message), [call](std::optional<std::string> reply) {
    HttpResponse response;
    response.status = 202;
    if (reply) {
      response.status = 200;
      response.content_type = "application/json";
      response.body = std::move(*reply);
    }
    call->reply(std::move(response));
  });
}

}  // namespace handlers
}  // namespace quire
