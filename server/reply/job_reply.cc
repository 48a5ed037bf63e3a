#include "server/reply/job_reply.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/index.h"
#include "server/reply/document_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

using J = JobSnapshot;

const Reply<JobProgress>& progress_reply() {
  using P = JobProgress;
  static const Reply<P> reply(
      "", "",
      {{"tokens_done", kind::count(), [](const P& p) { return p.tokens_done; }},
       {"tokens_total", kind::count(), [](const P& p) { return p.tokens_total; },
        "Estimated from bytes for documents that are not tokenized yet"},
       {"ratio", kind::ratio(), [](const P& p) { return p.ratio; }},
       {"tokens_per_second", kind::amount(1), [](const P& p) { return p.tokens_per_second; },
        "Since the job started in this process"},
       {"eta_ms", kind::or_null(kind::count()), [](const P& p) { return p.eta_ms; },
        "null: the speed is not known yet"}});
  return reply;
}

template <class T>
ReplyField<T> status_field() {
  return {"status", kind::component("JobStatus"),
          [](const T& j) { return job_status_name(j.status); }};
}
template <class T>
ReplyField<T> counts_field() {
  return {"counts", job_counts_reply().kind(),
          [](const T& j) { return job_counts_reply().json(j.counts); }};
}
template <class T>
ReplyField<T> results_field() {
  return {"results", kind::list(job_item_reply().kind()),
          [](const T& j) { return job_item_reply().list(j.results); },
          "In the order of the call; empty in lists and progress events"};
}
template <class T>
ReplyField<T> usage_field() {
  return {"usage", ingest_usage_reply().kind(),
          [](const T& j) { return ingest_usage_reply().json(j.usage); }};
}

}  // namespace

const Reply<JobCounts>& job_counts_reply() {
  using C = JobCounts;
  static const Reply<C> reply(
      "JobCounts", "Documents of a job by state",
      {{"total", kind::count(), [](const C& c) { return c.total; }},
       {"completed", kind::count(), [](const C& c) { return c.completed; }},
       {"in_progress", kind::count(), [](const C& c) { return c.in_progress; }},
       {"failed", kind::count(), [](const C& c) { return c.failed; }},
       {"cancelled", kind::count(), [](const C& c) { return c.cancelled; }}});
  return reply;
}

const Reply<JobItem>& job_item_reply() {
  using I = JobItem;
  static const Reply<I> reply(
      "JobItem", "One document of a job",
      {{"index", kind::count(), [](const I& i) { return i.index; }, "In the call"},
       {"id", kind::or_null(kind::text()), [](const I& i) { return unless_empty(i.id); },
        "null: refused before it got one"},
       {"result",
        kind::or_null(kind::one_of(
            {"created", "updated", "unchanged", "skipped", "failed", "cancelled", "warmed"})),
        [](const I& i) {
          return i.finished() ? std::optional(item_result_name(i.result)) : std::nullopt;
        },
        "null: not decided yet"},
       {"status", kind::component("DocumentStatus"),
        [](const I& i) { return document_status_name(i.status); }},
       {"tokens", kind::count(), [](const I& i) { return i.tokens; }},
       {"blocks", kind::count(), [](const I& i) { return i.blocks; }},
       {"error", kind::optional(item_error_reply().kind()),
        [](const I& i) { return item_error_json(i.error); }}});
  return reply;
}

const Reply<JobUsage>& ingest_usage_reply() {
  using U = JobUsage;
  static const Reply<U> reply(
      "IngestUsage", "",
      {{"tokens", kind::count(), [](const U& u) { return u.tokens; },
        "Of all documents that are ready"},
       {"cache_write_tokens", kind::count(), [](const U& u) { return u.cache_write_tokens; },
        "Prefilled and stored"},
       {"deduplicated_tokens", kind::count(), [](const U& u) { return u.deduplicated_tokens; },
        "Found in the cache, or computed once for several documents"}});
  return reply;
}

Kind job_status() {
  return kind::one_of({"queued", "running", "succeeded", "partial", "failed", "cancelled"});
}

const Reply<JobSnapshot>& job_reply() {
  static const Reply<J> reply(
      "Job", "",
      {{"id", kind::text(), [](const J& j) { return j.id; }},
       {"object", kind::constant("job")},
       {"type", kind::one_of({"ingest", "warm"}), [](const J& j) { return job_type_name(j.type); }},
       status_field<J>(),
       counts_field<J>(),
       {"progress", progress_reply().kind(),
        [](const J& j) { return progress_reply().json(j.progress); }},
       {"created_at", kind::time_or_null(),
        [](const J& j) { return rfc3339_or_null(j.created_ms); }},
       {"started_at", kind::time_or_null(),
        [](const J& j) { return rfc3339_or_null(j.started_ms); }},
       {"finished_at", kind::time_or_null(),
        [](const J& j) { return rfc3339_or_null(j.finished_ms); }},
       usage_field<J>(),
       results_field<J>(),
       {"error", kind::or_null(item_error_reply().kind()),
        [](const J& j) { return item_error_json(j.error); }}});
  return reply;
}

json::object job_json(const JobSnapshot& job) { return job_reply().json(job); }

namespace {

/// Returns a text that names a document by its place in its job, with the place in the call.
template <class InCall>
std::string with_place_in_call(std::string text, const InCall& in_call) {
  constexpr std::string_view kOpen = "documents[";
  const std::size_t open = text.find(kOpen);
  if (open == std::string::npos) return text;
  const std::size_t at = open + kOpen.size();
  std::int64_t place = 0;
  const char *begin = text.data() + at, *all = text.data() + text.size();
  const auto [end, error] = std::from_chars(begin, all, place);
  if (error != std::errc() || end == all || *end != ']' || place < 0) return text;
  return text.replace(at, to_size(end - begin), std::to_string(in_call(place)));
}

}  // namespace

IngestOutcome join_jobs(const std::vector<JobSnapshot>& jobs,
                        const std::vector<std::size_t>& places) {
  IngestOutcome all;
  static_cast<JobSnapshot&>(all) = jobs.at(0);
  all.job_ids.push_back(all.id);
  bool finished = all.finished(), every_result = true;
  const auto put_in_call = [&](JobItem& item, std::int64_t first) {
    const auto in_call = [&](std::int64_t place) {
      const std::size_t n = to_size(first + place);
      return static_cast<std::int32_t>(n < places.size() ? places[n] : n);
    };
    item.index = in_call(item.index);
    if (!item.error) return;
    item.error->param = with_place_in_call(std::move(item.error->param), in_call);
    item.error->message = with_place_in_call(std::move(item.error->message), in_call);
  };
  for (JobItem& item : all.results) put_in_call(item, 0);
  for (std::size_t i = 1; i < jobs.size(); ++i) {
    const JobSnapshot& job = jobs[i];
    all.job_ids.push_back(job.id);
    every_result = every_result && !job.results.empty();
    for (JobItem item : job.results) {
      put_in_call(item, all.counts.total);
      all.results.push_back(std::move(item));
    }
    all.counts.total += job.counts.total;
    all.counts.completed += job.counts.completed;
    all.counts.in_progress += job.counts.in_progress;
    all.counts.failed += job.counts.failed;
    all.counts.cancelled += job.counts.cancelled;
    all.usage.tokens += job.usage.tokens;
    all.usage.cache_write_tokens += job.usage.cache_write_tokens;
    all.usage.deduplicated_tokens += job.usage.deduplicated_tokens;
    finished = finished && job.finished();
    if (job.status != all.status) all.status = finished ? JobStatus::kPartial : JobStatus::kRunning;
  }
  if (!every_result || all.results.size() > kMostResults) all.results.clear();
  std::ranges::stable_sort(all.results, {}, &JobItem::index);
  return all;
}

const Reply<IngestOutcome>& ingest_reply() {
  using O = IngestOutcome;
  static const Reply<O> reply(
      "Ingest", "What became of posted documents",
      {{"object", kind::constant("ingest")},
       {"job_id", kind::text(), [](const O& o) { return o.id; }, "The first job"},
       {"job_ids", kind::list(kind::text()),
        [](const O& o) { return json::array(o.job_ids.begin(), o.job_ids.end()); },
        "Every job of the call; a long NDJSON body makes several"},
       status_field<O>(),
       counts_field<O>(),
       results_field<O>(),
       usage_field<O>()});
  return reply;
}

json::object ingest_json(const IngestOutcome& outcome) { return ingest_reply().json(outcome); }

}  // namespace quire
