#include "server/http/http_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "server/http/http_client.h"
#include "server/http/tls_certificate.h"
#include "tests/support/loopback_client.h"
#include "tests/support/model_files.h"
#include "tests/unit/server/http/test_certificate.h"

namespace quire {
namespace {

using testing::LoopbackClient;

/// Keeps exchanges until the test answers them, or answers by path.
class FakeService final : public HttpService {
 public:
  HeadDecision on_head(Exchange& e) override {
    HeadDecision d;
    d.max_body_bytes = 1000;
    if (e.request.path_text() == "/refuse") d.reject = text(403, "no");
    if (e.request.path_text() == "/sink") d.sink = std::make_shared<Sink>(*this);
    if (e.request.path_text() == "/slow-sink") {
      d.max_body_bytes = 1 << 20;
      d.sink = std::make_shared<SlowSink>(*this);
    }
    return d;
  }
  void handle(std::shared_ptr<Exchange> e) override {
    const std::string path = e->request.path_text();
    if (path == "/slow-sink") return e->respond(text(200, echoed_while_slow ? "shared" : "alone"));
    if (path == "/echo") ++echoed;
    if (path == "/echo") return e->respond(text(200, e->request.method + ":" + e->request.body));
    if (path == "/drop") return;  // a handler that never answers
    if (path == "/sink") return e->respond(text(200, std::to_string(sunk)));
    if (path == "/ping") {
      e->set_ping(": ping\n\n", std::chrono::milliseconds(20));
      HttpResponse head;
      head.content_type = "text/event-stream";
      e->start_stream(head);
    }
    if (path == "/thread") {
      std::thread([e] { e->respond(text(200, "from a thread")); }).detach();
      return;
    }
    e->on_disconnect([this] {
      std::lock_guard lock(mu);
      ++disconnects;
      changed.notify_all();
    });
    std::lock_guard lock(mu);
    held.push_back(std::move(e));
    changed.notify_all();
  }
  HttpResponse protocol_error(int status, const std::string& message, Exchange*) override {
    return text(status, message);
  }
  void on_finished(Exchange&, const ExchangeSummary& s) override {
    std::lock_guard lock(mu);
    ++finished;
    last = s;
    changed.notify_all();
  }

  static HttpResponse text(int status, std::string body) {
    HttpResponse r;
    r.status = status;
    r.content_type = "text/plain";
    r.body = std::move(body);
    return r;
  }
  template <class F>
  bool wait(F until) {
    std::unique_lock lock(mu);
    return changed.wait_for(lock, std::chrono::seconds(20), until);
  }
  std::shared_ptr<Exchange> take() {
    if (!wait([this] { return !held.empty(); })) return nullptr;
    std::lock_guard lock(mu);
    auto e = held.front();
    held.erase(held.begin());
    return e;
  }

  struct Sink final : BodySink {
    explicit Sink(FakeService& s) : service(s) {}
    std::optional<HttpResponse> write(std::string_view piece) override {
      service.sunk += piece.size();
      if (piece.find('!') != std::string_view::npos) return text(400, "bad piece");
      return std::nullopt;
    }
    FakeService& service;
  };

  /// Works for some milliseconds on each piece. Before the first two it waits for the test.
  struct SlowSink final : BodySink {
    explicit SlowSink(FakeService& s) : service(s) {}
    std::optional<HttpResponse> write(std::string_view piece) override {
      if (written < 2) {
        std::unique_lock lock(service.mu);
        service.slow_pieces = written + 1;
        service.changed.notify_all();
        service.changed.wait_for(lock, std::chrono::seconds(20),
                                 [this] { return service.slow_may_go > written; });
      }
      ++written;
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
      while (std::chrono::steady_clock::now() < end) {
      }
      service.sunk += piece.size();
      service.echoed_while_slow = service.echoed > 1;
      return std::nullopt;
    }
    FakeService& service;
    int written = 0;
  };

  std::mutex mu;
  std::condition_variable changed;
  int slow_pieces = 0, slow_may_go = 0;  // guarded by mu
  std::atomic<int> echoed{0};
  std::atomic<bool> echoed_while_slow{false};
  std::vector<std::shared_ptr<Exchange>> held;
  int disconnects = 0, finished = 0;
  ExchangeSummary last;
  std::atomic<std::size_t> sunk{0};
};

/// Every test runs over plain connections and over TLS.
class HttpServerTest : public ::testing::TestWithParam<bool> {
 protected:
  static bool tls() { return GetParam(); }
  void start(HttpServerOptions options = {}, int threads = 2) {
    options.threads = threads;
    if (tls()) {
      testing::write_certificate(folder_.path(), "server");
      auto certificate = TlsCertificate::load(folder_.path() / "server.pem",
                                              folder_.path() / "server.key");
      ASSERT_TRUE(certificate.ok()) << certificate.status().to_string();
      certificate_ = *certificate;
      options.certificate = certificate_;
    }
    auto s = start_http_server(options, service_);
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    server_ = std::move(*s);
  }
  void TearDown() override {
    if (server_) (void)server_->stop(std::chrono::milliseconds(0));
    service_.held.clear();
  }
  std::string request(const std::string& target, const std::string& more = {}) {
    return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n";
  }
  std::string post(const std::string& target, const std::string& body) {
    return "POST " + target +
           " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }

  testing::TempFolder folder_;
  std::shared_ptr<TlsCertificate> certificate_;  ///< null: plain
  FakeService service_;
  std::unique_ptr<HttpServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Plain, HttpServerTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, HttpServerTest, ::testing::Values(true));

TEST_P(HttpServerTest, KeepAliveServesOneAfterTheOther) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(c.send(post("/echo", "n" + std::to_string(i))));
    const auto r = c.read_response();
    ASSERT_TRUE(r);
    EXPECT_EQ(r->status, 200);
    EXPECT_EQ(r->body, "POST:n" + std::to_string(i));
  }
}

TEST_P(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  std::string all;
  for (int i = 0; i < 20; ++i)
    all += i % 3 == 0 ? request("/thread") : post("/echo", std::to_string(i));
  ASSERT_TRUE(c.send(all));
  for (int i = 0; i < 20; ++i) {
    const auto r = c.read_response();
    ASSERT_TRUE(r) << i;
    EXPECT_EQ(r->body, i % 3 == 0 ? "from a thread" : "POST:" + std::to_string(i));
  }
}

TEST_P(HttpServerTest, PipelinedRequestBehindASlowOneIsKept) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(request("/slow")));
  auto slow = service_.take();
  ASSERT_TRUE(slow);
  ASSERT_TRUE(c.send(post("/echo", "second")));
  slow->respond(FakeService::text(200, "first"));
  EXPECT_EQ(c.read_response()->body, "first");
  EXPECT_EQ(c.read_response()->body, "POST:second");
}

TEST_P(HttpServerTest, ConnectionCloseAndHttp10AreHonoured) {
  start();
  LoopbackClient a(server_->port(), 20, tls());
  ASSERT_TRUE(a.send(request("/echo", "Connection: close\r\n")));
  EXPECT_EQ(a.read_response()->status, 200);
  EXPECT_TRUE(a.at_end());
  LoopbackClient b(server_->port(), 20, tls());
  ASSERT_TRUE(b.send("GET /echo HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(b.read_response()->status, 200);
  EXPECT_TRUE(b.at_end());
}

TEST_P(HttpServerTest, HeadHasLengthButNoBody) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n" + request("/echo")));
  const auto head = c.read_response(true);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->header("content-length"), "5");
  EXPECT_EQ(c.read_response()->body, "GET:");
}

TEST_P(HttpServerTest, ExpectContinueIsAnsweredBeforeTheBody) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
  const auto go = c.read_head();
  ASSERT_TRUE(go);
  EXPECT_EQ(go->status, 100);
  ASSERT_TRUE(c.send("ok"));
  EXPECT_EQ(c.read_response()->body, "POST:ok");
}

TEST_P(HttpServerTest, ExpectContinueOfARefusedRequestGetsNo100) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(
      "POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
  const auto r = c.read_head();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->status, 403);
}

TEST_P(HttpServerTest, SmallBodyOfARefusedRequestDoesNotEndTheConnection) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(post("/refuse", "body") + post("/echo", "x")));
  EXPECT_EQ(c.read_response()->status, 403);
  EXPECT_EQ(c.read_response()->body, "POST:x");
}

TEST_P(HttpServerTest, TooLargeBodiesAre413WithEitherFraming) {
  start();
  LoopbackClient a(server_->port(), 20, tls());
  ASSERT_TRUE(a.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"));
  EXPECT_EQ(a.read_response()->status, 413);
  LoopbackClient b(server_->port(), 20, tls());
  ASSERT_TRUE(b.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
                     std::string(2000, 'a') + "\r\n0\r\n\r\n"));
  EXPECT_EQ(b.read_response()->status, 413);
}

TEST_P(HttpServerTest, BrokenRequestsGetTheirStatusAndClose) {
  start();
  const std::pair<std::string, int> cases[] = {
      {"nonsense\r\n\r\n", 400},
      {request("/x", "X: " + std::string(20000, 'a') + "\r\n"), 431},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
       400}};
  for (const auto& [text, status] : cases) {
    LoopbackClient c(server_->port(), 20, tls());
    ASSERT_TRUE(c.send(text));
    const auto r = c.read_response();
    ASSERT_TRUE(r) << status;
    EXPECT_EQ(r->status, status);
    EXPECT_TRUE(c.at_end());
  }
}

TEST_P(HttpServerTest, SinkSeesTheBodyAndCanEndIt) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(post("/sink", std::string(500, 'a'))));
  EXPECT_EQ(c.read_response()->body, "500");
  ASSERT_TRUE(c.send("POST /sink HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\nab!"));
  const auto r = c.read_response();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->status, 400);
}

/// As one that expands a little to a lot.
TEST_P(HttpServerTest, ASlowSinkSharesItsThreadWithOthers) {
  start({}, /*threads=*/1);
  LoopbackClient slow(server_->port(), 20, tls()), other(server_->port(), 20, tls());
  ASSERT_TRUE(other.send(post("/echo", "first")));
  ASSERT_TRUE(other.read_response());
  const auto let_go = [this](int pieces) {
    const std::lock_guard lock(service_.mu);
    service_.slow_may_go = pieces;
    service_.changed.notify_all();
  };
  const std::string body(40 << 10, 'x');
  ASSERT_TRUE(slow.send(post("/slow-sink", body)));
  ASSERT_TRUE(service_.wait([this] { return service_.slow_pieces == 1; }));
  let_go(1);  // all has arrived, so the next pieces come at once
  ASSERT_TRUE(service_.wait([this] { return service_.slow_pieces == 2; }));
  ASSERT_TRUE(other.send(post("/echo", "second")));
  let_go(2);
  const auto r = slow.read_response();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->body, "shared");
  EXPECT_EQ(service_.sunk, body.size());
  EXPECT_TRUE(other.read_response());
}

TEST_P(HttpServerTest, BodiesOfAllRequestsHaveABoundTogether) {
  HttpServerOptions options;
  options.max_held_body_bytes = 1500;
  start(options);
  LoopbackClient first(server_->port(), 20, tls());
  ASSERT_TRUE(first.send(post("/hold", std::string(1000, 'x'))));
  const auto held = service_.take();
  ASSERT_TRUE(held);
  LoopbackClient second(server_->port(), 20, tls());
  ASSERT_TRUE(second.send(post("/echo", std::string(600, 'y'))));
  const auto refused = second.read_response();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_NE(refused->body.find("server.max_held_body_bytes"), std::string::npos) << refused->body;
  held->respond(FakeService::text(200, "done"));
  ASSERT_TRUE(first.read_response());
  ASSERT_TRUE(service_.wait([this] { return service_.finished == 2; }));
  std::optional<testing::RawResponse> taken;
  for (int i = 0; i < 2000 && (!taken || taken->status != 200); ++i) {
    LoopbackClient again(server_->port(), 20, tls());
    ASSERT_TRUE(again.send(post("/echo", std::string(600, 'y'))));
    taken = again.read_response();
    ASSERT_TRUE(taken);
  }
  EXPECT_EQ(taken->status, 200) << "the first request's body is no longer held";
}

TEST_P(HttpServerTest, ForgottenRequestIs500) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(request("/drop")));
  EXPECT_EQ(c.read_response()->status, 500);
}

TEST_P(HttpServerTest, StreamIsChunkedAndPinged) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(request("/ping")));
  auto e = service_.take();
  ASSERT_TRUE(e);
  EXPECT_NE(c.read_until(": ping").find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_TRUE(e->write("data: x\n\n"));
  EXPECT_NE(c.read_until("data: x").find("data: x"), std::string::npos);
  e->finish();
  EXPECT_NE(c.read_until("0\r\n\r\n").find("0\r\n\r\n"), std::string::npos);
  ASSERT_TRUE(c.send(post("/echo", "after")));
  EXPECT_EQ(c.read_response()->body, "POST:after");
}

TEST_P(HttpServerTest, TheHeadOfAStreamIsAllThatHeadGets) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send("HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n"));
  const auto head = c.read_response(true);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->header("transfer-encoding"), "chunked");
  EXPECT_TRUE(service_.wait([this] { return service_.disconnects == 1; })) << "nobody listens";
  ASSERT_TRUE(c.send(post("/echo", "after")));
  const auto after = c.read_response();
  ASSERT_TRUE(after) << "the stream must not stand before the next reply";
  EXPECT_EQ(after->body, "POST:after");
}

TEST_P(HttpServerTest, DisconnectIsNoticedWhileWaiting) {
  start();
  for (const bool hard : {false, true}) {
    LoopbackClient c(server_->port(), 20, tls());
    const int before = service_.disconnects;
    ASSERT_TRUE(c.send(request("/hold")));
    auto e = service_.take();
    ASSERT_TRUE(e);
    hard ? c.reset() : c.close();
    EXPECT_TRUE(service_.wait([&] { return service_.disconnects == before + 1; }));
    EXPECT_TRUE(e->client_gone());
    EXPECT_FALSE(e->write("x"));
  }
  EXPECT_TRUE(service_.wait([&] { return service_.finished == 2; }));
  EXPECT_EQ(service_.last.status, 499);
  EXPECT_TRUE(service_.last.client_gone);
}

TEST_P(HttpServerTest, DisconnectIsNoticedWhileStreaming) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(request("/ping")));
  auto e = service_.take();
  ASSERT_TRUE(e);
  c.read_until(": ping");
  c.close();
  EXPECT_TRUE(service_.wait([&] { return service_.disconnects == 1; }));
}

TEST_P(HttpServerTest, SilentClientsAreClosed) {
  HttpServerOptions o;
  o.header_timeout = o.body_timeout = o.idle_timeout = std::chrono::milliseconds(50);
  start(o);
  LoopbackClient idle(server_->port(), 20, tls()), head(server_->port(), 20, tls()),
      body(server_->port(), 20, tls());
  ASSERT_TRUE(head.send("GET /echo HT"));
  ASSERT_TRUE(body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"));
  EXPECT_TRUE(idle.at_end());
  EXPECT_EQ(head.read_response()->status, 408);
  EXPECT_EQ(body.read_response()->status, 408);
}

TEST_P(HttpServerTest, ABodyThatTricklesIsCutOff) {
  HttpServerOptions o;
  o.body_timeout = std::chrono::milliseconds(100);
  o.min_body_bytes_per_second = 1u << 30;  // faster than any client of a test
  start(o);
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n"));
  // The client is never silent for long and is still cut off. The bytes that it sends meanwhile may
  // lose it the answer.
  bool cut = false;
  for (int i = 0; i < 800 && !cut; ++i) {
    cut = !c.send("a");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the client's pace
  }
  const auto r = c.read_response();
  EXPECT_TRUE(r ? r->status == 408 : cut);
}

TEST_P(HttpServerTest, AHalfClosedConnectionIsAnsweredOrClosed) {
  start();
  LoopbackClient whole(server_->port(), 20, tls()), half(server_->port(), 20, tls()),
      nothing(server_->port(), 20, tls());
  ASSERT_TRUE(whole.send(post("/echo", "all of it")));
  whole.shutdown_send();
  EXPECT_EQ(whole.read_response()->body, "POST:all of it");
  EXPECT_TRUE(whole.at_end());
  ASSERT_TRUE(half.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"));
  half.shutdown_send();
  const auto r = half.read_response();
  EXPECT_TRUE(!r || r->status == 400) << "a body that will not come is no request";
  EXPECT_TRUE(half.at_end());
  nothing.shutdown_send();
  EXPECT_TRUE(nothing.at_end());
}

TEST_P(HttpServerTest, AWriterWaitsForASlowReader) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(request("/ping")));
  auto e = service_.take();
  ASSERT_TRUE(e);
  const std::string piece(1u << 20, '~');
  std::thread writer([&] {
    // The data exceeds the queue and the sockets. Without waiting, the connection would be dropped.
    for (int i = 0; i < 32 && e->wait_for_room(piece.size(), std::chrono::seconds(20)); ++i)
      if (!e->write(piece)) break;
    e->finish();
  });
  std::int64_t received = 0;
  std::string end;
  while (!end.ends_with("\r\n0\r\n\r\n")) {
    const std::string some = c.read_some();
    if (some.empty()) break;
    received += std::count(some.begin(), some.end(), '~');
    end = (end + some)
              .substr(end.size() + some.size() -
                      std::min<std::size_t>(end.size() + some.size(), 7));
  }
  writer.join();
  EXPECT_EQ(received, std::int64_t{32} << 20);
}

TEST_P(HttpServerTest, AReplyMayTakeASlowReaderLongerThanTheTimeout) {
  HttpServerOptions o;
  o.write_timeout = std::chrono::milliseconds(1000);
  start(o);
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(request("/hold")));
  auto e = service_.take();
  ASSERT_TRUE(e);
  const std::size_t size = std::size_t{48} << 20;  // more than the buffers of both sockets
  e->respond(FakeService::text(200, std::string(size, '~')));
  std::size_t received = 0;
  for (int i = 0; received < size; ++i) {
    if (i < 150) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the client's pace
    const std::string some = c.read_some();
    if (some.empty()) break;
    received += static_cast<std::size_t>(std::count(some.begin(), some.end(), '~'));
  }
  EXPECT_EQ(received, size);
}

TEST_P(HttpServerTest, AReaderThatTakesNothingOrTooLittleIsCutOff) {
  for (const bool silent : {true, false}) {
    HttpServerOptions o;
    o.write_timeout = std::chrono::milliseconds(100);
    o.min_reply_bytes_per_second = std::uint64_t{1} << 40;  // faster than any client of a test
    start(o);
    LoopbackClient c(server_->port(), 20, tls());
    ASSERT_TRUE(c.send(request("/hold")));
    auto e = service_.take();
    ASSERT_TRUE(e);
    const int before = service_.finished;
    e->respond(FakeService::text(200, std::string(std::size_t{48} << 20, '~')));
    for (int i = 0; i < 50 && !silent; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the client's pace
      if (c.read_some().empty()) break;
    }
    EXPECT_TRUE(service_.wait([&] { return service_.finished == before + 1; }));
    EXPECT_TRUE(service_.last.client_gone);
  }
}

TEST_P(HttpServerTest, AWriterIsToldWhenTheReaderIsGone) {
  start();
  LoopbackClient c(server_->port(), 20, tls());
  ASSERT_TRUE(c.send(request("/ping")));
  auto e = service_.take();
  ASSERT_TRUE(e);
  EXPECT_TRUE(e->wait_for_room(1, std::chrono::seconds(20)));
  EXPECT_FALSE(e->wait_for_room(Exchange::kMaxQueuedBytes + 1, std::chrono::milliseconds(1)))
      << "there is never so much room";
  c.read_until(": ping");
  c.reset();
  EXPECT_TRUE(service_.wait([&] { return service_.disconnects == 1; }));
  EXPECT_FALSE(e->wait_for_room(1, std::chrono::seconds(20)));
}

TEST_P(HttpServerTest, StopLetsARunningRequestFinish) {
  start();
  LoopbackClient busy(server_->port(), 20, tls()), idle(server_->port(), 20, tls());
  ASSERT_TRUE(idle.send(post("/echo", "")));
  EXPECT_EQ(idle.read_response()->status, 200);
  ASSERT_TRUE(busy.send(request("/hold")));
  auto e = service_.take();
  ASSERT_TRUE(e);
  bool clean = false;
  std::thread stopper([&] { clean = server_->stop(std::chrono::seconds(20)); });
  EXPECT_TRUE(idle.at_end());
  e->respond(FakeService::text(200, "done"));
  const auto r = busy.read_response();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->body, "done");
  EXPECT_EQ(r->header("connection"), "close");
  stopper.join();
  EXPECT_TRUE(clean);
}

TEST_P(HttpServerTest, StopCutsWhatDoesNotFinish) {
  start();
  LoopbackClient busy(server_->port(), 20, tls());
  ASSERT_TRUE(busy.send(request("/hold")));
  auto e = service_.take();
  ASSERT_TRUE(e);
  EXPECT_FALSE(server_->stop(std::chrono::milliseconds(20)));
  EXPECT_TRUE(e->client_gone());
  EXPECT_EQ(service_.disconnects, 1);
}

TEST_P(HttpServerTest, ConnectionsBeyondTheLimitGet503) {
  HttpServerOptions o;
  o.max_connections = 1;
  start(o);
  LoopbackClient first(server_->port(), 20, tls());
  ASSERT_TRUE(first.send(post("/echo", "1")));
  EXPECT_EQ(first.read_response()->status, 200);
  LoopbackClient second(server_->port(), 20, tls());
  // Without a handshake there is no reply that a client of TLS could read.
  if (tls())
    EXPECT_FALSE(second.connected());
  else
    EXPECT_EQ(second.read_response()->status, 503);
}

TEST_P(HttpServerTest, PortInUseNamesTheSetting) {
  start();
  HttpServerOptions o;
  o.port = server_->port();
  const auto again = start_http_server(o, service_);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().field(), "server.port");
}

TEST_P(HttpServerTest, ManyConnectionsAtOnce) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      LoopbackClient c(server_->port(), 20, tls());
      for (int i = 0; i < 50; ++i) {
        if (!c.send(i % 2 ? post("/echo", std::to_string(t)) : request("/thread"))) return;
        const auto r = c.read_response();
        if (r && r->status == 200) ++good;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, 400);
}

TEST_P(HttpServerTest, AClientWhoseCallIsStoppedDoesNotWaitForTheReply) {
  start();
  ServerAddress address;
  address.scheme = tls() ? "https" : "http";
  if (tls()) address.ca_file = folder_.path() / "server.pem";
  address.port = std::to_string(server_->port());
  ClientRequest request;
  request.target = "/held";
  request.stopped = [&] {
    const std::lock_guard lock(service_.mu);
    return !service_.held.empty();
  };
  const auto reply = http_call(address, request);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply->status, 0);
  const auto held = service_.take();
  ASSERT_NE(held, nullptr);
  EXPECT_TRUE(service_.wait([this] { return service_.disconnects == 1; }));
}

class TlsTest : public HttpServerTest {
 protected:
  /// Returns the reply to a request over https, or why there is none, trusting NAME.pem.
  Result<HttpResponse> ask(const std::string& name, const ClientRequest& request) {
    ServerAddress address;
    address.scheme = "https";
    address.port = std::to_string(server_->port());
    address.ca_file = folder_.path() / (name + ".pem");
    return http_call(address, request);
  }
  Status read_again() {
    auto context = certificate_->read_again();
    if (context.ok()) certificate_->use(std::move(*context));
    return context.status();
  }
};
INSTANTIATE_TEST_SUITE_P(Tls, TlsTest, ::testing::Values(true));

TEST_P(TlsTest, AClientChecksTheCertificate) {
  start();
  testing::write_certificate(folder_.path(), "other");
  ClientRequest request;
  request.method = "POST";
  request.target = "/echo";
  request.body = std::string(900, 'x');
  const auto reply = ask("server", request);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply->body, "POST:" + request.body);
  const auto refused = ask("other", request);
  EXPECT_EQ(refused.code(), Code::kIo);
  EXPECT_NE(refused.status().message().find("--ca-file"), std::string::npos)
      << refused.status().to_string();
}

TEST_P(TlsTest, NewConnectionsGetTheCertificateThatWasReadAgain) {
  start();
  LoopbackClient old(server_->port(), 20, true);
  testing::write_certificate(folder_.path(), "server");
  ASSERT_TRUE(read_again().ok());
  ClientRequest request;
  request.target = "/echo";
  EXPECT_TRUE(ask("server", request).ok());
  ASSERT_TRUE(old.send(post("/echo", "still here")));
  EXPECT_EQ(old.read_response()->body, "POST:still here");

  const std::string key = (folder_.path() / "server.key").string();
  const std::string lock = "openssl pkey -aes128 -passout pass:x -in " + key + " -out " + key +
                           ".locked 2>/dev/null && mv " + key + ".locked " + key;
  if (std::system(lock.c_str()) == 0) {
    const Status locked = read_again();
    EXPECT_EQ(locked.field(), "server.tls_key");
    EXPECT_NE(locked.message().find("needs a pass phrase"), std::string::npos)
        << locked.to_string();
  }
  std::filesystem::resize_file(folder_.path() / "server.key", 10);
  EXPECT_EQ(read_again().field(), "server.tls_key");
  EXPECT_TRUE(ask("server", request).ok()) << "the former certificate stays";
  std::filesystem::remove(folder_.path() / "server.pem");
  EXPECT_EQ(read_again().field(), "server.tls_certificate");
}

TEST_P(TlsTest, APlainClientIsToldAndASilentOneIsClosed) {
  HttpServerOptions o;
  o.header_timeout = std::chrono::milliseconds(100);
  start(o);
  LoopbackClient plain(server_->port()), silent(server_->port());
  ASSERT_TRUE(plain.send(request("/echo")));
  const auto r = plain.read_response();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->status, 400);
  EXPECT_NE(r->body.find("https://"), std::string::npos) << r->body;
  EXPECT_TRUE(plain.at_end());
  EXPECT_TRUE(silent.at_end());
  LoopbackClient garbage(server_->port());
  ASSERT_TRUE(garbage.send(std::string(100, '\xff')));
  (void)garbage.read_some();  // an alert of TLS, perhaps
  EXPECT_TRUE(garbage.at_end());
  LoopbackClient good(server_->port(), 20, true);
  ASSERT_TRUE(good.send(post("/echo", "a")));
  EXPECT_EQ(good.read_response()->status, 200);
}

}  // namespace
}  // namespace quire
