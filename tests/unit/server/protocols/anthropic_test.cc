// Anthropic's protocol around a stub engine.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/unit/server/protocols/protocols_app.h"

namespace quire {
namespace {

namespace json = boost::json;
using test::anthropic;
using test::kAnthropicTool;
using test::ProtocolsTest;

TEST_F(ProtocolsTest, AnthropicAnswersAsMessages) {
  const auto o = object(post("/v1/messages", anthropic("")).body);
  EXPECT_EQ(o.at("type").as_string(), "message");
  EXPECT_EQ(o.at("stop_reason").as_string(), "end_turn");
  EXPECT_EQ(o.at("content").as_array().at(0).as_object().at("text").as_string(), "answer");
  const auto& usage = o.at("usage").as_object();
  EXPECT_EQ(usage.at("input_tokens").as_int64() + usage.at("cache_read_input_tokens").as_int64() +
                usage.at("cache_creation_input_tokens").as_int64(),
            10);
  engine.stop_text = "END";
  const auto stopped = object(post("/v1/messages", anthropic(R"(,"stop_sequences":["END"])")).body);
  EXPECT_EQ(stopped.at("stop_reason").as_string(), "stop_sequence");
  EXPECT_EQ(stopped.at("stop_sequence").as_string(), "END");
  // The prompt format of a model has stop texts that no client knows.
  engine.stop_text = "\nUser:";
  for (const char* more : {"", R"(,"stop_sequences":["END"])"}) {
    const auto ended = object(post("/v1/messages", anthropic(more)).body);
    EXPECT_EQ(ended.at("stop_reason").as_string(), "end_turn");
    EXPECT_TRUE(ended.at("stop_sequence").is_null());
  }
}

TEST_F(ProtocolsTest, AnthropicClientsFindTheRequestId) {
  for (const auto& [body, status] :
       {std::pair(anthropic(""), 200), std::pair(std::string("{}"), 400)}) {
    const auto r = post("/v1/messages", body);
    EXPECT_EQ(r.status, status);
    ASSERT_TRUE(r.header("request-id")) << body;
    EXPECT_EQ(*r.header("request-id"), *r.header("x-request-id"));
  }
  EXPECT_FALSE(post("/v1/responses", R"({"input":"Hi"})").header("request-id"));
}

TEST_F(ProtocolsTest, AnthropicCallsTools) {
  answer_with_a_call();
  const auto o = object(post("/v1/messages", anthropic(kAnthropicTool)).body);
  EXPECT_EQ(o.at("stop_reason").as_string(), "tool_use");
  const auto& use = o.at("content").as_array().at(1).as_object();
  EXPECT_EQ(use.at("name").as_string(), "add");
  EXPECT_EQ(use.at("input").as_object().at("a").as_int64(), 1);
  const auto all = events(
      post("/v1/messages", anthropic(std::string(kAnthropicTool) + R"(,"stream":true)")).body);
  EXPECT_EQ(types(all),
            "message_start content_block_start content_block_delta content_block_stop "
            "content_block_start content_block_delta content_block_delta content_block_stop "
            "message_delta message_stop ");
  std::string arguments;
  for (const auto& e : all)
    if (const auto* delta = e.if_contains("delta"))
      if (const auto* piece = delta->as_object().if_contains("partial_json"))
        arguments += piece->as_string();
  EXPECT_EQ(arguments, R"({"a": 1})");
  const auto again = post(
      "/v1/messages",
      R"({"model":"default","max_tokens":9,"messages":[{"role":"user","content":"Hi"},)"
      R"({"role":"assistant","content":[{"type":"tool_use","id":"t","name":"add","input":{}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"3"},)"
      R"({"type":"text","text":"So?"}]}]})");
  EXPECT_EQ(again.status, 200) << again.body;
  ASSERT_EQ(post("/v1/messages",
                 anthropic(std::string(kAnthropicTool) + R"(,"tool_choice":{"type":"any"})"))
                .status,
            200);
  EXPECT_TRUE(engine.last_request.sampling.grammar);
}

TEST_F(ProtocolsTest, APartOfACallThatAnthropicClientsRequireIsNoText) {
  engine.pieces = {"<tool_c"};
  const std::string any = std::string(kAnthropicTool) + R"(,"tool_choice":{"type":"any"})";
  for (const char* more : {"", R"(,"stream":true)"}) {
    const auto r = post("/v1/messages", anthropic(any + more));
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body.find("<tool_c"), std::string::npos) << r.body;
  }
}

TEST_F(ProtocolsTest, AnthropicsClientsListModels) {
  const std::vector<std::string> version = {"anthropic-version: 2023-06-01"};
  const auto list = object(call("GET", "/v1/models", "", version).body);
  EXPECT_FALSE(list.at("has_more").as_bool());
  const auto& first = list.at("data").as_array().at(0).as_object();
  EXPECT_EQ(list.at("first_id"), first.at("id"));
  for (const char* member : {"type", "display_name", "created_at", "lifecycle"})
    EXPECT_TRUE(first.at(member).is_string()) << member;
  const std::string id(first.at("id").as_string());
  EXPECT_EQ(object(call("GET", "/v1/models/" + id, "", version).body), first);
  EXPECT_FALSE(object(call("GET", "/v1/models/" + id).body).contains("display_name"));
}

TEST_F(ProtocolsTest, AnthropicHoldsAnswersToASchema) {
  const std::string form =
      R"({"type":"json_schema","schema":{"type":"object","properties":{"n":{"type":"integer"}}}})";
  for (const std::string& given : {R"(,"output_config":{"effort":"high","format":)" + form + "}",
                                   R"(,"output_format":)" + form}) {
    const auto r = post("/v1/messages", anthropic(given));
    ASSERT_EQ(r.status, 200) << r.body;
    EXPECT_TRUE(engine.last_request.sampling.grammar);
  }
  for (const auto& [given, param] :
       {std::pair<std::string, const char*>(R"(,"output_config":{"effort":"low"})",
                                            "output_config.effort"),
        {R"(,"output_config":{"format":{"type":"text"}})", "output_config.format.type"},
        {R"(,"output_config":{"format":{"type":"json_schema"}})", "output_config.format.schema"},
        {R"(,"output_config":{"format":{"type":"json_schema","schema":{"contains":{}}}})",
         "output_config.format.schema.contains"},
        {R"(,"stop_sequences":["x"],"output_config":{"format":)" + form + "}", "stop_sequences"}}) {
    const auto r = post("/v1/messages", anthropic(given));
    EXPECT_EQ(r.status, 400) << given;
    EXPECT_EQ(object(r.body).at("error").as_object().at("param").as_string(), param);
  }
}

TEST_F(ProtocolsTest, AnthropicsToolsMayHaveLongNames) {
  const auto status = [this](std::size_t bytes) {
    const std::string name(bytes, 'a');
    return post(
               "/v1/messages",
               R"({"model":"default","max_tokens":9,"tools":[{"name":")" + name +
                   R"(","input_schema":{"type":"object"}}],"tool_choice":{"type":"tool","name":")" +
                   name +
                   R"("},"messages":[{"role":"user","content":"Hi"},{"role":"assistant",)"
                   R"("content":[{"type":"tool_use","id":"t","input":{},"name":")" +
                   name +
                   R"("}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]})")
        .status;
  };
  EXPECT_EQ(status(128), 200);
  EXPECT_EQ(status(129), 400);
}

TEST_F(ProtocolsTest, AnthropicMessagesOfOneRoleAreOneTurn) {
  const auto prompt = [this](const std::string& messages) {
    const auto r = post("/v1/messages",
                        R"({"model":"default","max_tokens":9,"messages":[)" + messages + "]}");
    EXPECT_EQ(r.status, 200) << messages << r.body;
    return engine.last_request.suffix_ids;
  };
  const std::string user = R"({"role":"user","content":)",
                    other = R"({"role":"assistant","content":)";
  EXPECT_EQ(prompt(user + R"("A"},)" + user + R"([{"type":"text","text":"B"}]},)" + other +
                   R"("C"},)" + other + R"("D"},)" + user + R"("E"})"),
            prompt(user + R"("A\nB"},)" + other + R"("C\nD"},)" + user + R"("E"})"));
}

TEST_F(ProtocolsTest, AnthropicDocumentsStandInThePrompt) {
  const auto with = [](const std::string& control, const std::string& more) {
    return R"({"model":"default",)" + more +
           R"("messages":[{"role":"user","content":[{"type":)"
           R"("document","title":"T","source":{"type":"text","media_type":"text/plain","data":)"
           R"("words"})" +
           control + R"(},{"type":"text","text":"Hi"}]}]})";
  };
  const std::string length = R"("max_tokens":9,)";
  ASSERT_EQ(post("/v1/messages", with("", length)).status, 200);
  EXPECT_EQ(engine.last_request.contexts.size(), 1u) << "it stands in the prompt";
  EXPECT_EQ(
      post("/v1/messages", with(R"(,"cache_control":{"type":"ephemeral","ttl":"1h"})", length))
          .status,
      200);
  const auto counted = object(post("/v1/messages/count_tokens", with("", "")).body);
  EXPECT_GT(counted.at("input_tokens").as_int64(), 5);
  const auto refused = post("/v1/messages/count_tokens", with("", length));
  EXPECT_EQ(refused.status, 400) << "a count makes no tokens, so it takes no length";
  EXPECT_EQ(object(refused.body).at("error").as_object().at("param").as_string(), "max_tokens");
}

TEST_F(ProtocolsTest, AnthropicErrorsHaveItsForm) {
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {R"({"model":"default","messages":[{"role":"user","content":"x"}]})", "max_tokens",
       "missing"},
      {anthropic(R"(,"thinking":{"type":"enabled","budget_tokens":9})"), "thinking", "supported"},
      {anthropic(R"(,"max_token":1)"), "max_token", "max_tokens"},
      {anthropic(R"(,"speed":"fast")"), "speed", "supported"},
      {anthropic(R"(,"tool_choice":{"type":"any"})"), "tool_choice.type", "needs tools"},
      {R"({"model":"default","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image",)"
       R"("source":{}}]}]})",
       "messages[0].content[0].type", "image"}};
  for (const auto& [body, param, words] : cases) {
    const auto r = post("/v1/messages", body);
    EXPECT_EQ(r.status, 400) << body;
    const auto o = object(r.body);
    EXPECT_EQ(o.at("type").as_string(), "error");
    const auto& error = o.at("error").as_object();
    EXPECT_EQ(error.at("type").as_string(), "invalid_request_error");
    EXPECT_EQ(error.at("param").as_string(), param);
    EXPECT_NE(error.at("message").as_string().find(words), std::string::npos) << r.body;
  }
  const auto unknown = post("/v1/messages", R"({"model":"other","max_tokens":1,"messages":[{)"
                                            R"("role":"user","content":"x"}]})");
  EXPECT_EQ(object(unknown.body).at("error").as_object().at("type").as_string(), "not_found_error");
  engine.query_error = Status::exhausted("256 queries wait already");
  const auto busy = post("/v1/messages", anthropic(""));
  EXPECT_EQ(object(busy.body).at("error").as_object().at("type").as_string(), "overloaded_error");
}

// The package's runner of tools goes on without a thread where it reads these details.
TEST_F(ProtocolsTest, AnthropicsRunnerOfToolsIsToldThatThreadsAreNotKept) {
  for (const char* thread :
       {R"({"type":"create"})", R"({"type":"continue","previous_message_id":"msg_1"})"}) {
    const auto r = post("/v1/messages", anthropic(R"(,"thread":)" + std::string(thread)));
    EXPECT_EQ(r.status, 400) << r.body;
    const auto error = object(r.body).at("error").as_object();
    EXPECT_EQ(error.at("param").as_string(), "thread");
    EXPECT_EQ(json::serialize(error.at("details")),
              R"({"error_code":"thread_unsupported_request","unsupported":["thread"]})");
  }
  EXPECT_EQ(post("/v1/messages", anthropic(R"(,"thread":null)")).status, 200);
}

TEST_F(ProtocolsTest, AnthropicStreamsReportFailuresAsEvents) {
  engine.hold = true;
  std::thread finisher([this] {
    auto sink = engine.take();
    sink->on_plan(test::StubEngine::small_plan());
    engine.finish(*sink, Status::internal("broken"));
  });
  const auto all = events(post("/v1/messages", anthropic(R"(,"stream":true)")).body);
  finisher.join();
  EXPECT_EQ(types(all), "message_start error ");
}

}  // namespace
}  // namespace quire
