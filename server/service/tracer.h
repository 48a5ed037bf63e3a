/// Traces: spans of requests and queries, sent to a collector as OTLP over HTTP in JSON.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "server/metrics/metrics.h"
#include "server/reply/query_record.h"

namespace quire {

/// TraceContext is the place of a request in its trace.
struct TraceContext {
  std::string trace_id, span_id;  ///< 32 and 16 hex digits; the span is the request's
  std::string parent_id;          ///< 16 hex digits of the caller's span; empty: there is none
  std::int64_t start_ns = 0;      ///< Unix time
};

/// TraceSpan is one span that has ended.
struct TraceSpan {
  using Value = std::variant<std::string, std::int64_t, double>;
  enum class Kind : std::uint8_t { kInternal = 1, kServer = 2 };  ///< numbers of OTLP
  std::string trace_id, span_id, parent_id, name;
  Kind kind = Kind::kInternal;
  std::int64_t start_ns = 0, end_ns = 0;  ///< Unix time
  std::vector<std::pair<std::string, Value>> attributes;
  bool failed = false;
};

/// Returns the body of an OTLP export of these spans.
std::string otlp_json(const std::vector<TraceSpan>& spans, const std::string& service_name,
                      const std::string& version);

/// Tracer sends spans in the background. At most kMostWaiting of them wait. What does not fit, or
/// the collector does not take, is dropped and counted; the log says so once. Nothing is sent
/// twice, and no caller ever waits.
///
/// Threads: any.
class Tracer {
 public:
  /// Sends one body. It may wait until `stop` is requested.
  using Send = std::function<Status(const std::string& body, std::stop_token stop)>;
  struct Options {
    std::string service_name, version;
    double ratio = 1;  ///< share of requests that are traced where no traceparent decides
    Send send;
    std::chrono::milliseconds interval{2000};  ///< longest wait before a batch is sent
  };
  static constexpr std::size_t kMostWaiting = 4096, kBatch = 512;

  explicit Tracer(Options options);
  /// Tries once to send what waits.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Begins the span of a request. A W3C traceparent names its trace, and whether it is sampled.
  /// Null: the request is not traced.
  std::shared_ptr<const TraceContext> begin(std::string_view traceparent);
  void add(TraceSpan span);
  /// Adds the spans of a query that has ended: its own, and those of its stages below it.
  void add_query(const TraceContext& request, const QueryRecord& record);
  SpanCounts counts() const;

 private:
  void run(const std::stop_token& stop);
  void send(std::vector<TraceSpan> batch, const std::stop_token& stop);

  const Options options_;
  mutable std::mutex mu_;
  std::condition_variable_any changed_;
  std::vector<TraceSpan> waiting_;  // guarded by mu_
  SpanCounts counts_;               // guarded by mu_
  bool failing_ = false;            // guarded by mu_
  std::jthread thread_;
};

/// Returns the headers that OTEL_EXPORTER_OTLP_HEADERS asks for, as "Name: value". The text is
/// OpenTelemetry's: "name=value,name=value", values percent-encoded. Errors: kInvalidArgument.
Result<std::vector<std::string>> collector_headers(std::string_view text);
/// Returns how spans are sent to the address of a collector, with these headers besides the
/// content's type. One sending takes at most 10 seconds.
Tracer::Send send_to_collector(std::string endpoint, std::vector<std::string> headers);

}  // namespace quire
