#include "server/hub/remote_embedder.h"

#include <gtest/gtest.h>

namespace quire::hub {
namespace {

using Vectors = std::vector<std::vector<float>>;

TEST(EmbeddingsReplyTest, VectorsComeInTheOrderOfTheTextsWithLengthOne) {
  const auto found = parse_embeddings_reply(
      R"({"data":[{"index":1,"embedding":[0,2]},{"index":0,"embedding":[3,4.0]}],"usage":{}})", 2);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, (Vectors{{0.6f, 0.8f}, {0, 1}}));
  EXPECT_TRUE(parse_embeddings_reply(R"({"data":[{"embedding":[1]}]})", 1).ok()) << "no index";
  for (const char* scale : {"1e300", "1e-300", "5e-324"}) {
    const auto far = parse_embeddings_reply(
        R"({"data":[{"embedding":[)" + std::string(scale) + ",0]}]}", 1);
    ASSERT_TRUE(far.ok()) << far.status().to_string();
    EXPECT_EQ(*far, (Vectors{{1, 0}})) << scale;
  }
}

TEST(EmbeddingsReplyTest, AnythingElseIsRefused) {
  for (const char* body :
       {"", "[]", "{}", R"({"data":{}})", R"({"data":[]})", R"({"data":[1,2]})",
        R"({"data":[{"index":0,"embedding":[1]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":-1,"embedding":[1]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1,1]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[0]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":["1"]}]})",
        R"({"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":"AAAA"}]})"})
    EXPECT_EQ(parse_embeddings_reply(body, 2).code(), Code::kIo) << body;
}

TEST(RemoteEmbedderTest, TheFingerprintIsOfUrlAndModel) {
  const auto of = [](const std::string& url, const std::string& model, const std::string& key) {
    return make_remote_embedder({url, model, key})->fingerprint();
  };
  const Digest before = of("http://a/v1/embeddings", "m", "k");
  EXPECT_EQ(of("http://a/v1/embeddings", "m", "another key"), before);
  EXPECT_NE(of("http://b/v1/embeddings", "m", "k"), before);
  EXPECT_NE(of("http://a/v1/embeddings", "n", "k"), before);
}

TEST(RemoteEmbedderTest, NobodyThereIsAnErrorThatIsWorthARetry) {
  const auto embedder = make_remote_embedder({"http://127.0.0.1:1/v1/embeddings", "", ""});
  const std::string text = "red fish", none;
  EXPECT_EQ(embedder->embed({&text, 1}, EmbedRole::kText, {}).code(), Code::kUnavailable);
  EXPECT_EQ(embedder
                ->embed({&text, 1}, EmbedRole::kQuestion,
                        {{}, std::chrono::steady_clock::now() - std::chrono::seconds(1)})
                .code(),
            Code::kDeadlineExceeded);
  const auto empty = embedder->embed({&none, 1}, EmbedRole::kText, {});
  ASSERT_TRUE(empty.ok()) << "an empty text is not sent";
  EXPECT_EQ(*empty, Vectors{{}});
}

}  // namespace
}  // namespace quire::hub
