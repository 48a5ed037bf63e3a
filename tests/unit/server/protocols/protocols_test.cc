// The protocols of Ollama and OpenAI's Responses around a stub engine, and what all have in common.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/json_parse.h"
#include "server/app/app.h"
#include "server/protocols/anthropic_request.h"
#include "server/protocols/ollama_request.h"
#include "server/protocols/responses_request.h"
#include "server/service/services.h"
#include "tests/support/loopback_client.h"
#include "tests/support/stub_app.h"
#include "tests/unit/server/protocols/protocols_app.h"

namespace quire {
namespace {

namespace json = boost::json;
using test::anthropic;
using test::ProtocolsTest;

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
  const auto& read = o.at("usage").as_object().at("input_tokens_details").as_object();
  for (const char* member : {"cached_tokens", "cache_write_tokens"})
    EXPECT_TRUE(read.contains(member)) << member;
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

TEST_F(ProtocolsTest, APartOfACallThatResponsesRequireIsNoText) {
  engine.pieces = {"<tool_c"};
  const std::string required =
      R"({"input":"Hi","tools":[{"type":"function","name":"add","parameters":{"type":"object",)"
      R"("properties":{}},"strict":false}],"tool_choice":"required")";
  for (const char* more : {"}", R"(,"stream":true})"}) {
    const auto r = post("/v1/responses", required + more);
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body.find("<tool_c"), std::string::npos) << r.body;
  }
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
  const auto first = object(post("/v1/responses", R"({"input":"Hi"})").body);
  for (const char* member : {"reasoning", "previous_response_id", "store", "truncation", "text"}) {
    const json::object again{{"input", "Hi"}, {member, first.at(member)}};
    EXPECT_EQ(post("/v1/responses", json::serialize(again)).status, 200)
        << member << " of a reply asks for nothing";
  }
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

// Packages of clients write an answer with all members that they know, null where it has none, and
// newer versions know more.
TEST_F(ProtocolsTest, AnswersComeBackWithNullsOfAnyName) {
  const auto status = [&](const std::string& path, const std::string& body) {
    const auto r = post(path, body);
    EXPECT_EQ(r.status == 200 || object(r.body).contains("error"), true);
    return r.status;
  };
  const auto responses = [&](const std::string& null) {
    return status("/v1/responses",
                  R"({"input":[{"role":"user","content":"Hi"},{"type":"message","role":)"
                  R"("assistant","content":[{"type":"output_text","text":"Ho",)" +
                      null + R"(}],)" + null +
                      R"(},{"type":"function_call","call_id":"c","name":"f","arguments":"{}",)" +
                      null + R"(},{"type":"function_call_output","call_id":"c","output":"3"}]})");
  };
  const auto messages = [&](const std::string& null) {
    return status("/v1/messages",
                  R"({"model":"default","max_tokens":9,"messages":[{"role":"user","content":"Hi"},)"
                  R"({"role":"assistant","content":[{"type":"text","text":"Ho",)" +
                      null + R"(},{"type":"tool_use","id":"c","name":"f","input":{},)" + null +
                      R"(}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c",)"
                      R"("content":"3"}]}]})");
  };
  const auto chat = [&](const std::string& null) {
    return status("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":)"
                  R"("Ho",)" +
                      null + R"(,"tool_calls":[{"id":"c","type":"function",)" + null +
                      R"(,"function":{"name":"f","arguments":"{}",)" + null +
                      R"(}}]},{"role":"tool","tool_call_id":"c","content":"3"}]})");
  };
  EXPECT_EQ(responses(R"("phase":null)"), 200);
  EXPECT_EQ(responses(R"("phase":"final")"), 400);
  EXPECT_EQ(messages(R"("caller":null)"), 200);
  EXPECT_EQ(messages(R"("caller":{"type":"direct"})"), 400);
  EXPECT_EQ(chat(R"("reasoning_content":null)"), 200);
  EXPECT_EQ(chat(R"("reasoning_content":"Hm")"), 400);
  EXPECT_EQ(status("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"Hi","reasoning_content":null}]})"),
            400)
      << "what a client writes itself has no reason to";
}

TEST_F(ProtocolsTest, AnAnswerThatTakesTooLongNamesNoFieldThatIsNotThere) {
  engine.done_status = Status::deadline("too late");
  for (const auto& [path, body] :
       {std::pair(std::string("/v1/messages"), anthropic("")),
        std::pair(std::string("/v1/responses"), std::string(R"({"input":"Hi"})")),
        std::pair(std::string("/api/generate"),
                  std::string(R"({"model":"stub","prompt":"Hi","stream":false})"))}) {
    const auto r = post(path, body);
    EXPECT_EQ(r.status, 504) << path;
    EXPECT_NE(r.body.find("within the 10 minutes"), std::string::npos) << r.body;
  }
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

// Clients that write all options, also those that they leave at their defaults.
TEST_F(ProtocolsTest, OllamaTakesOptionsThatChangeNothing) {
  const auto status = [&](const std::string& options) {
    return post("/api/generate",
                R"({"model":"stub","prompt":"Hi","stream":false,"options":{)" + options + "}}")
        .status;
  };
  for (const char* options :
       {R"("typical_p":1,"tfs_z":1)", R"("typical_p":1.0,"tfs_z":1.0)", R"("num_keep":4)",
        R"("repeat_last_n":64,"repeat_penalty":1)", R"("penalize_newline":false)",
        R"("mirostat":0,"mirostat_tau":5.0,"mirostat_eta":0.1)",
        R"("repeat_penalty":1.1,"repeat_last_n":-1,"penalize_newline":true)"})
    EXPECT_EQ(status(options), 200) << options;
  for (const char* options :
       {R"("typical_p":0.7)", R"("repeat_penalty":1.1,"repeat_last_n":64)",
        R"("presence_penalty":1,"penalize_newline":false)", R"("mirostat":2,"mirostat_tau":5.0)"})
    EXPECT_EQ(status(options), 400) << options;
}

TEST_F(ProtocolsTest, OllamasResultsAnswerTheCallsThatTheyName) {
  const std::string before =
      R"({"model":"default","stream":false,"messages":[{"role":"user","content":"Hi"},)"
      R"({"role":"assistant","content":"","tool_calls":[)"
      R"({"id":"a","function":{"name":"add","arguments":{"a":1}}},)"
      R"({"id":"b","function":{"name":"add","arguments":{"a":2}}}]},)";
  const auto suffix = [&](const std::string& results) {
    const auto r = post("/api/chat", before + results + "]}");
    EXPECT_EQ(r.status, 200) << r.body;
    return engine.last_request.suffix_ids;
  };
  QueryBody query;
  json::value body;
  ASSERT_FALSE(parse_json(before + R"({"role":"tool","tool_call_id":"b","content":"two"},)" +
                              R"({"role":"tool","tool_call_id":"a","content":"one"}]})",
                          body));
  const auto error = read_ollama_chat(body, query);
  ASSERT_FALSE(error) << error->message;
  json::value calls;
  ASSERT_FALSE(parse_json(query.messages.at(1).tool_calls, calls));
  EXPECT_EQ(query.messages.at(2).tool_call_id, calls.at(1).at("id").as_string());
  EXPECT_EQ(query.messages.at(3).tool_call_id, calls.at(0).at("id").as_string());
  EXPECT_EQ(query.messages.at(3).name, "add") << "the id tells the name";
  const std::string unnamed = R"({"role":"tool","content":"one"},{"role":"tool","content":"two"})";
  EXPECT_FALSE(suffix(unnamed).empty()) << "without ids, in order";
  EXPECT_EQ(post("/api/chat", before + unnamed + R"(,{"role":"tool","content":"x"}]})").status,
            400);
}

// Where a template has no place for calls, the model reads these words.
TEST_F(ProtocolsTest, ArgumentsThatComeBackKeepTheSpellingOfTheirNumbers) {
  const auto calls_of = [](const QueryBody& query) { return query.messages.at(1).tool_calls; };
  json::value body;
  ASSERT_FALSE(parse_json(R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":)"
                          R"("Hi"},{"role":"assistant","content":[{"type":"tool_use","id":"t",)"
                          R"("name":"f","input":{"x":21.5,"y":0.001}}]},{"role":"user",)"
                          R"("content":[{"type":"tool_result","tool_use_id":"t"}]}]})",
                          body));
  AnthropicBody anthropic;
  const auto refused = read_anthropic(body, false, 8, anthropic);
  ASSERT_FALSE(refused) << refused->message;
  EXPECT_NE(calls_of(anthropic.query).find(R"({\"x\":21.5,\"y\":0.001})"), std::string::npos)
      << calls_of(anthropic.query);
  ASSERT_FALSE(parse_json(R"({"model":"m","messages":[{"role":"user","content":"Hi"},)"
                          R"({"role":"assistant","tool_calls":[{"function":{"name":"f",)"
                          R"("arguments":{"x":21.5,"y":0.001}}}]},{"role":"tool","content":"z"}]})",
                          body));
  QueryBody ollama;
  const auto error = read_ollama_chat(body, ollama);
  ASSERT_FALSE(error) << error->message;
  EXPECT_NE(calls_of(ollama).find(R"({\"x\":21.5,\"y\":0.001})"), std::string::npos)
      << calls_of(ollama);
}

// LangChain's OllamaEmbeddings send every option with each text, null where it is not set.
TEST_F(ProtocolsTest, OllamaEmbedsWhateverTheOptionsOfAnswersAre) {
  const auto status = [&](const std::string& options) {
    return post("/api/embed", R"({"model":"stub","input":["a"],"options":{)" + options + "}}")
        .status;
  };
  for (const char* options :
       {"", R"("mirostat":null,"num_ctx":null,"temperature":null,"stop":null,"tfs_z":null)",
        R"("num_ctx":512,"num_thread":2)", R"("temperature":0.5,"top_k":3,"stop":["x"])"})
    EXPECT_EQ(status(options), 200) << options;
  EXPECT_EQ(status(R"("num_ctxt":512)"), 400);
}

TEST_F(ProtocolsTest, OllamaCutsTextsToEmbedUnlessToldNotTo) {
  // The window is 2,048 tokens; the longest of these texts could not fit it.
  for (const int words : {4'000, 40'000}) {
    std::string text;
    for (int i = 0; i < words; ++i) text += "word ";
    const std::string body = R"({"model":"stub","input":")" + text + "\"";
    const auto cut = post("/api/embed", body + "}");
    EXPECT_EQ(cut.status, 200) << cut.body;
    EXPECT_EQ(engine.last_embedded.size(), 2048u);
    EXPECT_EQ(object(cut.body).at("prompt_eval_count").as_int64(), 2048);
    EXPECT_EQ(post("/api/embed", body + R"(,"truncate":false})").status, 400);
  }
}

TEST_F(ProtocolsTest, OllamaEmbedsOneTextInTheOlderFormToo) {
  const auto several = object(post("/api/embed", R"({"model":"stub","input":["a"]})").body);
  const auto one = object(
      post("/api/embeddings", R"({"model":"stub:latest","prompt":"a","options":{"num_ctx":512}})")
          .body);
  EXPECT_EQ(one.at("embedding"), several.at("embeddings").at(0));
  const auto none = object(post("/api/embeddings", R"({"model":"stub","prompt":""})").body);
  EXPECT_TRUE(none.at("embedding").as_array().empty());
  EXPECT_EQ(post("/api/embeddings", R"({"model":"stub","input":"a"})").status, 400);
  for (const char* text : {"a", ""}) {
    const std::string given = "\"" + std::string(text) + "\"}";
    EXPECT_EQ(post("/api/embeddings", R"({"model":"other","prompt":)" + given).status, 404);
  }
  EXPECT_EQ(post("/api/embed", R"({"model":"stub","input":[]})").status, 200);
  EXPECT_EQ(post("/api/embed", R"({"model":"other","input":[]})").status, 404);
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

TEST_F(ProtocolsTest, OllamasClientsCanReadThatAPathIsNotThere) {
  for (const char* path : {"/api/create", "/api/push", "/api"}) {
    const auto r = testing::call(server->port(), "POST", path, R"({"model":"stub"})", {});
    EXPECT_EQ(r.status, 404) << path;
    EXPECT_EQ(object(r.body).at("error"), json::value("there is no " + std::string(path)));
  }
  EXPECT_TRUE(object(call("POST", "/v1/nothing", "{}").body).at("error").is_object());
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
