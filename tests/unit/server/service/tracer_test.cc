#include "server/service/tracer.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <condition_variable>

#include "base/json_parse.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

namespace json = boost::json;

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kParent = "b7ad6b7169203331";

/// A collector whose answers a test sets.
class FakeCollector {
 public:
  Tracer::Options options(double ratio = 1) {
    Tracer::Options o;
    o.service_name = "quire-test";
    o.version = "1.2";
    o.ratio = ratio;
    o.interval = std::chrono::milliseconds(1);
    o.send = [this](const std::string& body, std::stop_token stop) -> Status {
      std::unique_lock lock(mu_);
      (void)changed_.wait(lock, stop, [this] { return !held_; });
      bodies_.push_back(body);
      changed_.notify_all();
      return away_ ? Status::unavailable("away") : Status();
    };
    return o;
  }
  void hold(bool on) {
    std::lock_guard lock(mu_);
    held_ = on;
    changed_.notify_all();
  }
  void away(bool on) {
    std::lock_guard lock(mu_);
    away_ = on;
  }
  /// Returns the spans of all bodies so far, once there are that many.
  std::vector<json::object> spans(std::size_t count) {
    std::unique_lock lock(mu_);
    std::vector<json::object> out;
    changed_.wait(lock, [&] {
      out.clear();
      for (const std::string& body : bodies_) {
        const auto parsed = parse_json(body);
        QUIRE_CHECK(parsed.ok(), body);
        for (const auto& span :
             parsed->at_pointer("/resourceSpans/0/scopeSpans/0/spans").as_array())
          out.push_back(span.as_object());
      }
      return out.size() >= count;
    });
    return out;
  }

 private:
  std::mutex mu_;
  std::condition_variable_any changed_;
  std::vector<std::string> bodies_;   // guarded by mu_
  bool held_ = false, away_ = false;  // guarded by mu_
};

std::string parent_header(const std::string& flags = "01") {
  return "00-" + kTrace + "-" + kParent + "-" + flags;
}

TraceSpan span_named(const std::string& name) {
  TraceSpan s;
  s.trace_id = kTrace;
  s.span_id = "00f067aa0ba902b7";
  s.name = name;
  s.start_ns = 1'740'823'200'000'000'001;
  s.end_ns = 1'740'823'200'000'500'000;
  return s;
}

TEST(Tracer, TheBodyIsOtlpJson) {
  TraceSpan s = span_named("GET /v1/documents");
  s.kind = TraceSpan::Kind::kServer;
  s.parent_id = kParent;
  s.failed = true;
  s.attributes = {{"http.route", "/v1/documents"},
                  {"http.response.status_code", std::int64_t{500}},
                  {"quire.ttft_ms", 1.5}};
  EXPECT_EQ(otlp_json({s}, "quire", "1.2"),
            R"({"resourceSpans":[{"resource":{"attributes":[)"
            R"({"key":"service.name","value":{"stringValue":"quire"}},)"
            R"({"key":"service.version","value":{"stringValue":"1.2"}}]},)"
            R"("scopeSpans":[{"scope":{"name":"quire","version":"1.2"},"spans":[)"
            R"({"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"00f067aa0ba902b7",)"
            R"("parentSpanId":"b7ad6b7169203331","name":"GET /v1/documents","kind":2,)"
            R"("startTimeUnixNano":"1740823200000000001","endTimeUnixNano":"1740823200000500000",)"
            R"("attributes":[{"key":"http.route","value":{"stringValue":"/v1/documents"}},)"
            R"({"key":"http.response.status_code","value":{"intValue":"500"}},)"
            R"({"key":"quire.ttft_ms","value":{"doubleValue":1.5}}],"status":{"code":2}}]}]}]})");
}

TEST(Tracer, ATraceparentDecidesAndNamesTheTrace) {
  FakeCollector collector;
  Tracer never(collector.options(0)), always(collector.options(1));
  const auto given = never.begin(parent_header());
  ASSERT_TRUE(given);
  EXPECT_EQ(given->trace_id, kTrace);
  EXPECT_EQ(given->parent_id, kParent);
  EXPECT_EQ(given->span_id.size(), 16u);
  EXPECT_NE(given->span_id, kParent);
  EXPECT_FALSE(always.begin(parent_header("00")));
  EXPECT_FALSE(never.begin(""));
  for (const std::string& none :
       {std::string(), std::string("x"), parent_header().substr(0, 54),
        "00-" + kTrace + "-0000000000000000-01", "00-" + kTrace + "-B7ad6b7169203331-01"}) {
    EXPECT_FALSE(never.begin(none)) << none;
    const auto own = always.begin(none);
    ASSERT_TRUE(own) << none;
    EXPECT_EQ(own->trace_id.size(), 32u);
    EXPECT_NE(own->trace_id, kTrace);
    EXPECT_EQ(own->parent_id, "");
  }
}

TEST(Tracer, SpansAreSentInTheBackgroundAndCounted) {
  FakeCollector collector;
  auto tracer = std::make_unique<Tracer>(collector.options());
  for (int i = 0; i < 3; ++i) tracer->add(span_named("s" + std::to_string(i)));
  const auto spans = collector.spans(3);
  EXPECT_EQ(spans[0].at("name"), "s0");
  EXPECT_EQ(spans[2].at("name"), "s2");
  while (tracer->counts().sent < 3) std::this_thread::yield();
  EXPECT_EQ(tracer->counts().dropped, 0u);
  // What waits at the end is sent, too.
  tracer->add(span_named("last"));
  tracer.reset();
  EXPECT_EQ(collector.spans(4)[3].at("name"), "last");
}

TEST(Tracer, ACollectorThatIsAwayCostsSpansAndNothingElse) {
  FakeCollector collector;
  collector.hold(true);
  Tracer tracer(collector.options());
  const std::size_t most = Tracer::kMostWaiting + Tracer::kBatch;
  for (std::size_t i = 0; i < most + 100; ++i) tracer.add(span_named("s"));
  EXPECT_GE(tracer.counts().dropped, 100u);
  collector.away(true);
  collector.hold(false);
  while (tracer.counts().dropped < most + 100) std::this_thread::yield();
  EXPECT_EQ(tracer.counts().sent, 0u);
  collector.away(false);
  tracer.add(span_named("again"));
  while (tracer.counts().sent < 1) std::this_thread::yield();
}

TEST(Tracer, AQueryHasItsStagesBelowIt) {
  FakeCollector collector;
  Tracer tracer(collector.options());
  TraceContext request;
  request.trace_id = kTrace;
  request.span_id = kParent;
  request.start_ns = 1'000'000'000;
  QueryRecord record;
  record.id = "q_1";
  record.total_ms = 50;
  record.ttft_ms = 30;
  record.stats.ttft_ms = 25;
  record.stats.completion_tokens = 7;
  record.plan.strategy = "reuse";
  record.plan.spans = {{"queue", 0, 2}, {"prefill", 2, 20}};
  tracer.add_query(request, record);
  const auto spans = collector.spans(3);
  EXPECT_EQ(spans[0].at("name"), "query");
  EXPECT_EQ(spans[0].at("parentSpanId"), json::value(kParent));
  EXPECT_EQ(spans[0].at("startTimeUnixNano"), "1000000000");
  EXPECT_EQ(spans[0].at("endTimeUnixNano"), "1050000000");
  EXPECT_EQ(spans[2].at("name"), "prefill");
  EXPECT_EQ(spans[2].at("parentSpanId"), spans[0].at("spanId"));
  // The engine took the query 5 ms after the request came.
  EXPECT_EQ(spans[1].at("startTimeUnixNano"), "1005000000");
  EXPECT_EQ(spans[2].at("startTimeUnixNano"), "1007000000");
  EXPECT_EQ(spans[2].at("endTimeUnixNano"), "1027000000");
}

TEST(Tracer, HeadersOfTheEnvironment) {
  EXPECT_TRUE(collector_headers("")->empty());
  EXPECT_EQ(*collector_headers("authorization=Bearer%20a%3Db%2Cc, x-team = search ,"),
            (std::vector<std::string>{"authorization: Bearer a=b,c", "x-team: search"}));
  EXPECT_EQ(*collector_headers("key=a=b"), std::vector<std::string>{"key: a=b"});
  for (const char* wrong :
       {"secret", "=secret", "a b=secret", "a=%zzsecret", "a=secret%0d%0aX:1"}) {
    const auto headers = collector_headers(wrong);
    ASSERT_FALSE(headers.ok()) << wrong;
    EXPECT_EQ(headers.status().field(), "OTEL_EXPORTER_OTLP_HEADERS");
    EXPECT_EQ(headers.status().message().find("secret"), std::string::npos);
  }
}

class TracedAppTest : public test::StubAppTest {
 protected:
  TracedAppTest() { services.tracer = std::make_shared<Tracer>(collector_.options()); }
  ~TracedAppTest() override {
    (void)server->stop(std::chrono::milliseconds(1000));
    services.tracer.reset();  // it sends to collector_
  }
  FakeCollector collector_;
};

TEST_F(TracedAppTest, ARequestIsASpanOfTheCallersTrace) {
  EXPECT_EQ(
      call("POST", "/v1/query", R"({"query":"q"})", {"traceparent: " + parent_header()}).status,
      200);
  EXPECT_EQ(call("GET", "/livez").status, 200);
  EXPECT_EQ(call("GET", "/v1/documents", {}, {"traceparent: " + parent_header("00")}).status, 200);
  const auto spans = collector_.spans(2);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "query");
  EXPECT_EQ(spans[1].at("name"), "POST /v1/query");
  EXPECT_EQ(spans[1].at("kind"), 2);
  EXPECT_EQ(spans[1].at("traceId"), json::value(kTrace));
  EXPECT_EQ(spans[1].at("parentSpanId"), json::value(kParent));
  EXPECT_EQ(spans[0].at("parentSpanId"), spans[1].at("spanId"));
}

}  // namespace
}  // namespace quire
