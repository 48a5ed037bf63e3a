// The Model Context Protocol: messages, tools, and what goes wrong.
#include "server/protocols/mcp.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/json_parse.h"

namespace quire {
namespace {

namespace json = boost::json;

class McpTest : public ::testing::Test {
 protected:
  /// Returns the reply; null: there is none.
  json::value take(const std::string& message) {
    McpServer server(
        [this](const std::string& path, const json::object& body, const McpServer::Reply& done) {
          path_ = path;
          body_ = body;
          done(failure_.ok() ? Result<json::value>(reply_) : failure_);
        },
        "1.2.3");
    std::optional<std::string> line;
    int calls = 0;
    server.handle(message, [&](std::optional<std::string> reply) {
      line = std::move(reply);
      ++calls;
    });
    EXPECT_EQ(calls, 1);
    if (!line) return nullptr;
    EXPECT_EQ(line->find('\n'), std::string::npos);
    auto value = parse_json(*line);
    EXPECT_TRUE(value.ok()) << *line;
    return value.ok() ? *value : json::value();
  }
  json::object ask(const std::string& message) {
    const json::value reply = take(message);
    return reply.is_null() ? json::object() : reply.as_object();
  }
  json::object call(const std::string& name, const std::string& arguments) {
    return ask(R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":")" + name +
               R"(","arguments":)" + arguments + "}}");
  }
  static std::string text(const json::object& reply) {
    const auto& content = reply.at("result").as_object().at("content").as_array();
    return std::string(content.at(0).as_object().at("text").as_string());
  }

  std::string path_;
  json::object body_;
  Status failure_;
  json::value reply_;
};

TEST_F(McpTest, BeginsWithTheVersionBothKnow) {
  const auto begin = [&](const std::string& version) {
    const auto o = ask(R"({"jsonrpc":"2.0","id":"a","method":"initialize","params":{)"
                       R"("protocolVersion":")" +
                       version + R"(","capabilities":{},"clientInfo":{"name":"x"}}})");
    EXPECT_EQ(o.at("id").as_string(), "a");
    return std::string(o.at("result").as_object().at("protocolVersion").as_string());
  };
  EXPECT_EQ(begin("2024-11-05"), "2024-11-05");
  EXPECT_EQ(begin("1999-01-01"), "2025-11-25");
  EXPECT_TRUE(ask(R"({"jsonrpc":"2.0","method":"notifications/initialized"})").empty());
  EXPECT_TRUE(ask(R"({"jsonrpc":"2.0","id":3,"result":{}})").empty());
  EXPECT_TRUE(ask(R"({"jsonrpc":"2.0","id":3,"method":"ping"})").at("result").as_object().empty());
}

TEST_F(McpTest, ListsItsTools) {
  const auto o = ask(R"({"jsonrpc":"2.0","id":1,"method":"tools/list"})");
  std::string names;
  for (const auto& tool : o.at("result").as_object().at("tools").as_array()) {
    names += std::string(tool.at("name").as_string()) + " ";
    EXPECT_EQ(tool.at("inputSchema").at("type").as_string(), "object");
  }
  EXPECT_EQ(names, "search ask ingest ");
}

TEST_F(McpTest, ToolsCallTheService) {
  reply_ = *parse_json(R"({"data":[{"document_id":"d","title":"T","text":"words"},)"
                       R"({"document_id":"e","text":"more"}]})");
  EXPECT_EQ(text(call("search", R"({"query":"q","k":2,"document_ids":["d"]})")),
            "[d] T\nwords\n\n[e]\nmore");
  EXPECT_EQ(path_, "/v1/retrieve");
  EXPECT_EQ(json::serialize(body_), R"({"document_ids":["d"],"query":"q","k":2,"unit":"chunk"})");
  reply_ = *parse_json(R"({"data":[]})");
  EXPECT_EQ(text(call("search", R"({"query":"q"})")), "No passage was found.");
  reply_ = *parse_json(R"({"answer":"A.","citations":[{"document_id":"d","quote":"q"}]})");
  EXPECT_EQ(text(call("ask", R"({"question":"q"})")), "A.\n\nSupported by:\n[d] q");
  EXPECT_EQ(path_, "/v1/query");
  EXPECT_FALSE(body_.contains("model"));
  (void)call("ask", R"({"question":"q","model":"small"})");
  EXPECT_EQ(body_.at("model").as_string(), "small");
  reply_ = *parse_json(R"({"id":"job"})");
  EXPECT_EQ(text(call("ingest", R"({"text":"t","id":"d"})")), R"({"id":"job"})");
  EXPECT_EQ(json::serialize(body_), R"({"text":"t","id":"d"})");
}

TEST_F(McpTest, ABatchIsAnsweredInItsOrder) {
  reply_ = *parse_json(R"({"data":[]})");
  const json::value replies = take(R"([{"jsonrpc":"2.0","id":1,"method":"ping"},
      {"jsonrpc":"2.0","method":"notifications/initialized"}, 7,
      {"jsonrpc":"2.0","id":2,"method":"tools/call",
       "params":{"name":"search","arguments":{"query":"q"}}}])");
  ASSERT_TRUE(replies.is_array());
  ASSERT_EQ(replies.as_array().size(), 3U);
  EXPECT_EQ(replies.at(0).at("id"), 1);
  EXPECT_EQ(replies.at(1).at("error").at("code"), -32600);
  EXPECT_EQ(text(replies.at(2).as_object()), "No passage was found.");
  const std::string taken = R"({"jsonrpc":"2.0","method":"notifications/initialized"})";
  EXPECT_TRUE(take("[" + taken + "," + taken + "]").is_null());
  std::string many = "[" + taken;
  for (int i = 0; i < 16; ++i) many += "," + taken;
  EXPECT_EQ(ask(many + "]").at("error").at("code"), -32600);
}

TEST_F(McpTest, ALongNameIsNotCutInsideACharacter) {
  std::string name(63, 'a');
  name += "\xC3\xA9";
  const auto o = ask(R"({"jsonrpc":"2.0","id":1,"method":")" + name + R"("})");
  EXPECT_EQ(std::string(o.at("error").at("message").as_string()),
            "there is no method '" + std::string(63, 'a') + "'");
}

TEST_F(McpTest, FailuresOfToolsAreResults) {
  failure_ = Status::not_found("there is no document 'x'");
  auto o = call("ask", R"({"question":"q"})");
  EXPECT_TRUE(o.at("result").as_object().at("isError").as_bool());
  EXPECT_NE(text(o).find("there is no document"), std::string::npos);
  o = call("search", R"({"k":2})");
  EXPECT_TRUE(o.at("result").as_object().at("isError").as_bool());
  EXPECT_NE(text(o).find("query"), std::string::npos) << text(o);
}

TEST_F(McpTest, MessagesThatAreNoneAreErrors) {
  const auto code = [&](const std::string& message) {
    return ask(message).at("error").as_object().at("code").as_int64();
  };
  EXPECT_EQ(code("{"), -32700);
  EXPECT_EQ(code("[]"), -32600);
  EXPECT_EQ(code(R"({"id":1,"method":"ping"})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":1,"method":"resources/list"})"), -32601);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]})"), -32602);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}})"),
            -32602);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":1,"method":"tools/call"})"), -32602);
}

}  // namespace
}  // namespace quire
