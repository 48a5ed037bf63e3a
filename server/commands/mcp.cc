#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <iostream>
#include <string>

#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/json/text.h"
#include "server/protocols/mcp.h"
#include "server/support/version.h"

namespace quire {
namespace {

/// Reads messages from standard input and writes replies to standard output, a line each.
int serve(const ClientFlags& flags) {
  McpServer server(
      [&flags](const std::string& path, const boost::json::object& body,
               const McpServer::Reply& done) {
        ClientRequest request;
        request.method = "POST";
        request.target = path;
        request.content_type = "application/json";
        request.body = to_text(body);
        done(client_json(flags, std::move(request)));
      },
      std::string(version()));
  for (std::string line; std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    server.handle(line, [](const std::optional<std::string>& reply) {
      if (reply) std::cout << *reply << std::endl;
    });
  }
  return 0;
}

}  // namespace

void add_mcp_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<ClientFlags>();
  auto* c = app.add_subcommand(
      "mcp",
      "Serve agents by the Model Context Protocol over standard input and output: the tools "
      "search, ask and ingest of a running service");
  add_client_flags(*c, *flags);
  c->callback([flags, &run] { run = [flags] { return serve(*flags); }; });
}

}  // namespace quire
