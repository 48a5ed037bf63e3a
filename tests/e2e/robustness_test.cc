// Malicious or broken clients get the right status or a closed connection, and the service goes on.
#include <chrono>
#include <fstream>
#include <thread>

#include "cachestore/format/key.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

class RobustnessTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    const auto keys = folder() / "keys.toml";
    std::ofstream(keys)
        << "[[keys]]\nname = \"user\"\nsha256 = \"" << sha256("right-key").hex()
        << "\"\nscopes = [\"read\", \"write\", \"query\"]\nnamespaces = [\"default\"]\n";
    start({"--auth.keys_file=" + keys.string(), "--server.header_timeout_seconds=0.3",
           "--server.body_timeout_seconds=0.3", "--server.idle_timeout_seconds=1",
           "--server.max_connections=64"});
  }
  void TearDown() override {
    EXPECT_EQ(service->call("GET", "/readyz").status, 200) << "the others are not disturbed";
  }

  /// Returns the status of the reply; 0: the connection was closed without one.
  static int status_of(const std::string& bytes) {
    LoopbackClient c(service->port());
    (void)c.send(bytes);
    const auto r = c.read_response();
    return r ? r->status : 0;
  }
  static int status_of_path(const std::string& target) {
    return status_of(
        "GET " + target +
        " HTTP/1.1\r\nHost: localhost\r\napi-key: right-key\r\nConnection: close\r\n\r\n");
  }
};

TEST_F(RobustnessTest, ASmuggledRequestIsNeverAnswered) {
  // The hidden request would get a 401. Only the refusal of the first request may come, and then
  // the end.
  const std::string hidden = "GET /v1/documents HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string start =
      "POST /v1/query HTTP/1.1\r\nHost: localhost\r\napi-key: right-key\r\nContent-Type: "
      "application/json\r\n";
  const std::string cases[] = {
      start + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
      start + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden,
      start + "Content-Length: 0\r\nContent-Length: 4\r\n\r\n" + hidden,
      start + "Transfer-Encoding: chunked\r\n folded: x\r\n\r\n0\r\n\r\n" + hidden,
      start + "X: a\r\n Content-Length: 0\r\n\r\n" + hidden,
      start + "X: a\nContent-Length: 0\r\n\r\n" + hidden,
      start + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
      start + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n" + hidden,
      start + "Transfer-Encoding: chunked\r\n\r\n0;a\nb\r\n\r\n" + hidden,
  };
  for (const auto& bytes : cases) {
    LoopbackClient c(service->port());
    ASSERT_TRUE(c.send(bytes));
    const auto r = c.read_response();
    ASSERT_TRUE(r) << bytes;
    EXPECT_TRUE(r->status == 400 || r->status == 501) << r->status << "\n" << bytes;
    EXPECT_TRUE(c.at_end()) << "a second answer follows\n" << bytes;
  }
}

TEST_F(RobustnessTest, PathTricksFindNothing) {
  const std::pair<const char*, int> cases[] = {
      {"/v1/documents/../admin/config", 404},
      {"/v1/documents/%2e%2e/admin/config", 404},
      {"/v1/documents/%2e%2e%2fadmin%2fconfig", 404},
      {"/..%2f..%2fetc/passwd", 404},
      {"//v1/documents", 404},
      {"/v1//documents", 404},
      {"/v1/documents/a%2Fcontent", 404},
      {"/v1/documents/%00", 400},
      {"/v1/documents/a%00b", 400},
      {"/v1/%64ocuments", 200},
      {"/V1/documents", 404},
      {"/v1/documents/%", 400},
      {"/v1/documents/%zz", 400},
      {"/v1/documents/%c0%ae", 400},
      {"*", 404},
      {"http://other/v1/documents", 200},
      {"/ui/../v1/documents", 404},
  };
  for (const auto& [target, status] : cases) EXPECT_EQ(status_of_path(target), status) << target;
  EXPECT_EQ(status_of_path("v1/documents"), 400);
}

TEST_F(RobustnessTest, KeysInOddFormsAreRefused) {
  const auto status = [](const std::string& headers) {
    return status_of("GET /v1/documents HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                     headers + "\r\n");
  };
  EXPECT_EQ(status("Authorization: Bearer right-key\r\n"), 200);
  for (const std::string& headers :
       {std::string("Authorization: Bearer right-kex\r\n"),
        std::string("Authorization: Bearer right-key2\r\n"),
        std::string("Authorization: Bearer right-ke\r\n"),
        std::string("Authorization: Basic cmlnaHQta2V5\r\n"),
        std::string("Authorization: right-key\r\n"), std::string("Authorization: Bearer\r\n"),
        std::string(), "api-key: " + std::string(12000, 'k') + "\r\n"})
    EXPECT_EQ(status(headers), 401) << headers.substr(0, 60);
}

TEST_F(RobustnessTest, WrongContentTypesAre415) {
  const auto status = [](const std::string& target, const std::string& type,
                         const std::string& body) {
    return service->call("POST", target, body, {"api-key: right-key"}, type).status;
  };
  EXPECT_EQ(status("/v1/query", "text/plain", R"({"query":"q"})"), 415);
  EXPECT_EQ(status("/v1/query", "application/x-www-form-urlencoded", "query=q"), 415);
  EXPECT_EQ(status("/v1/documents", "application/octet-stream", "x"), 415);
  EXPECT_EQ(status("/v1/documents", "multipart/form-data", "x"), 400) << "no boundary";
  EXPECT_EQ(status("/v1/query", "application/json; charset=utf-16", "\xff\xfe{"), 400);
}

TEST_F(RobustnessTest, LargeHeadersAre431) {
  EXPECT_EQ(status_of("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20000, 'a') +
                      "\r\n\r\n"),
            431);
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "X" + std::to_string(i) + ": y\r\n";
  EXPECT_EQ(status_of("GET /livez HTTP/1.1\r\nHost: localhost\r\n" + many + "\r\n"), 431);
  EXPECT_EQ(status_of("GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            431);
}

TEST_F(RobustnessTest, SlowClientsAreClosedAndTheirPlacesComeBack) {
  // Each of two rounds opens more connections than are allowed. Those of the first must be closed
  // before the second is admitted.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<LoopbackClient>> clients;
    for (int i = 0; i < 60; ++i) {
      clients.push_back(std::make_unique<LoopbackClient>(service->port()));
      auto& c = *clients.back();
      if (i % 3 == 0) (void)c.send("GET /livez HT");
      if (i % 3 == 1)
        (void)c.send(
            "POST /v1/query HTTP/1.1\r\nHost: localhost\r\napi-key: right-key\r\nContent-Length: "
            "100\r\n\r\n{");
    }
    for (auto& c : clients) {
      const auto r = c->read_response();
      EXPECT_TRUE(!r || r->status == 408) << r->status;
      EXPECT_TRUE(c->at_end());
    }
  }
}

TEST_F(RobustnessTest, PipelinedRequestsKeepTheirOrderAndARefusalEndsThem) {
  const auto get = [](const std::string& target) {
    return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\napi-key: right-key\r\n\r\n";
  };
  LoopbackClient c(service->port());
  ASSERT_TRUE(c.send(get("/livez") + get("/v1/documents/nobody") + get("/v1/models") +
                     "GARBAGE\r\n\r\n" + get("/livez")));
  for (const int status : {200, 404, 200, 400}) {
    const auto r = c.read_response();
    ASSERT_TRUE(r) << status;
    EXPECT_EQ(r->status, status);
  }
  EXPECT_TRUE(c.at_end());
}

TEST_F(RobustnessTest, AnIdempotencyKeyIsFreeWhereItsClientLeftWhileItWaited) {
  const std::string user = "api-key: right-key";
  std::string text, documents;
  for (int i = 0; i < 300; ++i) text += "The house " + std::to_string(i) + " has a garden. ";
  constexpr int kDocuments = 8;  // the last one is read after all others
  for (int i = 0; i < kDocuments; ++i)
    documents += (i > 0 ? "," : "") + std::string(R"({"id":"slow-)") + std::to_string(i) +
                 R"(","text":")" + std::to_string(i) + ". " + text + "\"}";
  const auto posted = service->call("POST", "/v1/documents", R"({"documents":[)" + documents + "]}",
                                    {user});
  ASSERT_EQ(posted.status, 202) << posted.body;
  const std::string last = "slow-" + std::to_string(kDocuments - 1);
  const std::string question = R"({"query":"What has it?","document_ids":[")" + last +
                               R"("],"max_tokens":1,"on_not_ready":"wait"})";
  const auto status = [&] {
    return text_at(service->json("GET", "/v1/documents/" + last, {}, {user}), "status");
  };
  {
    LoopbackClient c(service->port());
    ASSERT_TRUE(c.send("POST /v1/query HTTP/1.1\r\nHost: localhost\r\n" + user +
                       "\r\nIdempotency-Key: left\r\nContent-Type: application/json\r\n"
                       "Content-Length: " +
                       std::to_string(question.size()) + "\r\n\r\n" + question));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it waits for the document
    ASSERT_NE(status(), "ready");
    c.reset();
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto pause = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return std::chrono::steady_clock::now() < end;
  };
  while (status() != "ready" && pause()) {
  }
  const auto ask = [&] {
    return service->call("POST", "/v1/query", question, {user, "Idempotency-Key: left"});
  };
  auto reply = ask();
  while (reply.status == 409 && pause()) reply = ask();
  EXPECT_EQ(reply.status, 200) << reply.body;
}

}  // namespace
}  // namespace quire::testing
