#include "server/reply/job_reply.h"

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

ReplyField<J> status_field() {
  return {"status", kind::component("JobStatus"),
          [](const J& j) { return job_status_name(j.status); }};
}
ReplyField<J> counts_field() {
  return {"counts", job_counts_reply().kind(),
          [](const J& j) { return job_counts_reply().json(j.counts); }};
}
ReplyField<J> results_field() {
  return {"results", kind::list(job_item_reply().kind()),
          [](const J& j) { return job_item_reply().list(j.results); },
          "In the order of the call; empty in lists and progress events"};
}
ReplyField<J> usage_field() {
  return {"usage", ingest_usage_reply().kind(),
          [](const J& j) { return ingest_usage_reply().json(j.usage); }};
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
       status_field(),
       counts_field(),
       {"progress", progress_reply().kind(),
        [](const J& j) { return progress_reply().json(j.progress); }},
       {"created_at", kind::time_or_null(),
        [](const J& j) { return rfc3339_or_null(j.created_ms); }},
       {"started_at", kind::time_or_null(),
        [](const J& j) { return rfc3339_or_null(j.started_ms); }},
       {"finished_at", kind::time_or_null(),
        [](const J& j) { return rfc3339_or_null(j.finished_ms); }},
       usage_field(),
       results_field(),
       {"error", kind::or_null(item_error_reply().kind()),
        [](const J& j) { return item_error_json(j.error); }}});
  return reply;
}

json::object job_json(const JobSnapshot& job) { return job_reply().json(job); }

const Reply<JobSnapshot>& ingest_reply() {
  static const Reply<J> reply("Ingest", "What became of posted documents",
                              {{"object", kind::constant("ingest")},
                               {"job_id", kind::text(), [](const J& j) { return j.id; }},
                               status_field(),
                               counts_field(),
                               results_field(),
                               usage_field()});
  return reply;
}

json::object ingest_json(const JobSnapshot& job) { return ingest_reply().json(job); }

}  // namespace quire
