/// The service over a real socket, around a stub engine and a stub document service.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/app/app.h"
#include "server/service/services.h"
#include "tests/support/api_check.h"
#include "tests/support/loopback_client.h"
#include "tests/support/stub_services.h"

namespace quire::test {

class StubAppTest : public ::testing::Test {
 protected:
  StubAppTest() : services(Config()), table(all_routes()) {
    services.engine = &engine;
    services.ingest = &ingest;
    services.routes = &table;
    services.ready = true;
    app = make_app(services, table);
    HttpServerOptions options;
    options.threads = 2;
    auto started = start_http_server(options, *app);
    QUIRE_CHECK(started.ok(), started.status().to_string());
    server = std::move(*started);
  }
  ~StubAppTest() override {
    (void)server->stop(std::chrono::milliseconds(0));
    services.timers->stop();
    services.workers->stop();
  }
  /// Makes a request. The reply is checked against the description of the API.
  testing::RawResponse call(const std::string& method, const std::string& target,
                            const std::string& body = {},
                            const std::vector<std::string>& headers = {},
                            const std::string& type = "application/json") {
    auto reply = testing::call(server->port(), method, target, body, headers, type);
    for (const auto& problem : testing::check_reply(method, target, reply))
      ADD_FAILURE() << method << " " << target << " -> " << reply.status << ": " << problem;
    return reply;
  }

  Services services;
  StubEngine engine;
  StubIngest ingest;
  RouteTable table;
  std::unique_ptr<HttpService> app;
  std::unique_ptr<HttpServer> server;
};

}  // namespace quire::test
