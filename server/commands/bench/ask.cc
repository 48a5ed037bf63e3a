#include "server/commands/bench/ask.h"

#include <utility>

#include "base/clock.h"
#include "base/json_parse.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;

std::int64_t bench_int(const json::object& o, const char* key) {
  const auto* v = o.if_contains(key);
  return v && v->is_int64() ? v->as_int64() : 0;
}

Result<std::optional<BenchSample>> ask_bench(const ClientFlags& flags, const json::object& body,
                                             const Interrupt& interrupt, std::string& text,
                                             json::object* reply) {
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/query";
  request.content_type = "application/json";
  request.body = to_text(body);
  BenchSample sample;
  SseReader reader;
  const auto begin = Clock::now();
  bool finished = false;
  Status failure;
  const auto on_event = [&](const std::string& name, const std::string& data) {
    const auto value = parse_json(data);
    if (!value.ok() || !value->is_object()) return true;
    const json::object& o = value->as_object();
    if (name == "delta") {
      if (sample.ttft_ms == 0) sample.ttft_ms = ms_between(begin, Clock::now());
      text += o.at("text").as_string();
    } else if (name == "error") {
      failure = Status::precondition(std::string(o.at("detail").as_string()));
    } else if (name == "done") {
      sample.total_ms = ms_between(begin, Clock::now());
      const json::object& usage = o.at("usage").as_object();
      const json::object& details = usage.at("cache_details").as_object();
      sample.prompt_tokens = bench_int(usage, "prompt_tokens");
      sample.answer_tokens = bench_int(usage, "completion_tokens");
      sample.cached_tokens = bench_int(details, "reused_tokens") +
                             bench_int(details, "dropped_tokens");
      if (reply != nullptr) *reply = o;
      finished = true;
    }
    return !finished && failure.ok();
  };
  const auto answered = client_call(flags, std::move(request), [&](std::string_view piece) {
    return !interrupt.requested() && reader.feed(piece, on_event);
  });
  if (interrupt.requested()) return std::optional<BenchSample>();
  if (!answered.ok()) return answered.status();
  if (!failure.ok()) return failure;
  if (!finished) return Status::io("the server ended the answer early");
  if (sample.ttft_ms == 0) sample.ttft_ms = sample.total_ms;  // an answer without text
  return std::optional<BenchSample>(sample);
}

}  // namespace quire
