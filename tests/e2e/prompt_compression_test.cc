// A draft compresses prompts before they are computed, through every endpoint that generates text.
#include <boost/json/serialize.hpp>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

class PromptCompressionTest : public ServiceTest {
 public:
  static void SetUpTestSuite() {
    start({"--model.draft_path=" + std::string(QUIRE_SOURCE_DIR) + "/models/demo"});
  }

 protected:
  static json::value ask(const std::string& path, const std::string& body) {
    int status = 0;
    const auto r = service->json("POST", path, body, {}, &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
    return r;
  }
  static void expect_cut(const json::value& r, std::int64_t kept) {
    EXPECT_EQ(text_at(r, "cache.prompt_compression.by"), "specpc") << json::serialize(r);
    EXPECT_EQ(int_at(r, "cache.prompt_compression.kept_tokens"), kept);
    const std::int64_t removed = int_at(r, "cache.prompt_compression.removed_tokens");
    EXPECT_GT(removed, 0);
    EXPECT_EQ(int_at(r, "usage.cache_details.dropped_tokens"), removed);
    EXPECT_EQ(int_at(r, "usage.prompt_tokens"), kept + removed);
  }
  static inline const std::string kCut =
      R"("cache":{"prompt_compression":{"method":"specpc","capacity":160,"window":32}})";
};

TEST_F(PromptCompressionTest, MethodsAndTheirSettingsAreListed) {
  const auto info = service->json("GET", "/v1/info");
  EXPECT_NE(json::serialize(at(info, "prompt_compressors")).find("specpc"), std::string::npos);
  EXPECT_NE(json::serialize(at(info, "prompt_compressor_details")).find("skip_layers"),
            std::string::npos);
}

TEST_F(PromptCompressionTest, InlineTextIsCutAndWhatIsCitedStandsInTheWholeText) {
  const std::string text = sample_text(3, 300);
  const auto r = ask("/v1/query",
                     R"({"query":"What was built?","documents":[{"title":"Notes","text":)" +
                         quoted(text) + R"(}],"max_tokens":8,"explain":"blocks",)" + kCut + "}");
  expect_cut(r, 160);
  EXPECT_GT(int_at(r, "documents.0.tokens"), 300);
  std::int64_t in_blocks = 0;
  for (const auto& b : at(r, "explain.blocks").as_array())
    in_blocks += int_at(b, "tokens.1") - int_at(b, "tokens.0") - int_at(b, "cut_tokens");
  std::int64_t kept = 0, of_document = 0;
  for (const auto& part : at(r, "explain.prompt_compression").as_array()) {
    for (const auto& range : at(part, "kept").as_array()) {
      const std::int64_t n = int_at(range, "1") - int_at(range, "0");
      kept += n;
      if (text_at(part, "part") == "document") of_document += n;
    }
  }
  EXPECT_EQ(kept, 160);
  EXPECT_EQ(in_blocks, of_document);
  for (const auto& c : at(r, "citations").as_array())
    EXPECT_NE(text.find(text_at(c, "quote")), std::string::npos);
}

TEST_F(PromptCompressionTest, ChatsAndPlainPromptsAreCutAlike) {
  const std::string text = quoted(sample_text(4, 300) + " What was built?");
  expect_cut(ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":)" + text +
                                             R"(}],"max_tokens":4,)" + kCut + "}"),
             160);
  expect_cut(ask("/v1/completions", R"({"prompt":)" + text + R"(,"max_tokens":4,)" + kCut + "}"),
             160);
  const auto streamed = service->call(
      "POST", "/v1/chat/completions",
      R"({"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user",)"
      R"("content":)" +
          text + R"(}],"max_tokens":4,)" + kCut + "}");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_NE(streamed.body.find(R"("prompt_compression":{"by":"specpc")"), std::string::npos)
      << streamed.body;
}

TEST_F(PromptCompressionTest, APlanIsMadeOfWhatStays) {
  const auto r = ask("/v1/query/plan", R"({"query":"What was built?","documents":[{"text":)" +
                                           quoted(sample_text(5, 300)) + R"(}],)" + kCut + "}");
  EXPECT_EQ(int_at(r, "cache.prompt_compression.kept_tokens"), 160) << json::serialize(r);
}

TEST_F(PromptCompressionTest, AShortPromptIsLeftAsItIsAndTheReplySaysSo) {
  const auto r = ask(
      "/v1/query",
      R"({"query":"What was built?","documents":[{"text":"A bridge of copper."}],"max_tokens":4,)"
      R"("cache":{"prompt_compression":"specpc"}})");
  EXPECT_EQ(int_at(r, "cache.prompt_compression.removed_tokens"), 0);
  EXPECT_NE(text_at(r, "cache.prompt_compression.note"), "null");
}

TEST_F(PromptCompressionTest, WhatCannotBeIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"method":"specpc","capacity":0})", "cache.prompt_compression.capacity"},
      {R"({"method":"specpc","capacity":-5})", "cache.prompt_compression.capacity"},
      {R"({"method":"specpc","capacity":64})", "cache.prompt_compression.capacity"},
      {R"({"method":"specpc","windows":4})", "cache.prompt_compression.windows"},
      {R"({"capacity":100})", "cache.prompt_compression.method"},
      {R"("squeeze")", "cache.prompt_compression"},
  };
  for (const auto& [given, field] : cases) {
    for (const std::string path : {"/v1/query", "/v1/chat/completions"}) {
      const std::string prompt = path == "/v1/query"
                                     ? R"("query":"q")"
                                     : R"("messages":[{"role":"user","content":"q"}])";
      int status = 0;
      const auto r = service->json(
          "POST", path, "{" + prompt + R"(,"cache":{"prompt_compression":)" + given + "}}", {},
          &status);
      EXPECT_EQ(status, 400) << given;
      EXPECT_EQ(text_at(r, "error.param"), field) << json::serialize(r);
    }
  }
}

TEST_F(PromptCompressionTest, MetricsCountByMethod) {
  ask("/v1/query", R"({"query":"What was built?","documents":[{"text":)" +
                       quoted(sample_text(6, 300)) + R"(}],"max_tokens":1,)" + kCut + "}");
  const std::string metrics = service->call("GET", "/metrics").body;
  EXPECT_NE(
      metrics.find(R"(quire_request_prompt_compression_ratio_count{prompt_compression="specpc"})"),
      std::string::npos);
  EXPECT_NE(metrics.find("quire_request_prompt_compression_time_seconds_count"), std::string::npos);
}

/// The embedded model includes its draft.
class EmbeddedDraftTest : public ServiceTest {
 public:
  static void SetUpTestSuite() { start({"--model.draft_wait_ms=600000"}); }

 protected:
  static json::value compressed() {
    int status = 0;
    const auto r = service->json(
        "POST", "/v1/query",
        R"({"query":"What was built?","documents":[{"text":)" + quoted(sample_text(8, 300)) +
            R"(}],"max_tokens":6,"cache":{"compress":"speckv","options":{"capacity":64}}})",
        {}, &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
    return r;
  }
};

TEST_F(EmbeddedDraftTest, LooksAheadUnlessItIsLeftOut) {
  const auto with = compressed();
  EXPECT_GT(int_at(with, "cache.compression.lookahead_tokens"), 0) << json::serialize(with);
  EXPECT_EQ(text_at(with, "cache.compression.note"), "null");
  TearDownTestSuite();
  start({"--model.draft_path=none"});
  const auto without = compressed();
  EXPECT_EQ(int_at(without, "cache.compression.lookahead_tokens"), 0);
  EXPECT_NE(text_at(without, "cache.compression.note").find("model.draft_path"), std::string::npos)
      << json::serialize(without);
}

}  // namespace
}  // namespace quire::testing
