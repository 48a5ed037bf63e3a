#include "server/hub/remote_embedder.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

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

/// A service that takes connections and never answers.
class SilentService {
 public:
  SilentService() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/v1/embeddings";
  }
  ~SilentService() { ::close(fd_); }
  const std::string& url() const { return url_; }

 private:
  int fd_;
  std::string url_;
};

TEST(RemoteEmbedderTest, ASilentServiceHoldsOneQuestionUpAndNotThoseBehind) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const SilentService service;
  const std::string text = "red fish";
  const auto ask = [&](Embedder& embedder, milliseconds patience) {
    const auto begun = Clock::now();
    EXPECT_EQ(embedder.embed({&text, 1}, EmbedRole::kQuestion, {{}, begun + patience}).code(),
              Code::kUnavailable);
    return Clock::now() - begun;
  };
  const milliseconds shortly{100}, long_time{60'000};
  const auto embedder = make_remote_embedder({service.url(), "", "", milliseconds(1), long_time});
  EXPECT_GE(ask(*embedder, shortly), shortly / 2);
  EXPECT_LT(ask(*embedder, long_time), long_time / 2) << "it is not asked";
  const auto again = make_remote_embedder(
      {service.url(), "", "", milliseconds(1), milliseconds(0)});
  EXPECT_GE(ask(*again, shortly), shortly / 2);
  EXPECT_GE(ask(*again, shortly), shortly / 2) << "it is asked again after its time";
}

}  // namespace
}  // namespace quire::hub
