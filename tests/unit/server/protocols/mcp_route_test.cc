// The Model Context Protocol over HTTP: statuses, tools that call the service inside, and keys.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/json_parse.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

namespace json = boost::json;

class McpRouteTest : public test::StubAppTest {
 protected:
  json::object ask(const std::string& message, const std::vector<std::string>& headers = {}) {
    const auto r = call("POST", "/mcp", message, headers);
    EXPECT_EQ(r.status, 200) << r.body;
    const auto value = parse_json(r.body);
    EXPECT_TRUE(value.ok()) << r.body;
    return value.ok() ? value->as_object() : json::object();
  }
  json::object tool(const std::string& name, const std::string& arguments,
                    const std::vector<std::string>& headers = {}) {
    const auto reply = ask(R"({"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":")" +
                               name + R"(","arguments":)" + arguments + "}}",
                           headers);
    EXPECT_EQ(reply.at("id"), 7);
    return reply.at("result").as_object();
  }
  static std::string text(const json::object& result) {
    return std::string(result.at("content").at(0).at("text").as_string());
  }
};

TEST_F(McpRouteTest, AMessageIsARequestAndANotificationIsTaken) {
  const auto begun = ask(R"({"jsonrpc":"2.0","id":1,"method":"initialize",
      "params":{"protocolVersion":"2025-03-26"}})");
  EXPECT_EQ(begun.at("result").at("protocolVersion"), "2025-03-26");
  const auto taken = call("POST", "/mcp",
                          R"({"jsonrpc":"2.0","method":"notifications/initialized"})");
  EXPECT_EQ(taken.status, 202);
  EXPECT_EQ(taken.body, "");
  EXPECT_EQ(call("GET", "/mcp").status, 405);
  EXPECT_EQ(call("POST", "/mcp", "{").status, 400);
  EXPECT_EQ(call("POST", "/mcp", R"({"jsonrpc":"2.0","id":1,"method":"ping"})",
                 {"MCP-Protocol-Version: 1999-01-01"})
                .status,
            400);
  EXPECT_TRUE(
      ask(R"({"jsonrpc":"2.0","id":1,"method":"ping"})", {"MCP-Protocol-Version: 2025-06-18"})
          .contains("result"));
}

TEST_F(McpRouteTest, ABatchHasOneReply) {
  engine.pieces = {"Mira ", "Tolen"};
  const std::string call_of_ask =
      R"({"jsonrpc":"2.0","id":7,"method":"tools/call",
          "params":{"name":"ask","arguments":{"question":"Who?"}}})";
  const auto r = call("POST", "/mcp", "[" + call_of_ask + "," + call_of_ask + "]");
  EXPECT_EQ(r.status, 200) << r.body;
  const auto replies = parse_json(r.body);
  ASSERT_TRUE(replies.ok() && replies->is_array()) << r.body;
  ASSERT_EQ(replies->as_array().size(), 2U);
  for (const json::value& reply : replies->as_array())
    EXPECT_EQ(text(reply.at("result").as_object()), "Mira Tolen");
}

TEST_F(McpRouteTest, ToolsRunInsideTheService) {
  std::string stored;
  ingest.on_documents = [&](const std::vector<DocumentInput>& documents) {
    stored = documents.front().text.value_or("");
  };
  const auto done = tool("ingest", R"({"text":"A lighthouse.","id":"a"})");
  EXPECT_FALSE(done.at("isError").as_bool()) << text(done);
  EXPECT_EQ(stored, "A lighthouse.");
  engine.pieces = {"Mira ", "Tolen"};
  const auto answer = tool("ask", R"({"question":"Who?"})");
  EXPECT_FALSE(answer.at("isError").as_bool()) << text(answer);
  EXPECT_EQ(text(answer), "Mira Tolen");
}

TEST_F(McpRouteTest, WhatTheServiceRefusesIsAResult) {
  ingest.error = Status::exhausted("the queue is full");
  const auto refused = tool("ingest", R"({"text":"A lighthouse."})");
  EXPECT_TRUE(refused.at("isError").as_bool());
  EXPECT_NE(text(refused).find("the queue is full"), std::string::npos) << text(refused);
  const auto no_index = tool("search", R"({"query":"q"})");
  EXPECT_TRUE(no_index.at("isError").as_bool()) << text(no_index);
}

TEST_F(McpRouteTest, AToolNeedsTheScopeOfItsRoute) {
  const auto ring = KeyRing::parse("[[keys]]\nname = \"asker\"\nsha256 = \"" +
                                       sha256("secret").hex() +
                                       "\"\nscopes = [\"query\"]\nnamespaces = [\"a\"]\n",
                                   "keys");
  ASSERT_TRUE(ring.ok()) << ring.status().message();
  services.set_keys(*ring);
  EXPECT_EQ(call("POST", "/mcp", "{}").status, 401);
  const std::vector<std::string> key = {"Authorization: Bearer secret"};
  EXPECT_FALSE(tool("ask", R"({"question":"Who?"})", key).at("isError").as_bool());
  bool asked = false;
  ingest.on_submit = [&] { asked = true; };
  const auto refused = tool("ingest", R"({"text":"A lighthouse."})", key);
  EXPECT_TRUE(refused.at("isError").as_bool());
  EXPECT_NE(text(refused).find("'write'"), std::string::npos) << text(refused);
  EXPECT_FALSE(asked);
}

TEST_F(McpRouteTest, TheAuditLogTellsOfAToolThatStores) {
  std::string folder = (std::filesystem::temp_directory_path() / "quire-mcp-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/audit.jsonl";
  auto log = AuditLog::open(path);
  ASSERT_TRUE(log.ok()) << log.status().message();
  services.audit = std::move(*log);
  EXPECT_FALSE(tool("ask", R"({"question":"Who?"})").at("isError").as_bool());
  EXPECT_FALSE(tool("ingest", R"({"text":"A lighthouse.","id":"a"})").at("isError").as_bool());
  (void)server->stop(std::chrono::seconds(10));  // every request has its line then
  services.audit.reset();
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("\"route\":\"/mcp\""), std::string::npos) << lines[0];
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quire
