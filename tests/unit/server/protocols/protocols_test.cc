// The protocols of Anthropic, Ollama and OpenAI's Responses around a stub engine.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/json_parse.h"
#include "server/app/app.h"
#include "server/protocols/responses_request.h"
#include "server/service/services.h"
#include "tests/support/loopback_client.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::RawResponse;

class ProtocolsTest : public test::StubAppTest {
 protected:
  RawResponse post(const std::string& path, const std::string& body) {
    return call("POST", path, body);
  }
  static json::object object(const std::string& text) {
    auto v = parse_json(text);
    EXPECT_TRUE(v.ok() && v->is_object()) << text;
    return v.ok() && v->is_object() ? v->as_object() : json::object();
  }
  /// Returns the events of a stream, and checks that each is named like its type.
  static std::vector<json::object> events(const std::string& body) {
    std::vector<json::object> out;
    for (std::size_t at = 0; at < body.size();) {
      const auto end = body.find("\n\n", at), line = body.find('\n', at);
      EXPECT_TRUE(body.compare(at, 7, "event: ") == 0 && end != std::string::npos);
      if (end == std::string::npos) break;
      out.push_back(object(body.substr(line + 7, end - line - 7)));
      EXPECT_EQ(out.back().at("type").as_string(), body.substr(at + 7, line - at - 7));
      at = end + 2;
    }
    return out;
  }
  static std::string types(const std::vector<json::object>& all) {
    std::string out;
    for (const auto& e : all) out += std::string(e.at("type").as_string()) + " ";
    return out;
  }
  void answer_with_a_call() {
    engine.pieces = {"Wait.", " <tool_call>{\"name\": \"add\", ", "\"arguments\": {\"a\"",
                     ": 1}}</tool_call>"};
  }
};

const char* const kAnthropicTool =
    R"(,"tools":[{"name":"add","input_schema":{"type":"object","properties":{"a":{"type":)"
    R"("integer"}},"required":["a"]}}])";

std::string anthropic(const std::string& more) {
  return R"({"model":"default","max_tokens":9,"messages":[{"role":"user","content":"Hi"}])" + more +
         "}";
}

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

TEST_F(ProtocolsTest, ResponsesAreWholeOrNumberedEvents) {
  answer_with_a_call();
  const std::string tools =
      R"(,"tools":[{"type":"function","name":"add","parameters":{"type":"object","properties":{}},)"
      R"("strict":false}])";
  const auto o = object(
      post("/v1/responses", R"({"input":"Hi","model":"default")" + tools + "}").body);
  EXPECT_EQ(o.at("object").as_string(), "response");
  EXPECT_EQ(o.at("status").as_string(), "completed");
  ASSERT_EQ(o.at("output").as_array().size(), 2u);
  const auto& call = o.at("output").as_array()[1].as_object();
  EXPECT_EQ(call.at("type").as_string(), "function_call");
  EXPECT_EQ(call.at("arguments").as_string(), R"({"a": 1})");
  EXPECT_EQ(o.at("usage").as_object().at("total_tokens").as_int64(), 11);
  const auto all = events(
      post("/v1/responses", R"({"input":"Hi","stream":true)" + tools + "}").body);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(all[i].at("sequence_number").as_int64(), static_cast<std::int64_t>(i));
  EXPECT_EQ(types(all),
            "response.created response.in_progress response.output_item.added "
            "response.content_part.added response.output_text.delta response.output_text.done "
            "response.content_part.done response.output_item.done response.output_item.added "
            "response.function_call_arguments.delta response.function_call_arguments.delta "
            "response.function_call_arguments.done response.output_item.done response.completed ");
  const auto again = post(
      "/v1/responses",
      R"({"instructions":null,"input":[{"role":"user","content":"1+2?"},{"type":"function_call",)"
      R"("call_id":"c","name":"add","arguments":"{}"},{"type":"function_call_output","call_id":)"
      R"("c","output":"3"}]})");
  EXPECT_EQ(again.status, 200) << again.body;
}

TEST_F(ProtocolsTest, ResponsesThatAreCutSaySoInEveryEvent) {
  engine.hold = true;
  std::thread finisher([this] {
    auto sink = engine.take();
    sink->on_plan(test::StubEngine::small_plan());
    (void)sink->on_token(1, "cut");
    sink->on_done({}, test::StubEngine::small_plan(), {}, FinishReason::kLength);
  });
  const auto all = events(post("/v1/responses", R"({"input":"Hi","stream":true})").body);
  finisher.join();
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all.back().at("type").as_string(), "response.incomplete");
  const auto& done = all[all.size() - 2];
  EXPECT_EQ(done.at("type").as_string(), "response.output_item.done");
  const auto& whole = all.back().at("response").as_object().at("output").as_array().at(0);
  EXPECT_EQ(done.at("item"), whole);
  EXPECT_EQ(whole.as_object().at("status").as_string(), "incomplete");
}

TEST(Responses, FileSearchIsARetrievalOverItsVectorStores) {
  const auto read = [](const std::string& more) {
    const auto body = parse_json(
        R"({"input":"Hi","tools":[{"type":"file_search","vector_store_ids":["vs_a","vs_b"],
            "max_num_results":7,"ranking_options":{"score_threshold":0.5},
            "filters":{"type":"eq","key":"team","value":"x"}}])" +
        more + "}");
    ResponsesBody out;
    const auto e = read_responses(*body, out);
    EXPECT_FALSE(e) << e->message;
    return out;
  };
  const ResponsesBody out = read("");
  EXPECT_EQ(out.vector_store_ids, (std::vector<std::string>{"vs_a", "vs_b"}));
  ASSERT_TRUE(out.query.retrieve);
  EXPECT_TRUE(out.query.retrieve->asked);
  EXPECT_EQ(out.query.retrieve->k, 7);
  EXPECT_EQ(out.query.retrieve->min_score, 0.5);
  EXPECT_TRUE(out.query.skip_missing);
  EXPECT_FALSE(out.query.tools);
  const MetadataFilter& filter = out.query.retrieve->metadata;
  EXPECT_TRUE(metadata_matches(R"({"vector_stores":["vs_b"],"team":"x"})", filter));
  EXPECT_FALSE(metadata_matches(R"({"vector_stores":["vs_c"],"team":"x"})", filter));
  EXPECT_FALSE(metadata_matches(R"({"vector_stores":["vs_a"],"team":"y"})", filter));
  EXPECT_TRUE(read(R"(,"tool_choice":{"type":"file_search"})").query.retrieve);
  EXPECT_TRUE(read(R"(,"tool_choice":"required")").query.retrieve);
  const ResponsesBody none = read(R"(,"tool_choice":"none")");
  EXPECT_FALSE(none.query.retrieve);
  EXPECT_TRUE(none.vector_store_ids.empty());
}

TEST_F(ProtocolsTest, ResponsesRefuseWhatIsNotThere) {
  for (const char* member :
       {R"("store":true)", R"("previous_response_id":"x")", R"("reasoning":{"effort":"high"})",
        R"("tools":[{"type":"web_search"}])", R"("text":{"format":{"type":"grammar"}})",
        R"("unheard":1)", R"("tool_choice":"required")", R"("tools":[{"type":"file_search"}])",
        R"("tools":[{"type":"file_search","vector_store_ids":[]}])",
        R"("tools":[{"type":"file_search","vector_store_ids":["a"],"max_num_results":99}])",
        R"("tools":[{"type":"file_search","vector_store_ids":["a"]},
                    {"type":"file_search","vector_store_ids":["b"]}])",
        R"("tool_choice":{"type":"file_search"})"}) {
    const auto r = post("/v1/responses", R"({"input":"Hi",)" + std::string(member) + "}");
    EXPECT_EQ(r.status, 400) << member;
  }
  EXPECT_EQ(post("/v1/responses", R"({"input":[{"type":"reasoning"}]})").status, 400);
  EXPECT_EQ(post("/v1/responses", R"({"input":[{"type":"function_call_output","call_id":"c",)"
                                  R"("output":"3"}]})")
                .status,
            400);
}

TEST_F(ProtocolsTest, TheEngineIsToldWhetherALengthWasAskedFor) {
  const auto asked = [&](const std::string& path, const std::string& body) {
    const auto r = post(path, body);
    EXPECT_EQ(r.status, 200) << r.body;
    return engine.last_request.sampling.max_tokens_asked;
  };
  EXPECT_TRUE(asked("/v1/messages", anthropic("")));
  EXPECT_FALSE(asked("/v1/responses", R"({"input":"Hi"})"));
  EXPECT_TRUE(asked("/v1/responses", R"({"input":"Hi","max_output_tokens":9})"));
  const auto ollama = [&](const std::string& path, const std::string& more) {
    const std::string turn = path == "/api/chat" ? R"("messages":[{"role":"user","content":"Hi"}])"
                                                 : R"("prompt":"Hi")";
    return asked(path, R"({"model":"default","stream":false,)" + turn + more + "}");
  };
  for (const char* path : {"/api/chat", "/api/generate"}) {
    EXPECT_FALSE(ollama(path, ""));
    EXPECT_FALSE(ollama(path, R"(,"options":{"temperature":0})"));
    EXPECT_FALSE(ollama(path, R"(,"options":{"num_predict":-1})"));
    EXPECT_TRUE(ollama(path, R"(,"options":{"num_predict":9})"));
  }
}

TEST_F(ProtocolsTest, ErrorsNameTheFieldsOfTheProtocol) {
  const auto asked = [&](const std::string& path, const std::string& body) {
    const auto r = post(path, body);
    EXPECT_EQ(r.status, 200) << r.body;
    return engine.last_request.question_param;
  };
  EXPECT_EQ(asked("/v1/messages", anthropic("")), "messages");
  EXPECT_EQ(asked("/v1/responses", R"({"input":"Hi"})"), "input");
  EXPECT_EQ(asked("/api/generate", R"({"model":"default","prompt":"Hi","stream":false})"),
            "prompt");
  EXPECT_EQ(
      asked("/api/generate", R"({"model":"default","prompt":"Hi","raw":true,"stream":false})"),
      "prompt");
  EXPECT_EQ(asked("/v1/messages",
                  R"({"model":"default","max_tokens":9,"messages":[{"role":"user","content":[)"
                  R"({"type":"text","text":"Hi"},{"type":"document","source":{"type":"text",)"
                  R"("media_type":"text/plain","data":"t"}}]}]})"),
            "messages");
  EXPECT_EQ(engine.last_request.documents_param, "messages");
  EXPECT_EQ(engine.last_request.contexts.at(0).param, "messages[0].content[1]");
  const std::string text(400'000, 'a');
  const auto refused = [&](const std::string& input) {
    const auto r = post("/v1/responses", R"({"input":)" + input + "}");
    EXPECT_EQ(r.status, 400);
    return std::string(object(r.body).at("error").as_object().at("param").as_string());
  };
  EXPECT_EQ(refused("\"" + text + "\""), "input");
  EXPECT_EQ(
      refused(R"([{"role":"developer","content":"d"},{"role":"user","content":")" + text + "\"}]"),
      "input[1]");
}

TEST_F(ProtocolsTest, OllamaAnswersInLines) {
  const auto r = post("/api/chat",
                      R"({"model":"default","messages":[{"role":"user","content":"Hi"}]})");
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_TRUE(r.header("content-type")->starts_with("application/x-ndjson"));
  const auto end = r.body.find('\n');
  const auto first = object(r.body.substr(0, end)), last = object(r.body.substr(end + 1));
  EXPECT_EQ(first.at("message").as_object().at("content").as_string(), "answer");
  EXPECT_FALSE(first.at("done").as_bool());
  EXPECT_TRUE(last.at("done").as_bool());
  EXPECT_EQ(last.at("done_reason").as_string(), "stop");
  EXPECT_EQ(last.at("prompt_eval_count").as_int64(), 10);
  const auto whole = object(
      post("/api/generate", R"({"model":"stub:latest","prompt":"Hi","stream":false})").body);
  EXPECT_EQ(whole.at("response").as_string(), "answer");
  const auto raw = post("/api/generate",
                        R"({"model":"stub","prompt":"Hi","raw":true,"stream":false})");
  EXPECT_EQ(raw.status, 200) << raw.body;
}

TEST_F(ProtocolsTest, OllamasSeedsAreFixedButForItsDefault) {
  for (const auto& [seed, wanted] : {std::pair("7", std::optional<std::uint64_t>(7)),
                                     std::pair("-1", std::optional<std::uint64_t>()),
                                     std::pair("-2", std::optional(~std::uint64_t{1}))}) {
    ASSERT_EQ(post("/api/generate",
                   std::string(R"({"model":"stub","prompt":"Hi","options":{"seed":)") + seed + "}}")
                  .status,
              200);
    EXPECT_EQ(engine.last_request.sampling.seed, wanted) << seed;
  }
}

TEST_F(ProtocolsTest, OllamaCallsTools) {
  answer_with_a_call();
  const auto o = object(
      post("/api/chat",
           R"({"model":"default","stream":false,"messages":[{"role":"user","content":"Hi"},)"
           R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"add",)"
           R"("arguments":{"a":1}}}]},{"role":"tool","tool_name":"add","content":"3"}],"tools":)"
           R"([{"type":"function","function":{"name":"add","parameters":{"type":"object",)"
           R"("properties":{"a":{"type":"integer"}}}}}]})")
          .body);
  const auto& message = o.at("message").as_object();
  EXPECT_EQ(message.at("content").as_string(), "Wait.");
  const auto& function =
      message.at("tool_calls").as_array().at(0).as_object().at("function").as_object();
  EXPECT_EQ(function.at("arguments").as_object().at("a").as_int64(), 1);
}

TEST_F(ProtocolsTest, OllamaPullsWhatIsServed) {
  const auto lines = post("/api/pull", R"({"model":"stub:latest"})");
  EXPECT_EQ(lines.status, 200);
  EXPECT_NE(lines.body.find("{\"status\":\"success\"}\n"), std::string::npos) << lines.body;
  const auto one = object(post("/api/pull", R"({"name":"stub","stream":false})").body);
  EXPECT_EQ(one.at("status").as_string(), "success");
  const auto other = post("/api/pull", R"({"model":"llama3.2"})");
  EXPECT_EQ(other.status, 404);
  EXPECT_NE(other.body.find("quire serve -m"), std::string::npos) << other.body;
  EXPECT_EQ(post("/api/pull", R"({"stream":true})").status, 400);
}

// Ollama's own program sends members that it has nothing to say with, asks for nothing in order to
// have a model loaded, and shows the first twelve characters of a digest.
TEST_F(ProtocolsTest, OllamaServesOllamasOwnProgram) {
  const auto listed = object(call("GET", "/api/tags").body);
  const auto& model = listed.at("models").as_array().at(0).as_object();
  EXPECT_EQ(model.at("digest").as_string().size(), 64u);
  for (const auto& [path, body] :
       {std::pair("/api/show", R"({"model":"stub","system":"","template":"","verbose":false,)"
                               R"("options":null,"name":""})"),
        std::pair("/api/pull", R"({"model":"stub","username":"","password":"","name":""})")})
    EXPECT_EQ(post(path, body).status, 200) << body;
  EXPECT_EQ(post("/api/show", R"({"model":"stub","system":"Be brief."})").status, 400);
  for (
      const char* body :
      {R"({"model":"stub:latest","prompt":"","suffix":"","system":"","template":"","options":null})",
       R"({"model":"stub","keep_alive":-1})"}) {
    const auto loaded = object(post("/api/generate", body).body);
    EXPECT_TRUE(loaded.at("done").as_bool()) << body;
    EXPECT_EQ(loaded.at("done_reason").as_string(), "load") << body;
    EXPECT_EQ(loaded.at("response").as_string(), "") << body;
  }
  for (const char* body : {R"({"model":"stub"})", R"({"model":"stub","messages":[]})"}) {
    const auto loaded = object(post("/api/chat", body).body);
    EXPECT_EQ(loaded.at("done_reason").as_string(), "load") << body;
    EXPECT_EQ(loaded.at("message").as_object().at("content").as_string(), "") << body;
  }
  EXPECT_EQ(post("/api/generate", R"({"model":"other","prompt":""})").status, 404);
  EXPECT_EQ(
      post("/api/chat", R"({"model":"stub","messages":[{"role":"system","content":"x"}]})").status,
      400);
}

TEST_F(ProtocolsTest, OllamaTakesAnyMediaTypeOutsideBrowsers) {
  // What curl -d sends, and what a form of a web page sends.
  const std::string form = "application/x-www-form-urlencoded", body = R"({"model":"stub"})";
  EXPECT_EQ(call("POST", "/api/show", body, {}, form).status, 200);
  for (const char* type : {"application/x-www-form-urlencoded", "text/plain"}) {
    const auto page = call("POST", "/api/show", body, {"Origin: https://evil.example"}, type);
    EXPECT_EQ(page.status, 403) << type;
  }
  const auto asked = call("POST", "/api/show", body, {"Origin: https://good.example"},
                          "application/json");
  EXPECT_EQ(asked.status, 200) << "a browser asks before it sends JSON";
}

TEST_F(ProtocolsTest, OllamaDescribesTheModelAndRefusesByName) {
  EXPECT_EQ(object(call("GET", "/api/tags").body).at("models").as_array().size(), 1u);
  EXPECT_EQ(object(call("GET", "/api/ps").body).at("models").as_array().size(), 1u);
  EXPECT_TRUE(object(call("GET", "/api/version").body).contains("version"));
  EXPECT_EQ(post("/api/show", R"({"model":"stub"})").status, 200);
  EXPECT_EQ(post("/api/show", R"({"model":"other"})").status, 404);
  const auto vectors = object(post("/api/embed", R"({"model":"stub","input":["a","b"]})").body);
  EXPECT_EQ(vectors.at("embeddings").as_array().size(), 2u);
  for (const char* member :
       {R"("think":true)", R"("options":{"mirostat":1})", R"("options":{"temperatur":1})",
        R"("format":"xml")", R"("unheard":1)", R"("format":"json","options":{"stop":["x"]})"}) {
    const auto r = post("/api/chat",
                        R"({"model":"default","messages":[{"role":"user","content":"x"}],)" +
                            std::string(member) + "}");
    EXPECT_EQ(r.status, 400) << member;
    EXPECT_TRUE(object(r.body).at("error").is_string());
  }
  const auto orphan = post("/api/chat",
                           R"({"model":"default","messages":[{"role":"user","content":"x"},)"
                           R"({"role":"tool","content":"3"}]})");
  EXPECT_EQ(orphan.status, 400);
}

}  // namespace
}  // namespace quire
