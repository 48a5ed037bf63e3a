#include "server/reply/timings_reply.h"

#include <array>

namespace quire {
namespace {

using R = QueryRecord;
using enum QueryTime::Shown;

constexpr auto kTimes = std::to_array<QueryTime>({
    {"queue_ms", [](const R& r) { return r.stats.queue_ms; }, "Waiting for the engine", kPromised,
     "quire_request_queue_time_seconds", "strategy"},
    {"tokenize_ms", [](const R& r) { return r.tokenize_ms; }, "Rendering and tokenizing",
     kPromised},
    {"resolve_ms", [](const R& r) { return r.resolve_ms; }, "From document ids to their contexts"},
    {"lookup_ms", [](const R& r) { return r.stats.lookup_ms; }, "Looking contexts up in the store",
     kPromised},
    {"load_ms", [](const R& r) { return r.stats.load_ms; }, "Loading cached blocks", kPromised,
     "quire_request_load_time_seconds", "strategy"},
    {"query_pass_ms", [](const R& r) { return r.stats.query_pass_ms; },
     "Running the question over a few blocks of every document"},
    {"select_ms", [](const R& r) { return r.stats.select_ms; }, "Selecting blocks"},
    {"prefill_ms", [](const R& r) { return r.stats.prefill_ms; }, "Prefill of what was not reused",
     kPromised, "quire_request_prefill_time_seconds", "strategy"},
    {"recompute_ms", [](const R& r) { return r.stats.recompute_ms; },
     "Computing cached tokens again"},
    {"ttft_ms", [](const R& r) { return r.ttft_ms; }, "From the request to the first token",
     kPromised, "quire_time_to_first_token_seconds", "strategy"},
    {"decode_ms", [](const R& r) { return r.stats.decode_ms; }, "Decoding", kPromised,
     "quire_request_decode_time_seconds", "strategy"},
    {"prompt_compression_ms", [](const R& r) { return r.stats.prompt_ms; },
     "Reading the prompt with the draft and cutting it", kIfSpent,
     "quire_request_prompt_compression_time_seconds", "prompt_compression"},
    {"draft_ms", [](const R& r) { return r.stats.draft_ms; },
     "From asking the draft to its look-ahead, most of it beside other work", kIfSpent,
     "quire_request_draft_time_seconds", "draft"},
    {"compress_ms", [](const R& r) { return r.stats.compress_ms; },
     "Ranking the working cache's rows", kIfSpent, "quire_request_compress_time_seconds",
     "compress"},
    {"attribution_ms", [](const R& r) { return r.stats.attribution_ms; },
     "Attributing the answer to documents, after its last token", kIfSpent},
    {"total_ms", [](const R& r) { return r.total_ms; }, "The whole request", kPromised},
});

double tokens_per_second(const R& r) {
  const QueryStats& s = r.stats;
  if (s.decode_ms <= 0 || s.completion_tokens <= 1) return 0;
  return static_cast<double>(s.completion_tokens - 1) * 1000.0 / s.decode_ms;
}

ReplyField<R> field_of(const QueryTime& time) {
  const Kind kind = kind::milliseconds();
  if (time.shown != kIfSpent)
    return {time.name, time.shown == kPromised ? kind : kind::optional(kind), time.ms, time.about};
  const auto spent = [ms = time.ms](const R& r) {
    return ms(r) > 0 ? std::optional(ms(r)) : std::nullopt;
  };
  return {time.name, kind::optional(kind), spent, time.about};
}

Reply<R>::Fields fields() {
  Reply<R>::Fields out;
  for (const QueryTime& time : kTimes) out.push_back(field_of(time));
  out.push_back({"tokens_per_second", kind::amount(1), tokens_per_second,
                 "Speed of decoding, from the second token on"});
  return out;
}

}  // namespace

std::span<const QueryTime> query_times() { return kTimes; }

const Reply<QueryRecord>& timings_reply() {
  static const Reply<QueryRecord> reply("Timings", "", fields());
  return reply;
}

boost::json::object timings_json(const QueryRecord& record) { return timings_reply().json(record); }

}  // namespace quire
