// The OpenAI-compatible endpoints around a stub engine: forms of replies and streams, choices,
// failures, and clients that disconnect.
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <future>
#include <thread>

#include "base/json_parse.h"
#include "server/app/app.h"
#include "server/service/services.h"
#include "tests/support/loopback_client.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::LoopbackClient;
using testing::RawResponse;

class OpenAiTest : public test::StubAppTest {
 protected:
  RawResponse post(const std::string& path, const std::string& body) {
    return call("POST", path, body);
  }
  RawResponse chat(const std::string& members = {}) {
    return post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"Hi"}])" + members + "}");
  }
  static json::object object(const std::string& text) {
    auto v = parse_json(text);
    EXPECT_TRUE(v.ok() && v->is_object()) << text;
    return v.ok() && v->is_object() ? v->as_object() : json::object();
  }
  /// Returns the data of each event; the stream may hold nothing else.
  static std::vector<std::string> events(const std::string& body) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < body.size();) {
      const auto end = body.find("\n\n", at);
      EXPECT_TRUE(body.compare(at, 6, "data: ") == 0 && end != std::string::npos)
          << body.substr(at);
      if (end == std::string::npos) break;
      out.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return out;
  }
  static const json::object& choice(const json::object& o) {
    return o.at("choices").as_array().at(0).as_object();
  }
};

TEST_F(OpenAiTest, AChatIsAnsweredInOnePiece) {
  const auto r = chat();
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.header("x-cache"), "MISS");
  const auto o = object(r.body);
  EXPECT_TRUE(o.at("id").as_string().starts_with("chatcmpl-qry_"));
  EXPECT_EQ(o.at("object").as_string(), "chat.completion");
  EXPECT_EQ(o.at("system_fingerprint").as_string(), "m-00000000");
  EXPECT_EQ(choice(o).at("message").as_object().at("content").as_string(), "answer");
  EXPECT_EQ(choice(o).at("message").as_object().at("role").as_string(), "assistant");
  EXPECT_EQ(choice(o).at("finish_reason").as_string(), "stop");
  EXPECT_TRUE(choice(o).at("logprobs").is_null());
  EXPECT_EQ(o.at("usage").as_object().at("total_tokens").as_int64(), 11);
  EXPECT_EQ(
      testing::call(server->port(), "GET", std::string(o.at("explain_url").as_string()), "", {})
          .status,
      200);
}

TEST_F(OpenAiTest, TokensOfMessagesAreCountedAsAChatTakesThem) {
  const auto tokens = [&](const std::string& message) {
    const auto r = post("/tokenize", R"({"messages":[)" + message + "]}");
    EXPECT_EQ(r.status, 200) << r.body;
    return json::serialize(object(r.body).at("tokens"));
  };
  EXPECT_EQ(tokens(R"({"role":"user","content":[{"type":"text","text":"Hi "},{"type":"text",)"
                   R"("text":"there"}]})"),
            tokens(R"({"role":"user","content":"Hi there"})"));
  const auto refused = post(
      "/tokenize",
      R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})");
  EXPECT_EQ(refused.status, 400);
  const auto error = object(refused.body).at("error").as_object();
  EXPECT_EQ(error.at("code").as_string(), "unsupported_parameter");
  EXPECT_EQ(error.at("param").as_string(), "messages[0].content[0].type");
}

TEST_F(OpenAiTest, UnknownFieldsOfTokensAreRefused) {
  EXPECT_EQ(post("/tokenize", R"({"prompt":"Hi","model":"default","add_special":false})").status,
            200);
  EXPECT_EQ(post("/detokenize", R"({"tokens":[1],"model":"default"})").status, 200);
  for (const auto& [path, body] : {std::pair("/tokenize", R"({"prompt":"Hi","with_pieces":true})"),
                                   std::pair("/detokenize", R"({"tokens":[1],"skip":true})")}) {
    const auto r = post(path, body);
    EXPECT_EQ(r.status, 400) << path;
    EXPECT_EQ(object(r.body).at("error").as_object().at("code").as_string(), "unknown_field");
  }
}

constexpr const char* kTools =
    R"(,"tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object",)"
    R"("properties":{"a":{"type":"integer"}},"required":["a"]}}}])";

TEST_F(OpenAiTest, CallsOfToolsAreNoText) {
  engine.pieces = {"I will add. <tool", "_call>\n{\"name\": \"add\", \"argu",
                   "ments\": {\"a\": 1}}\n</tool_call>"};
  const auto whole = object(chat(kTools).body);
  const auto& message = choice(whole).at("message").as_object();
  EXPECT_EQ(message.at("content").as_string(), "I will add.");
  ASSERT_EQ(message.at("tool_calls").as_array().size(), 1u);
  const auto& call = message.at("tool_calls").as_array()[0].as_object();
  EXPECT_TRUE(call.at("id").as_string().starts_with("call_"));
  EXPECT_EQ(call.at("type").as_string(), "function");
  EXPECT_EQ(call.at("function").as_object().at("name").as_string(), "add");
  EXPECT_EQ(call.at("function").as_object().at("arguments").as_string(), R"({"a": 1})");
  EXPECT_EQ(choice(whole).at("finish_reason").as_string(), "tool_calls");
  const auto free = object(chat().body);
  EXPECT_EQ(choice(free).at("message").as_object().at("content").as_string(),
            "I will add. <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>")
      << "without tools it is text";
  std::string id, name, arguments, text, finish;
  for (const std::string& event : events(chat(std::string(kTools) + R"(,"stream":true)").body)) {
    if (event == "[DONE]") continue;
    const auto chunk = object(event);
    const auto& delta = choice(chunk).at("delta").as_object();
    if (const auto* content = delta.if_contains("content")) text += content->as_string();
    if (choice(chunk).at("finish_reason").is_string())
      finish = choice(chunk).at("finish_reason").as_string();
    const auto* calls = delta.if_contains("tool_calls");
    if (!calls) continue;
    const auto& piece = calls->as_array().at(0).as_object();
    EXPECT_EQ(piece.at("index").as_int64(), 0);
    const auto& function = piece.at("function").as_object();
    if (const auto* said = piece.if_contains("id")) id = said->as_string();
    if (const auto* said = function.if_contains("name")) name = said->as_string();
    arguments += function.at("arguments").as_string();
  }
  EXPECT_EQ(text, "I will add.");
  EXPECT_TRUE(id.starts_with("call_"));
  EXPECT_EQ(name, "add");
  EXPECT_EQ(arguments, R"({"a": 1})");
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(OpenAiTest, APartOfACallThatIsRequiredIsNoText) {
  const std::string required = std::string(kTools) + R"(,"tool_choice":"required")";
  for (const auto& pieces : {std::vector<std::string>{"<tool_c"},
                             std::vector<std::string>{"<tool_call>\n{\"na", "me\": \"a"}}) {
    engine.pieces = pieces;
    const auto whole = object(chat(required).body);
    EXPECT_EQ(choice(whole).at("message").as_object().at("content").as_string(), "");
    EXPECT_EQ(chat(required + R"(,"stream":true)").body.find("<tool_c"), std::string::npos);
    const auto free = object(chat(kTools).body);
    EXPECT_NE(choice(free).at("message").as_object().at("content").as_string(), "")
        << "where no call is required it may be text";
  }
}

TEST_F(OpenAiTest, ToolsConstrainTheAnswerWhereTheyMust) {
  ASSERT_EQ(chat(kTools).status, 200);
  EXPECT_FALSE(engine.last_request.sampling.grammar);
  ASSERT_EQ(chat(std::string(kTools) + R"(,"tool_choice":"required")").status, 200);
  EXPECT_TRUE(engine.last_request.sampling.grammar);
  ASSERT_EQ(chat(std::string(kTools) + R"(,"tool_choice":"none")").status, 200);
  EXPECT_FALSE(engine.last_request.sampling.grammar);
  const auto bad = chat(
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",)"
      R"("properties":{"a":{"not":{}}}}}}],"tool_choice":"required")");
  EXPECT_EQ(bad.status, 400);
  const auto error = object(bad.body).at("error").as_object();
  EXPECT_EQ(error.at("code").as_string(), "unsupported_parameter");
  EXPECT_EQ(error.at("param").as_string(), "tools[0].function.parameters.properties.a.not");
  const auto stop = object(
      chat(std::string(kTools) + R"(,"tool_choice":"required","stop":"x")").body);
  EXPECT_EQ(stop.at("error").as_object().at("param").as_string(), "stop");
  EXPECT_EQ(chat(std::string(kTools) + R"(,"response_format":{"type":"json_object"})").status, 200);
}

TEST_F(OpenAiTest, ResultsOfToolsGoOnWithTheConversation) {
  const std::string turns =
      R"({"messages":[{"role":"user","content":"1+2?"},{"role":"assistant","content":null,)"
      R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{}"}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"three"}])";
  ASSERT_EQ(post("/v1/chat/completions", turns + "}").status, 200);
  const std::string prompt = engine.tokenizer().decode(engine.last_request.suffix_ids, true);
  EXPECT_NE(prompt.find("<tool_response name=\"add\">"), std::string::npos) << prompt;
  const auto native = post("/v1/query", turns + R"(,"document_ids":[],"explain":"none"})");
  EXPECT_EQ(native.status, 200) << native.body;
}

TEST_F(OpenAiTest, ANativeQueryCallsTools) {
  engine.pieces = {"<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>"};
  const std::string body = std::string(R"({"messages":[{"role":"user","content":"x"}],)") +
                           R"("document_ids":[])" + kTools;
  const auto whole = object(post("/v1/query", body + "}").body);
  EXPECT_EQ(whole.at("finish_reason").as_string(), "tool_calls");
  EXPECT_EQ(whole.at("answer").as_string(), "");
  EXPECT_EQ(whole.at("tool_calls").as_array().size(), 1u);
  const auto stream = post("/v1/query", body + R"(,"stream":true})");
  EXPECT_NE(stream.body.find("event: tool_call\n"), std::string::npos) << stream.body;
  EXPECT_EQ(
      post("/v1/query", std::string(R"({"query":"x","document_ids":[])") + kTools + "}").status,
      400);
}

TEST_F(OpenAiTest, AStreamKeepsTheOrderOfTheContract) {
  for (const bool usage : {false, true}) {
    const auto r = chat(std::string(R"(,"stream":true)") +
                        (usage ? R"(,"stream_options":{"include_usage":true})" : ""));
    ASSERT_EQ(r.status, 200);
    EXPECT_TRUE(r.header("content-type")->starts_with("text/event-stream"));
    const auto all = events(r.body);
    ASSERT_EQ(all.size(), usage ? 5u : 4u) << r.body;
    EXPECT_EQ(all.back(), "[DONE]");
    const auto first = object(all[0]), text = object(all[1]), last = object(all[2]);
    EXPECT_EQ(choice(first).at("delta").as_object().at("role").as_string(), "assistant");
    EXPECT_EQ(first.at("cache").as_object().at("strategy").as_string(), "reuse");
    EXPECT_EQ(choice(text).at("delta").as_object().at("content").as_string(), "answer");
    EXPECT_TRUE(choice(text).at("finish_reason").is_null());
    EXPECT_EQ(choice(last).at("finish_reason").as_string(), "stop");
    EXPECT_TRUE(choice(last).at("delta").as_object().contains("citations"));
    EXPECT_TRUE(last.contains("timings"));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(object(all[i]).at("usage").is_null());
    if (usage) {
      EXPECT_TRUE(object(all[3]).at("choices").as_array().empty());
      EXPECT_EQ(object(all[3]).at("usage").as_object().at("prompt_tokens").as_int64(), 10);
    }
  }
}

TEST_F(OpenAiTest, ChoicesShareTheirPromptInTheUsage) {
  const auto o = object(chat(R"(,"n":3)").body);
  ASSERT_EQ(o.at("choices").as_array().size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(o.at("choices").as_array()[i].as_object().at("index").as_int64(),
              static_cast<std::int64_t>(i));
  EXPECT_EQ(o.at("usage").as_object().at("prompt_tokens").as_int64(), 10);
  EXPECT_EQ(o.at("usage").as_object().at("completion_tokens").as_int64(), 3);
  const auto two = object(post("/v1/completions", R"({"prompt":["a","b"],"n":2})").body);
  EXPECT_EQ(two.at("choices").as_array().size(), 4u);
  EXPECT_EQ(two.at("usage").as_object().at("prompt_tokens").as_int64(), 20) << "two prompts";
  EXPECT_EQ(two.at("usage").as_object().at("completion_tokens").as_int64(), 4);
}

TEST_F(OpenAiTest, ACompletionStreamsItsText) {
  const auto all = events(post("/v1/completions", R"({"prompt":"x","stream":true})").body);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(object(all[0]).at("object").as_string(), "text_completion");
  EXPECT_EQ(choice(object(all[1])).at("text").as_string(), "answer");
  EXPECT_EQ(choice(object(all[2])).at("finish_reason").as_string(), "stop");
}

TEST_F(OpenAiTest, RefusalsOfTheEngineAreErrorsWithRetryHeaders) {
  engine.query_error = Status::exhausted("256 queries wait already");
  for (const auto* members : {"", R"(,"stream":true)", R"(,"n":4)"}) {
    const auto r = chat(members);
    EXPECT_EQ(r.status, 503) << members;
    EXPECT_EQ(r.header("content-type"), "application/json");
    EXPECT_EQ(object(r.body).at("error").as_object().at("code").as_string(), "overloaded");
    EXPECT_TRUE(r.header("retry-after") && r.header("retry-after-ms"));
  }
}

TEST_F(OpenAiTest, AFailureBeforeThePlanIsAnOrdinaryError) {
  engine.done_status = Status::deadline("too late");
  for (const auto* members : {"", R"(,"stream":true)", R"(,"n":4,"stream":true)"}) {
    const auto r = chat(members);
    EXPECT_EQ(r.status, 504) << members;
    const auto error = object(r.body).at("error").as_object();
    EXPECT_EQ(error.at("type").as_string(), "server_error");
    EXPECT_TRUE(error.at("param").is_null()) << "no field here sets the time";
    EXPECT_NE(error.at("message").as_string().find("10 minutes"), json::string::npos);
  }
}

TEST_F(OpenAiTest, AFailureInAStreamIsAnErrorAndNoDone) {
  engine.hold = true;
  LoopbackClient c(server->port());
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})";
  ASSERT_TRUE(
      c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body));
  const auto sink = engine.take();
  ASSERT_TRUE(sink);
  sink->on_plan(test::StubEngine::small_plan());
  EXPECT_TRUE(sink->on_token(1, "half"));
  engine.finish(*sink, Status::io("the disk is gone"));
  const std::string all = c.read_until("\n\nnever comes");
  EXPECT_NE(all.find("\"content\":\"half\""), std::string::npos) << all;
  EXPECT_NE(all.find("data: {\"error\":{"), std::string::npos) << all;
  EXPECT_EQ(all.find("[DONE]"), std::string::npos);
  EXPECT_FALSE(all.ends_with("0\r\n\r\n"))
      << "the connection closes without the end of a whole reply";
}

TEST_F(OpenAiTest, AClientThatLeavesCancelsItsChat) {
  engine.hold = true;
  LoopbackClient c(server->port());
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  ASSERT_TRUE(
      c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body));
  const auto sink = engine.take();
  ASSERT_TRUE(sink);
  c.close();
  EXPECT_TRUE(engine.wait_cancelled());
  engine.finish(*sink, Status::cancelled("gone"));
}

TEST_F(OpenAiTest, ARepliesWorkIsNotTheEnginesWhereAllWorkersAreBusy) {
  engine.hold = true;
  LoopbackClient c(server->port());
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  ASSERT_TRUE(
      c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body));
  const auto sink = engine.take();
  ASSERT_TRUE(sink);
  std::promise<void> open;
  const std::shared_future<void> opened(open.get_future());
  constexpr int kThreads = 4;
  const auto busy = std::make_shared<std::atomic<int>>(0);
  for (bool all = false, full = false; !all || !full;) {
    all = *busy == kThreads;  // from then on nothing leaves the queue
    full = !services.workers->post([opened, busy] {
      ++*busy;
      opened.wait();
    });
  }
  sink->on_plan(test::StubEngine::small_plan());
  EXPECT_TRUE(sink->on_token(1, "whole"));
  engine.finish(*sink);
  // A query is remembered where its reply is made, which has to wait for a worker.
  EXPECT_TRUE(services.explain->list("default", "", 10, true).records.empty());
  open.set_value();
  const auto reply = c.read_response();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_NE(reply->body.find("whole"), std::string::npos);
}

TEST_F(OpenAiTest, ErrorsNameTheFieldAsTheRequestSpellsIt) {
  const auto param = [&](const RawResponse& r) {
    return std::string(object(r.body).at("error").as_object().at("param").as_string());
  };
  auto r = chat(R"(,"tools":[{"type":"function"}])");
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(object(r.body).at("error").as_object().at("code").as_string(), "invalid_value");
  EXPECT_EQ(param(r), "tools[0].function");
  r = chat(R"(,"audio":{"voice":"alloy","format":"mp3"})");
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(object(r.body).at("error").as_object().at("code").as_string(), "unsupported_parameter");
  EXPECT_EQ(param(r), "audio");
  r = post("/v1/chat/completions",
           R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(r.status, 400) << "the embedded model has no system message";
  EXPECT_EQ(param(r), "messages[0].role");
  r = chat(R"(,"model":"gpt-7")");
  EXPECT_EQ(r.status, 404);
  EXPECT_EQ(object(r.body).at("error").as_object().at("code").as_string(), "model_not_found");
  ingest.missing = {"gone"};
  r = chat(R"(,"documents":[{"text":"t"},{"id":"gone"}])");
  EXPECT_EQ(r.status, 404);
  EXPECT_EQ(param(r), "documents[1]");
  EXPECT_EQ(chat(R"(,"documents":["gone"],"on_missing":"skip")").status, 200);
}

TEST_F(OpenAiTest, TheEnginesErrorsNameTheFieldsOfTheRequest) {
  ASSERT_EQ(chat().status, 200);
  EXPECT_EQ(engine.last_request.question_param, "messages");
  // The plan of the engine of these tests has no contexts to cite.
  ASSERT_EQ(chat(R"(,"citations":false,"documents":[{"text":"t"},{"text":"u"}])").status, 200);
  EXPECT_EQ(engine.last_request.documents_param, "documents");
  ASSERT_EQ(engine.last_request.contexts.size(), 2u);
  EXPECT_EQ(engine.last_request.contexts[1].param, "documents[1]");
  const auto prompt = [&](const std::string& members) {
    EXPECT_EQ(post("/v1/completions", R"({"prompt":)" + members + "}").status, 200) << members;
    return engine.last_request.question_param;
  };
  EXPECT_EQ(prompt(R"("a")"), "prompt");
  EXPECT_EQ(prompt("[5,6]"), "prompt");
  EXPECT_EQ(prompt(R"(["a"])"), "prompt[0]");
  EXPECT_EQ(prompt(R"([[5],[6]],"n":2)"), "prompt[1]") << "the last choice is of the last prompt";
  ASSERT_EQ(
      post("/v1/query", R"({"query":"q","documents":[{"text":"t"}],"citations":false})").status,
      200);
  EXPECT_EQ(engine.last_request.question_param, "query");
  EXPECT_EQ(engine.last_request.documents_param, "documents");
  ASSERT_EQ(
      post("/v1/query", R"({"messages":[{"role":"user","content":"q"}],"document_ids":[]})").status,
      200);
  EXPECT_EQ(engine.last_request.question_param, "messages");
}

TEST_F(OpenAiTest, OnlyAQuestionAboutDocumentsIsAdvisedToNameFewer) {
  engine.query_error = window_exceeded_status({100, 200}, "messages");
  const auto error = [&](const std::string& members) {
    const auto r = chat(members);
    EXPECT_EQ(r.status, 400);
    return object(r.body).at("error").as_object();
  };
  const auto alone = error("");
  EXPECT_EQ(alone.at("param").as_string(), "messages");
  EXPECT_EQ(alone.at("message").as_string().find("documents"), std::string::npos)
      << alone.at("message");
  const auto about = error(R"(,"documents":[{"text":"t"}])");
  EXPECT_NE(about.at("message").as_string().find("shorter documents"), std::string::npos)
      << about.at("message");
}

TEST_F(OpenAiTest, AliasesNameTheModelEverywhere) {
  Config config;
  config.model.aliases = {"gpt-4o", "llama3:latest"};
  services.set_config(config);
  const auto named = [&](const std::string& path, const std::string& model,
                         const std::string& members) {
    return post(path, R"({"model":")" + model + R"(",)" + members + "}").status;
  };
  const std::string turns = R"("messages":[{"role":"user","content":"Hi"}])";
  for (const char* model : {"gpt-4o", "llama3:latest", "llama3", "default", "stub"}) {
    EXPECT_EQ(named("/v1/chat/completions", model, turns), 200) << model;
    EXPECT_EQ(named("/v1/messages", model, turns + R"(,"max_tokens":4)"), 200) << model;
    EXPECT_EQ(named("/api/chat", model, turns + R"(,"stream":false)"), 200) << model;
    EXPECT_EQ(named("/v1/embeddings", model, R"("input":"a")"), 200) << model;
  }
  for (const char* model : {"gpt-4", "llama3:8b"}) {
    EXPECT_EQ(named("/v1/chat/completions", model, turns), 404) << model;
    EXPECT_EQ(named("/v1/embeddings", model, R"("input":"a")"), 404) << model;
  }
  EXPECT_EQ(named("/api/chat", "gpt-4", turns), 404);
  const auto data = object(call("GET", "/v1/models").body).at("data").as_array();
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(data[0].as_object().at("id"), "stub");
  EXPECT_EQ(data[2].as_object().at("id"), "llama3:latest");
  EXPECT_EQ(object(call("GET", "/v1/models/gpt-4o").body).at("id"), "gpt-4o");
  EXPECT_EQ(call("GET", "/v1/models/gpt-4").status, 404);
}

TEST_F(OpenAiTest, TheEngineIsToldWhichAnswersContinueAText) {
  const std::string turns = R"("messages":[{"role":"user","content":"Hi"})";
  const std::tuple<const char*, std::string, bool> cases[] = {
      {"/v1/completions", R"({"prompt":"The leader is"})", true},
      {"/v1/chat/completions", "{" + turns + "]}", false},
      {"/v1/chat/completions",
       "{" + turns + R"(,{"role":"assistant","content":"It is"}],"continue_final_message":true})",
       true},
      {"/v1/messages",
       R"({"model":"stub","max_tokens":4,)" + turns + R"(,{"role":"assistant","content":"It"}]})",
       true},
      {"/api/generate", R"({"model":"stub","prompt":"It is","raw":true,"stream":false})", true},
      {"/api/generate", R"({"model":"stub","prompt":"Who?","stream":false})", false},
  };
  for (const auto& [path, body, continues] : cases) {
    EXPECT_EQ(post(path, body).status, 200) << path << body;
    EXPECT_EQ(engine.last_request.sampling.continues, continues) << path << body;
  }
}

TEST_F(OpenAiTest, LogprobsStandBesideTheTextTheyBeginIn) {
  engine.hold = true;
  const Tokenizer& t = engine.tokenizer();
  const auto ids = t.encode("The river");
  ASSERT_GE(ids.size(), 2u);
  for (const bool stream : {false, true}) {
    LoopbackClient c(server->port());
    const std::string body =
        std::string(
            R"({"messages":[{"role":"user","content":"Hi"}],"logprobs":true,"top_logprobs":1,)"
            R"("stream":)") +
        (stream ? "true}" : "false}");
    ASSERT_TRUE(
        c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: "
               "close\r\nContent-Type: application/json\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body));
    const auto sink = engine.take();
    ASSERT_TRUE(sink);
    sink->on_plan(test::StubEngine::small_plan());
    sink->on_logprobs({{ids[0], -0.5f}, {{ids[0], -0.5f}}});
    EXPECT_TRUE(sink->on_token(ids[0], ""));  // held back
    sink->on_logprobs({{ids[1], -0.25f}, {{ids[1], -0.25f}}});
    EXPECT_TRUE(sink->on_token(ids[1], "The river"));
    // The rest of a stop string is not in the answer.
    sink->on_logprobs({{ids[1], -1.f}, {{ids[1], -1.f}}});
    EXPECT_TRUE(sink->on_token(ids[1], ""));
    engine.stop_text = "The";
    engine.finish(*sink);
    const std::string all = c.read_until("\n\nnever comes");
    EXPECT_NE(all.find("\"logprob\":-0.5"), std::string::npos) << all;
    EXPECT_NE(all.find("\"logprob\":-0.25"), std::string::npos) << all;
    EXPECT_EQ(all.find("\"logprob\":-1"), std::string::npos) << all;
  }
}

// A stream reports the same offsets as a whole reply, whatever was held back and however many
// tokens a character has.
TEST_F(OpenAiTest, TextOffsetsAreWhereTokensBegin) {
  engine.hold = true;
  const auto ids = engine.tokenizer().encode("The \u2603of");
  ASSERT_EQ(ids.size(), 6u) << "The, a space, three bytes of one character, of";
  for (const char* stream : {"false", "true"}) {
    std::string all;
    std::thread client([&] {
      all = post("/v1/completions",
                 std::string(R"({"prompt":"Hi","logprobs":0,"stream":)") + stream + "}")
                .body;
    });
    const auto sink = engine.take();
    EXPECT_TRUE(sink);
    if (sink) {
      sink->on_plan(test::StubEngine::small_plan());
      const char* const texts[] = {" T", "he ", "", "", "", "\u2603of"};
      for (std::size_t i = 0; i < ids.size(); ++i) {
        sink->on_logprobs({{ids[i], -0.5f}, {}});
        EXPECT_TRUE(sink->on_token(ids[i], texts[i]));
      }
      engine.finish(*sink);
    }
    client.join();
    std::string offsets;
    const std::string name = "\"text_offset\":[";
    for (auto at = all.find(name); at != std::string::npos; at = all.find(name, at + 1)) {
      const auto begin = at + name.size();
      offsets += all.substr(begin, all.find(']', begin) - begin) + ",";
    }
    EXPECT_EQ(offsets, "0,4,5,5,5,6,") << stream << all;
  }
}

TEST_F(OpenAiTest, LastTokensWithoutTextKeepTheirLogprobs) {
  engine.hold = true;
  const auto ids = engine.tokenizer().encode("The");
  ASSERT_EQ(ids.size(), 1u);
  ASSERT_TRUE(engine.tokenizer().bos_id());
  const std::int32_t control = *engine.tokenizer().bos_id();  // it has no text
  const std::string turns = R"("messages":[{"role":"user","content":"Hi"}],"logprobs":true)";
  const std::pair<const char*, std::string> requests[] = {
      {"/v1/chat/completions", "{" + turns + "}"},
      {"/v1/chat/completions", "{" + turns + R"(,"stream":true})"},
      {"/v1/completions", R"({"prompt":"Hi","logprobs":0})"},
      {"/v1/completions", R"({"prompt":"Hi","logprobs":0,"stream":true})"},
      {"/v1/query", "{" + turns + R"(,"document_ids":[]})"},
      {"/v1/query", "{" + turns + R"(,"document_ids":[],"stream":true})"}};
  for (const auto& [path, body] : requests) {
    for (const char* stop : {"", "END"}) {
      std::string all;
      std::thread client([&, path = path, body = body] { all = post(path, body).body; });
      const auto sink = engine.take();
      EXPECT_TRUE(sink);
      if (sink) {
        sink->on_plan(test::StubEngine::small_plan());
        sink->on_logprobs({{ids[0], -0.5f}, {}});
        // A completion begins with the space before its first word.
        const bool continues = std::string_view(path) == "/v1/completions";
        EXPECT_TRUE(sink->on_token(ids[0], continues ? " The" : "The"));
        for (int i = 0; i < 2; ++i) {
          sink->on_logprobs({{control, -0.25f}, {}});
          EXPECT_TRUE(sink->on_token(control, ""));
        }
        if (*stop != 0) {
          sink->on_logprobs({{ids[0], -0.125f}, {}});
          EXPECT_TRUE(sink->on_token(ids[0], ""));
        }
        engine.stop_text = stop;
        engine.finish(*sink);
      }
      client.join();
      std::size_t controls = 0;
      for (auto at = all.find("-0.25"); at != std::string::npos; at = all.find("-0.25", at + 1))
        ++controls;
      EXPECT_EQ(controls, 2u) << path << stop << all;
      EXPECT_EQ(all.find("-0.125"), std::string::npos) << path << all;
    }
  }
}

}  // namespace
}  // namespace quire
