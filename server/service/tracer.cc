#include "server/service/tracer.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <random>

#include "base/log.h"
#include "server/http/http_message.h"
#include "server/hub/transfer.h"
#include "server/json/text.h"
#include "server/support/request_id.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::chrono::seconds kSendTime{10}, kLastSendTime{2};

std::mt19937_64& generator() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return random;
}

/// Returns an id that is not all zeros, which would mean none.
std::string random_hex(std::size_t digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  do {
    out.clear();
    while (out.size() < digits) {
      const std::uint64_t bits = generator()();
      for (int i = 0; i < 64 && out.size() < digits; i += 4)
        out.push_back(kDigits[(bits >> i) & 15]);
    }
  } while (out.find_first_not_of('0') == std::string::npos);
  return out;
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::int64_t ns_of(double ms) { return std::llround(ms * 1e6); }

json::object attribute(const std::string& key, const TraceSpan::Value& value) {
  json::object v;
  if (const auto* text = std::get_if<std::string>(&value)) v["stringValue"] = *text;
  // Whole numbers of 64 bits are texts in JSON of protocol buffers.
  if (const auto* n = std::get_if<std::int64_t>(&value)) v["intValue"] = std::to_string(*n);
  if (const auto* x = std::get_if<double>(&value)) v["doubleValue"] = *x;
  return {{"key", key}, {"value", std::move(v)}};
}

json::object span_json(const TraceSpan& s) {
  json::array attributes;
  for (const auto& [key, value] : s.attributes) attributes.push_back(attribute(key, value));
  json::object out{{"traceId", s.trace_id}, {"spanId", s.span_id}};
  if (!s.parent_id.empty()) out["parentSpanId"] = s.parent_id;
  out["name"] = s.name;
  out["kind"] = static_cast<int>(s.kind);
  out["startTimeUnixNano"] = std::to_string(s.start_ns);
  out["endTimeUnixNano"] = std::to_string(s.end_ns);
  out["attributes"] = std::move(attributes);
  if (s.failed) out["status"] = json::object{{"code", 2}};
  return out;
}

}  // namespace

std::string otlp_json(const std::vector<TraceSpan>& spans, const std::string& service_name,
                      const std::string& version) {
  json::array list;
  for (const TraceSpan& s : spans) list.push_back(span_json(s));
  json::object scope{{"scope", {{"name", "quire"}, {"version", version}}},
                     {"spans", std::move(list)}};
  json::object resource{{"attributes", json::array{attribute("service.name", service_name),
                                                   attribute("service.version", version)}}};
  return to_text(json::object{
      {"resourceSpans", json::array{json::object{{"resource", std::move(resource)},
                                                 {"scopeSpans", json::array{std::move(scope)}}}}}});
}

Tracer::Tracer(Options options) : options_(std::move(options)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Tracer::~Tracer() {
  thread_.request_stop();
  thread_.join();
  std::vector<TraceSpan> rest;
  rest.swap(waiting_);
  // One try for what is left, within the time that a stop may take.
  std::stop_source over;
  std::mutex mu;
  std::condition_variable_any changed;
  bool sent = false;
  std::jthread watch([&](const std::stop_token& done) {
    std::unique_lock lock(mu);
    if (!changed.wait_for(lock, done, kLastSendTime, [&] { return sent; })) over.request_stop();
  });
  while (!rest.empty() && !over.stop_requested()) {
    const auto n = static_cast<std::ptrdiff_t>(std::min(rest.size(), kBatch));
    send({rest.begin(), rest.begin() + n}, over.get_token());
    rest.erase(rest.begin(), rest.begin() + n);
  }
  std::lock_guard lock(mu);
  sent = true;
  changed.notify_all();
}

std::shared_ptr<const TraceContext> Tracer::begin(std::string_view traceparent) {
  TraceContext out;
  out.trace_id = trace_id_of(traceparent);
  const std::string_view parent = out.trace_id.empty() ? "" : traceparent.substr(36, 16),
                         flags = out.trace_id.empty() ? "" : traceparent.substr(53, 2);
  const bool given = !parent.empty() && is_hex(parent) && is_hex(flags) &&
                     parent.find_first_not_of('0') != std::string_view::npos;
  if (given) {
    const char low = flags.back();
    const int digit = low <= '9' ? low - '0' : low - 'a' + 10;
    if (digit % 2 == 0) return nullptr;  // the caller does not sample it
    out.parent_id = parent;
  } else {
    if (std::uniform_real_distribution<double>(0, 1)(generator()) >= options_.ratio) return nullptr;
    out.trace_id = random_hex(32);
  }
  out.span_id = random_hex(16);
  out.start_ns = unix_ns();
  return std::make_shared<const TraceContext>(std::move(out));
}

void Tracer::add(TraceSpan span) {
  std::lock_guard lock(mu_);
  if (waiting_.size() >= kMostWaiting) {
    ++counts_.dropped;
    return;
  }
  waiting_.push_back(std::move(span));
  if (waiting_.size() >= kBatch) changed_.notify_one();
}

void Tracer::add_query(const TraceContext& request, const QueryRecord& r) {
  const Plan& plan = r.plan;
  TraceSpan query;
  query.trace_id = request.trace_id;
  query.span_id = random_hex(16);
  query.parent_id = request.span_id;
  query.name = "query";
  query.start_ns = request.start_ns;
  query.end_ns = request.start_ns + ns_of(r.total_ms);
  query.attributes = {{"quire.query_id", r.id},
                      {"quire.strategy", plan.strategy},
                      {"gen_ai.request.model", r.model},
                      {"gen_ai.usage.input_tokens", plan.prompt_tokens},
                      {"gen_ai.usage.output_tokens", r.stats.completion_tokens},
                      {"quire.tokens.reused", plan.fates.reused},
                      {"quire.tokens.recomputed", plan.fates.recomputed},
                      {"quire.tokens.computed", plan.fates.computed},
                      {"quire.tokens.dropped", plan.fates.dropped},
                      {"quire.load_ms", r.stats.load_ms},
                      {"quire.ttft_ms", r.ttft_ms}};
  // Stages count from when the engine took the query. Both times to the first token end at once;
  // without one, what came before is known.
  const double before = r.ttft_ms > 0 && r.stats.ttft_ms > 0 ? r.ttft_ms - r.stats.ttft_ms
                                                             : r.tokenize_ms + r.resolve_ms;
  const std::int64_t taken = request.start_ns + ns_of(std::max(0.0, before));
  std::vector<TraceSpan> stages;
  for (const Span& s : plan.spans) {
    TraceSpan stage;
    stage.trace_id = request.trace_id;
    stage.span_id = random_hex(16);
    stage.parent_id = query.span_id;
    stage.name = s.name;
    stage.start_ns = taken + ns_of(s.start_ms);
    stage.end_ns = stage.start_ns + ns_of(s.ms);
    query.end_ns = std::max(query.end_ns, stage.end_ns);
    stages.push_back(std::move(stage));
  }
  add(std::move(query));
  for (TraceSpan& stage : stages) add(std::move(stage));
}

SpanCounts Tracer::counts() const {
  std::lock_guard lock(mu_);
  return counts_;
}

void Tracer::run(const std::stop_token& stop) {
  std::unique_lock lock(mu_);
  while (!stop.stop_requested()) {
    (void)changed_.wait_for(lock, stop, options_.interval,
                            [this] { return waiting_.size() >= kBatch; });
    while (!waiting_.empty() && !stop.stop_requested()) {
      const auto n = static_cast<std::ptrdiff_t>(std::min(waiting_.size(), kBatch));
      std::vector<TraceSpan> batch(std::make_move_iterator(waiting_.begin()),
                                   std::make_move_iterator(waiting_.begin() + n));
      waiting_.erase(waiting_.begin(), waiting_.begin() + n);
      lock.unlock();
      send(std::move(batch), stop);
      lock.lock();
    }
  }
}

void Tracer::send(std::vector<TraceSpan> batch, const std::stop_token& stop) {
  const Status sent = options_.send(otlp_json(batch, options_.service_name, options_.version),
                                    stop);
  bool news = false;
  {
    std::lock_guard lock(mu_);
    (sent.ok() ? counts_.sent : counts_.dropped) += batch.size();
    news = failing_ == sent.ok();
    failing_ = !sent.ok();
  }
  if (!news) return;
  if (sent.ok())
    log_info("the collector of traces takes spans again", {});
  else
    log_warning("spans are dropped until the collector of traces takes them",
                {{"reason", sent.to_string()}});
}

Result<std::vector<std::string>> collector_headers(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const auto equals = part.find('=');
    const std::string_view name = trim(part.substr(0, equals));
    if (name.empty() && equals == std::string_view::npos) continue;
    const auto value = equals == std::string_view::npos
                           ? Result<std::string>(Status::invalid("", "it has no value"))
                           : percent_decode(trim(part.substr(equals + 1)), PlusSign::kLiteral);
    const bool is_name = !name.empty() && name.find_first_of(" \t:\r\n") == name.npos;
    if (!is_name || !value.ok() || value->find_first_of("\r\n") != std::string::npos) {
      // The text may hold a secret, which no message repeats.
      return Status::invalid("OTEL_EXPORTER_OTLP_HEADERS",
                             "OTEL_EXPORTER_OTLP_HEADERS: header " +
                                 std::to_string(out.size() + 1) +
                                 " is wrong; write name=value,name=value with percent-encoded "
                                 "values");
    }
    out.push_back(std::string(name) + ": " + *value);
  }
  return out;
}

Tracer::Send send_to_collector(std::string endpoint, std::vector<std::string> headers) {
  headers.emplace_back("Content-Type: application/json");
  return [endpoint = std::move(endpoint), headers = std::move(headers)](
             const std::string& body, std::stop_token stop) -> Status {
    hub::TransferRequest request;
    request.url = endpoint;
    request.headers = headers;
    request.post = body;
    request.limit = kSendTime;
    request.stop = std::move(stop);
    QUIRE_ASSIGN_OR_RETURN(const hub::TransferReply reply, hub::transfer(request));
    if (reply.status >= 200 && reply.status < 300) return {};
    return Status::unavailable(endpoint + " answered " + std::to_string(reply.status));
  };
}

}  // namespace quire
