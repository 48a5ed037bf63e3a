#include "server/json/openai_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "base/json_parse.h"

namespace quire {
namespace {

QueryDefaults defaults() { return {"auto", "auto", "auto", 4}; }

std::optional<JsonError> chat(const std::string& body, OpenAiBody& out) {
  const auto value = parse_json(body);
  EXPECT_TRUE(value.ok()) << body;
  return read_chat_completion(*value, defaults(), 2048, out);
}
std::optional<JsonError> completion(const std::string& body, OpenAiBody& out) {
  const auto value = parse_json(body);
  EXPECT_TRUE(value.ok()) << body;
  return read_completion(*value, defaults(), 2048, out);
}

constexpr const char* kHi = R"("messages":[{"role":"user","content":"Hi"}])";

TEST(OpenAiCodec, ReadsAWholeChat) {
  OpenAiBody b;
  const auto e = chat(
      R"({"model":"m","messages":[{"role":"system","content":"A"},{"role":"developer","content":[{)"
      R"("type":"text","text":"B"}]},
    {"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}],"name":"n"},{)"
      R"("role":"assistant","content":"z","refusal":null},{"role":"user","content":"w"}],
    "max_tokens":5,"max_completion_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":3,"min_p":0.1,)"
      R"("n":2,"stop":["a","b"],"seed":9,"logprobs":true,"top_logprobs":4,
    "frequency_penalty":1,"presence_penalty":-1,"logit_bias":{"5":2},"response_format":{)"
      R"("type":"text"},"stream":true,"stream_options":{"include_usage":true},
    "cache":{"strategy":"reuse"},"cache_salt":"12345678","citations":false,"explain":"blocks",)"
      R"("on_missing":"skip","on_not_ready":"error",
    "user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","safety_identifier":"s",)"
      R"("parallel_tool_calls":false,"prompt_cache_key":"k","ignore_eos":true,"min_tokens":3,)"
      R"("repetition_penalty":1.5,"allowed_token_ids":[4,5],"stop_token_ids":[6]})",
      b);
  ASSERT_FALSE(e) << e->message;
  const QueryBody& q = b.query;
  EXPECT_EQ(q.system, "A\n\nB");
  ASSERT_EQ(q.messages.size(), 3u);
  EXPECT_EQ(q.messages[0].content, "xy");
  EXPECT_EQ(q.message_index, (std::vector<std::size_t>{2, 3, 4}));
  EXPECT_TRUE(q.chat_template && q.stream && b.include_usage && q.skip_missing);
  EXPECT_EQ(b.n, 2);
  EXPECT_EQ(q.sampling.max_tokens, 7);
  EXPECT_EQ(q.sampling.top_logprobs, 4);
  EXPECT_EQ(q.sampling.stop.size(), 2u);
  EXPECT_TRUE(q.sampling.ignore_eos);
  EXPECT_EQ(q.sampling.min_tokens, 3);
  EXPECT_EQ(q.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(q.sampling.allowed_tokens, (std::vector<std::int32_t>{4, 5}));
  EXPECT_EQ(q.sampling.stop_token_ids, (std::vector<std::int32_t>{6}));
  EXPECT_EQ(q.cache.strategy, "reuse");
  EXPECT_EQ(q.on_not_ready, OnNotReady::kError);
  EXPECT_EQ(q.explain, ExplainLevel::kBlocks);
}

TEST(OpenAiCodec, NoAllowedTokenAtAllIsRefused) {
  OpenAiBody b;
  const auto e = chat(R"({"messages":[{"role":"user","content":"Hi"}],"allowed_token_ids":[]})", b);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->path, "allowed_token_ids");
  OpenAiBody absent;
  EXPECT_FALSE(chat(
      R"({"messages":[{"role":"user","content":"Hi"}],"allowed_token_ids":null,"stop_token_ids":[]})",
      absent));
}

TEST(OpenAiCodec, MembersOfMessagesAreReadOrRefused) {
  const auto second = [](const std::string& members) {
    OpenAiBody b;
    return chat(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant",)" + members +
                    R"(},{"role":"user","content":"w"}]})",
                b);
  };
  // What the service itself answers comes back.
  EXPECT_FALSE(second(R"("content":"z","refusal":null,"citations":[{"id":"1"}],"annotations":[])"));
  EXPECT_FALSE(second(R"("content":null,"tool_calls":[{"index":0,"id":"c","type":"function",)"
                      R"("function":{"name":"f","arguments":"{}"}}])"));
  const std::pair<const char*, const char*> refused[] = {
      {R"("content":"z","contents":1)", "messages[1].contents"},
      {R"("content":"z","refusal":"no")", "messages[1].refusal"},
      {R"("content":[{"type":"text","text":"z","weight":1}])", "messages[1].content[0].weight"},
      {R"("tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"},"kind":1}])",
       "messages[1].tool_calls[0].kind"},
      {R"("tool_calls":[{"id":"c","function":{"name":"f","argument":"{}"}}])",
       "messages[1].tool_calls[0].function.argument"}};
  for (const auto& [members, path] : refused) {
    const auto error = second(members);
    ASSERT_TRUE(error) << members;
    EXPECT_EQ(error->path, path);
  }
}

TEST(OpenAiCodec, FunctionsTakeObjects) {
  const auto tool = [](const std::string& parameters) {
    OpenAiBody b;
    return chat(std::string("{") + kHi +
                    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" +
                    parameters + "}}]}",
                b);
  };
  EXPECT_FALSE(tool(R"({"type":"object","properties":{}})"));
  EXPECT_FALSE(tool("{}"));
  for (const char* type : {R"("objekt")", R"("array")", R"(["object","null"])"}) {
    const auto error = tool(std::string(R"({"type":)") + type + "}");
    ASSERT_TRUE(error) << type;
    EXPECT_EQ(error->path, "tools[0].function.parameters.type");
    EXPECT_EQ(error->code, "invalid_value");
  }
}

TEST(OpenAiCodec, DefaultsAreTheProtocols) {
  OpenAiBody b;
  ASSERT_FALSE(chat(std::string("{") + kHi + "}", b));
  EXPECT_EQ(b.query.sampling.temperature, 1);
  EXPECT_EQ(b.query.sampling.max_tokens, 2048) << "an answer without a length may fill the window";
  EXPECT_EQ(b.n, 1);
  EXPECT_FALSE(b.query.stream || b.include_usage || b.query.sampling.top_logprobs);
  OpenAiBody c;
  ASSERT_FALSE(completion(R"({"prompt":"x"})", c));
  EXPECT_EQ(c.query.sampling.max_tokens, 16);
  EXPECT_EQ(c.query.sampling.temperature, 1);
}

TEST(OpenAiCodec, TellsWhetherALengthWasAskedFor) {
  const auto asked = [](const std::string& more, bool of_chat) {
    OpenAiBody b;
    const auto e = of_chat ? chat(std::string("{") + kHi + more + "}", b)
                           : completion(R"({"prompt":"x")" + more + "}", b);
    EXPECT_FALSE(e) << e->message;
    return b.query.sampling.max_tokens_asked;
  };
  for (const bool of_chat : {true, false}) {
    EXPECT_FALSE(asked("", of_chat));
    EXPECT_FALSE(asked(R"(,"max_tokens":null)", of_chat));
    EXPECT_FALSE(asked(R"(,"n_predict":-1)", of_chat)) << "up to the window";
    EXPECT_TRUE(asked(R"(,"max_tokens":2048)", of_chat));
    EXPECT_TRUE(asked(R"(,"n_predict":5)", of_chat));
    EXPECT_TRUE(asked(R"(,"n_predict":-1,"max_tokens":9)", of_chat));
  }
  EXPECT_TRUE(asked(R"(,"max_completion_tokens":7)", true));
}

TEST(OpenAiCodec, NullsAndHarmlessDefaultsAreTaken) {
  OpenAiBody b;
  const auto e = chat(
      std::string("{") + kHi +
          R"(,"tools":[],"tool_choice":"none","functions":null,"function_call":"none",)"
          R"("modalities":["text"],"audio":null,"temperature":null,"n":null,
    "stop":null,"stream":null,"stream_options":null,"response_format":null,"logit_bias":null,)"
          R"("documents":null,"cache":null,"verbosity":"medium"})",
      b);
  EXPECT_FALSE(e) << e->message;
}

TEST(OpenAiCodec, DocumentsKeepTheirOrderWhateverTheirForm) {
  OpenAiBody b;
  const auto e = chat(
      std::string("{") + kHi +
          R"(,"document_ids":["a"],"documents":[{"title":"T","text":"inline 1"},"b",{"id":"d",)"
          R"("data":{"text":"inline 2"}}]})",
      b);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(b.query.document_ids, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(b.query.document_params, (std::vector<std::string>{"document_ids[0]", "documents[1]"}));
  ASSERT_EQ(b.query.documents.size(), 2u);
  EXPECT_EQ(b.query.documents[0].after_ids, 1u);
  EXPECT_EQ(b.query.documents[1].after_ids, 2u);
  EXPECT_EQ(b.query.documents[1].title, "d");
  OpenAiBody c;
  ASSERT_FALSE(chat(std::string("{") + kHi + R"(,"documents":[{"id":"handbook-7"}]})", c));
  EXPECT_EQ(c.query.document_ids, (std::vector<std::string>{"handbook-7"}));
}

TEST(OpenAiCodec, ChatErrorsNameThePath) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"("messages":[])", "invalid_value", "messages"},
      {R"("model":"m")", "invalid_value", "messages"},
      {R"("messages":[{"role":"user"}])", "invalid_value", "messages[0].content"},
      {R"("messages":[{"content":"x"}])", "invalid_value", "messages[0].role"},
      {R"("messages":[{"role":"robot","content":"x"}])", "invalid_value", "messages[0].role"},
      {R"("messages":[{"role":"function","content":"x"}])", "unsupported_parameter",
       "messages[0].role"},
      {R"("messages":[{"role":"tool","content":"x"}])", "invalid_value",
       "messages[0].tool_call_id"},
      {R"("messages":[{"role":"user","content":"x"},{"role":"tool","content":"x",)"
       R"("tool_call_id":"1"}])",
       "invalid_value", "messages[1].tool_call_id"},
      {R"("messages":[{"role":"system","content":"x"}])", "invalid_value", "messages"},
      {R"("messages":[{"role":"user","content":"x"},{"role":"system","content":"x"}])",
       "invalid_value", "messages[1].role"},
      {R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":"x"}])",
       "invalid_value", "messages[1].role"},
      {R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":"",)"
       R"("tool_calls":[{"id":"1"}]},{"role":"user","content":"y"}])",
       "invalid_value", "messages[1].tool_calls[0].function"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "unsupported_parameter", "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "invalid_value",
       "messages[0].content[0].text"},
      {R"("messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function"}])",
       "invalid_value", "tools[0].function"},
      {R"("messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"custom"}])",
       "unsupported_parameter", "tools[0].type"},
      {R"("messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function",)"
       R"("function":{"name":"a b"}}])",
       "invalid_value", "tools[0].function.name"},
      {R"("messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function",)"
       R"("function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})",
       "invalid_value", "tool_choice.function.name"},
      {R"("messages":[{"role":"user","content":"Hi"}],"continue_final_message":true)",
       "invalid_value", "messages[0].role"},
      {R"("messages":[{"role":"user","content":"Hi"}],"continue_final_message":true,)"
       R"("add_generation_prompt":true)",
       "invalid_value", "add_generation_prompt"},
      {R"("messages":[{"role":"user","content":"Hi"}],"never_heard_of":1)", "unknown_field",
       "never_heard_of"},
      {R"("messages":[{"role":"user","content":"Hi"}],"guided_regex":"a\\b")",
       "unsupported_parameter", "guided_regex"},
      {R"("messages":[{"role":"user","content":"Hi"}],"grammar":"root = 1")", "invalid_value",
       "grammar"},
      {R"("messages":[{"role":"user","content":"Hi"}],"guided_choice":[])", "invalid_value",
       "guided_choice"},
      {R"("messages":[{"role":"user","content":"Hi"}],"guided_choice":["a",""])", "invalid_value",
       "guided_choice[1]"},
      {R"("messages":[{"role":"user","content":"Hi"}],"structured_outputs":{"regex":"a",)"
       R"("choice":["a"]})",
       "invalid_value", "structured_outputs"},
      {R"("messages":[{"role":"user","content":"Hi"}],"guided_json":"{")", "invalid_value",
       "guided_json"},
      {R"("messages":[{"role":"user","content":"Hi"}],"guided_regex":"a","grammar":"root ::= .")",
       "invalid_value", "grammar"},
      {R"("messages":[{"role":"user","content":"Hi"}],"repeat_penalty":1.1,)"
       R"("repetition_penalty":1.1)",
       "invalid_value", "repeat_penalty"},
      {R"("messages":[{"role":"user","content":"Hi"}],"tool_choice":"required")", "invalid_value",
       "tool_choice"},
      {R"("messages":[{"role":"user","content":"Hi"}],"modalities":["text","audio"])",
       "unsupported_parameter", "modalities"},
      {R"("messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"high")",
       "unsupported_parameter", "reasoning_effort"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"grammar"})",
       "unsupported_parameter", "response_format.type"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{})", "invalid_value",
       "response_format.type"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema"})",
       "invalid_value", "response_format.json_schema"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema",)"
       R"("json_schema":{"name":"x"}})",
       "invalid_value", "response_format.json_schema.schema"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema",)"
       R"("json_schema":{"schema":{"properties":{"a":{"type":"string","pattern":"\\b"}}}}})",
       "unsupported_parameter", "response_format.json_schema.schema.properties.a.pattern"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema",)"
       R"("json_schema":{"schema":{"type":"robot"}}})",
       "invalid_value", "response_format.json_schema.schema.type"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"text","schema":{}})",
       "invalid_value", "response_format.schema"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"text","a":{}})",
       "unknown_field", "response_format.a"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema",)"
       R"("json_schema":{"schema":{},"stricter":true}})",
       "unknown_field", "response_format.json_schema.stricter"},
      {R"("messages":[{"role":"user","content":"Hi"}],"documents":[{"text":"a","url":"b"}])",
       "unknown_field", "documents[0].url"},
      {R"("messages":[{"role":"user","content":"Hi"}],"documents":[{"data":{"text":"a","b":"c"}}])",
       "unknown_field", "documents[0].data.b"},
      {R"("messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_object"},)"
       R"("stop":"x")",
       "unsupported_parameter", "stop"},
      {R"("messages":[{"role":"user","content":"Hi"}],"n":9)", "invalid_value", "n"},
      {R"("messages":[{"role":"user","content":"Hi"}],"stop":["a","b","c","d","e"])",
       "invalid_value", "stop"},
      {R"("messages":[{"role":"user","content":"Hi"}],"top_logprobs":21,"logprobs":true)",
       "invalid_value", "top_logprobs"},
      {R"("messages":[{"role":"user","content":"Hi"}],"temperature":2.1)", "invalid_value",
       "temperature"},
      {R"("messages":[{"role":"user","content":"Hi"}],"stream_options":{"include_usage":true})",
       "invalid_value", "stream_options"},
      {R"("messages":[{"role":"user","content":"Hi"}],"max_completion_tokens":0)", "invalid_value",
       "max_completion_tokens"},
      {R"("messages":[{"role":"user","content":"Hi"}],"documents":[{}])", "invalid_value",
       "documents[0]"},
      {R"("messages":[{"role":"user","content":"Hi"}],"documents":[{"id":"a","data":{}}])",
       "invalid_value", "documents[0].data.text"},
      {R"("messages":[{"role":"user","content":"Hi"}],"documents":["1","2"],"document_ids":["3",)"
       R"("4","5"])",
       "invalid_value", "documents"},
      {R"("messages":[{"role":"user","content":"Hi"}],"cache":{"stratgy":"x"})", "unknown_field",
       "cache.stratgy"},
  };
  for (const auto& [members, code, param] : cases) {
    OpenAiBody b;
    const auto e = chat(std::string("{") + members + "}", b);
    ASSERT_TRUE(e) << members;
    EXPECT_EQ(e->code, code) << members << ": " << e->message;
    EXPECT_EQ(e->path, param) << members << ": " << e->message;
  }
}

TEST(OpenAiCodec, ResponseFormatsBecomeGrammars) {
  OpenAiBody text, object, schema, raw;
  ASSERT_FALSE(chat(std::string("{") + kHi + R"(,"response_format":{"type":"text"}})", text));
  EXPECT_FALSE(text.query.sampling.grammar);
  ASSERT_FALSE(
      chat(std::string("{") + kHi + R"(,"response_format":{"type":"json_object"}})", object));
  EXPECT_TRUE(object.query.sampling.grammar);
  ASSERT_FALSE(chat(
      std::string("{") + kHi +
          R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,)"
          R"("schema":{"type":"integer"}}}})",
      schema));
  EXPECT_TRUE(schema.query.sampling.grammar);
  ASSERT_FALSE(completion(R"({"prompt":"x","response_format":{"type":"json_object"}})", raw));
  EXPECT_TRUE(raw.query.sampling.grammar);
}

TEST(OpenAiCodec, PromptsAreTextsOrTokenIds) {
  OpenAiBody one, many, ids, batches;
  ASSERT_FALSE(completion(R"({"prompt":"x","logprobs":3})", one));
  EXPECT_EQ(one.query.prompts.at(0).text, "x");
  EXPECT_EQ(one.query.sampling.top_logprobs, 3);
  ASSERT_FALSE(completion(R"({"prompt":["x","y"],"n":4})", many));
  EXPECT_EQ(many.query.prompts.size(), 2u);
  ASSERT_FALSE(completion(R"({"prompt":[1,2,3]})", ids));
  ASSERT_EQ(ids.query.prompts.size(), 1u);
  EXPECT_EQ(ids.query.prompts[0].token_ids, (std::vector<std::int32_t>{1, 2, 3}));
  ASSERT_FALSE(completion(R"({"prompt":[[1,2],[3]]})", batches));
  EXPECT_EQ(batches.query.prompts.size(), 2u);
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"({})", "invalid_value", "prompt"},
      {R"({"prompt":""})", "invalid_value", "prompt"},
      {R"({"prompt":[]})", "invalid_value", "prompt"},
      {R"({"prompt":5})", "invalid_value", "prompt"},
      {R"({"prompt":["a",1]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":[1,-1]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":[[1],[]]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":["a","b"],"n":5})", "invalid_value", "prompt"},
      {R"({"prompt":"x","echo":true})", "unsupported_parameter", "echo"},
      {R"({"prompt":"x","suffix":"y"})", "unsupported_parameter", "suffix"},
      {R"({"prompt":"x","best_of":2})", "unsupported_parameter", "best_of"},
      {R"({"prompt":"x","logprobs":21})", "invalid_value", "logprobs"},
  };
  for (const auto& [body, code, param] : cases) {
    OpenAiBody b;
    const auto e = completion(body, b);
    ASSERT_TRUE(e) << body;
    EXPECT_EQ(e->code, code) << body << ": " << e->message;
    EXPECT_EQ(e->path, param) << body;
  }
}

}  // namespace
}  // namespace quire
