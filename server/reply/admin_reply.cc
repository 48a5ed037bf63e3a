#include "server/reply/admin_reply.h"

#include <boost/json/array.hpp>

#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

using C = CacheUseNow;

const Reply<NamespaceUse>& namespace_reply() {
  using N = NamespaceUse;
  static const Reply<EvictReport> evictable(
      "", "KV that nobody reads at this moment",
      {{"contexts", kind::count(), [](const EvictReport& r) { return r.contexts; }},
       {"blocks", kind::count(), [](const EvictReport& r) { return r.blocks; }},
       {"bytes", kind::count(), [](const EvictReport& r) { return r.bytes; }}});
  using Q = N::Quota;
  static const Reply<Q> quota(
      "", "of cache.quotas_file; limits of 0 are none",
      {{"dram_bytes", kind::count(), [](const Q& q) { return q.used.dram_bytes; }},
       {"max_dram_bytes", kind::count(), [](const Q& q) { return q.limits.dram_bytes; }},
       {"disk_bytes", kind::count(), [](const Q& q) { return q.used.disk_bytes; }},
       {"max_disk_bytes", kind::count(), [](const Q& q) { return q.limits.disk_bytes; }},
       {"share", kind::amount(6), [](const Q& q) { return q.limits.share; }}});
  static const Reply<N> reply(
      "", "",
      {{"name", kind::text(), [](const N& n) { return n.stats.name; }},
       {"documents", kind::count(), [](const N& n) { return n.stats.documents; }},
       {"tokens", kind::count(), [](const N& n) { return n.stats.tokens; }},
       {"text_bytes", kind::count(), [](const N& n) { return n.stats.text_bytes; }},
       {"evictable", evictable.kind(), [](const N& n) { return evictable.json(n.evictable); }},
       {"quota", kind::optional(quota.kind()),
        [](const N& n) { return n.quota ? std::optional(quota.json(*n.quota)) : std::nullopt; }}});
  return reply;
}

Reply<C> documents_reply() {
  return {"",
          "",
          {{"ready", kind::count(), [](const C& c) { return c.documents_ready; }},
           {"failed", kind::count(), [](const C& c) { return c.documents_failed; }},
           {"in_progress", kind::count(), [](const C& c) { return c.documents_in_progress; }},
           {"total", kind::count(), [](const C& c) {
              return c.documents_ready + c.documents_failed + c.documents_in_progress;
            }}}};
}

Reply<C> saved_reply() {
  return {
      "",
      "",
      {{"prefill_tokens", kind::count(), [](const C& c) { return c.saved_tokens; }},
       {"prefill_seconds_estimate", kind::amount(1), [](const C& c) { return c.saved_seconds; }}}};
}

Reply<C> queries_reply() {
  return {"",
          "",
          {{"running", kind::count(), [](const C& c) { return c.queries_running; }},
           {"waiting", kind::count(), [](const C& c) { return c.queries_waiting; }}}};
}

ReplyField<C> queries_field() {
  return {"queries", kind::optional(queries_reply().kind()),
          [reply = queries_reply()](const C& c) { return reply.json(c); }};
}

}  // namespace

const Reply<Eviction>& eviction_reply() {
  using E = Eviction;
  static const Reply<E> reply(
      "Eviction", "",
      {{"object", kind::constant("cache.evict")},
       {"tier", kind::one_of({"dram", "disk"}), [](const E& e) { return tier_name(e.tier); }},
       {"dry_run", kind::flag(), [](const E& e) { return e.dry_run; },
        "true: nothing was evicted, and the counts say what would be"},
       {"contexts", kind::count(), [](const E& e) { return e.report.contexts; }},
       {"blocks", kind::count(), [](const E& e) { return e.report.blocks; }},
       {"bytes", kind::count(), [](const E& e) { return e.report.bytes; }},
       {"kept_pinned", kind::count(), [](const E& e) { return e.report.kept_pinned; },
        "Contexts that matched, but are pinned"},
       {"kept_in_use", kind::count(), [](const E& e) { return e.report.kept_in_use; },
        "Contexts that matched, but are being read"}});
  return reply;
}

const Reply<Verification>& verification_reply() {
  using V = Verification;
  static const Reply<V> reply(
      "Verification", "",
      {{"object", kind::constant("cache.verify")},
       {"complete", kind::flag(), [](const V& v) { return v.report.complete; }},
       {"checked", kind::count(), [](const V& v) { return v.report.values; }, "Values read"},
       {"checked_bytes", kind::count(), [](const V& v) { return v.report.bytes; }},
       {"documents", kind::count(), [](const V& v) { return v.report.documents; }},
       {"segments", kind::count(), [](const V& v) { return v.report.segments; }},
       {"bad", kind::count(),
        [](const V& v) { return v.report.bad_documents + v.report.bad_segments; },
        "Documents and segments"},
       {"repaired", kind::count(), [](const V& v) { return v.repaired; },
        "Bad contexts that are being computed again"},
       {"problems", kind::list(kind::text()),
        [](const V& v) { return json::array(v.report.problems.begin(), v.report.problems.end()); },
        "At most 100"}});
  return reply;
}

const Reply<Pins>& pins_reply() {
  using P = Pins;
  static const Reply<P> reply("Pins", "",
                              {{"object", kind::one_of({"cache.pin", "cache.unpin"}),
                                [](const P& p) { return p.pinned ? "cache.pin" : "cache.unpin"; }},
                               {"tier", kind::text(), [](const P& p) { return tier_name(p.tier); }},
                               {"documents", kind::count(), [](const P& p) { return p.documents; }},
                               {"pinned_bytes", kind::count(),
                                [](const P& p) { return p.pinned_bytes; }, "Of the tier, now"}});
  return reply;
}

const Reply<CacheTierUse>& tier_stats_reply() {
  using T = CacheTierUse;
  static const Reply<T> reply(
      "TierStats", "",
      {{"name", kind::one_of({"gpu", "dram", "disk", "remote"}), [](const T& t) { return t.name; }},
       {"state", kind::one_of({"ok", "full", "degraded"}), [](const T& t) { return t.state; },
        "full: the disk has no room for documents; degraded: a shared tier gives no answer"},
       {"bytes", kind::count(), [](const T& t) { return t.stats.used_bytes; },
        "Of a shared tier this and the blocks are not counted, and 0"},
       {"capacity_bytes", kind::count(), [](const T& t) { return t.stats.capacity_bytes; },
        "0: no limit"},
       {"pinned_bytes", kind::count(), [](const T& t) { return t.admin.pinned_bytes; }},
       {"blocks", kind::count(), [](const T& t) { return t.stats.num_values; }},
       {"lookup_tokens", kind::count(), [](const T& t) { return t.lookup_tokens; },
        "Document tokens looked up there"},
       {"hit_tokens", kind::count(), [](const T& t) { return t.hit_tokens; },
        "Document tokens found there"},
       {"hits", kind::optional(kind::count()), [](const T& t) { return t.stats.hits; },
        "Values found"},
       {"misses", kind::optional(kind::count()), [](const T& t) { return t.stats.misses; }},
       {"read_bytes", kind::optional(kind::count()), [](const T& t) { return t.stats.read_bytes; }},
       {"written_bytes", kind::optional(kind::count()),
        [](const T& t) { return t.stats.written_bytes; }},
       {"evictions", kind::count(),
        [](const T& t) { return t.stats.evictions + t.admin.requested_evictions; },
        "By the byte budget and by request"},
       {"errors", kind::count(), [](const T& t) { return t.errors; }}});
  return reply;
}

const Reply<CacheUseNow>& cache_stats_reply() {
  static const Reply<C> reply(
      "CacheStats", "",
      {{"object", kind::constant("cache.stats")},
       {"uptime_seconds", kind::count(), [](const C& c) { return c.uptime_seconds; }},
       {"documents", documents_reply()},
       {"tiers", kind::list(tier_stats_reply().kind()),
        [](const C& c) { return tier_stats_reply().list(c.tiers); }},
       {"saved", saved_reply()},
       {"dedup_ratio", kind::ratio(), [](const C& c) { return c.dedup_ratio; },
        "Share of ingested tokens that were not computed again"},
       {"segments", kind::optional(kind::count()), [](const C& c) { return c.segments; }},
       {"integrity_failures", kind::optional(kind::count()),
        [](const C& c) { return c.integrity_failures; }},
       {"fingerprint", kind::text(), [](const C& c) { return c.fingerprint; }},
       queries_field(),
       {"namespaces", kind::optional(kind::list(namespace_reply().kind())),
        [](const C& c) {
          return c.namespaces ? std::optional(namespace_reply().list(*c.namespaces)) : std::nullopt;
        },
        "With `by` namespace"}});
  return reply;
}

const Reply<BackupReport>& backup_reply() {
  using B = BackupReport;
  static const Reply<B> reply(
      "Backup", "",
      {{"object", kind::constant("backup")},
       {"number", kind::count(), [](const B& b) { return b.number; }, "From 1"},
       {"created_at", kind::text(), [](const B& b) { return rfc3339(b.made_ms); }},
       {"files", kind::count(), [](const B& b) { return b.files; },
        "Those that it shares with earlier ones included"},
       {"bytes", kind::count(), [](const B& b) { return b.bytes; }},
       {"backups", kind::count(), [](const B& b) { return b.backups; }, "In the folder now"}});
  return reply;
}

const Reply<ImportReport>& import_reply() {
  using Rejected = ImportReport::Rejected;
  static const Reply<Rejected> rejected(
      "", "",
      {{"id", kind::text(), [](const Rejected& r) { return r.id; }},
       {"reason", kind::text(), [](const Rejected& r) { return r.reason; }}});
  using I = ImportReport;
  static const Reply<I> reply(
      "Import", "",
      {{"object", kind::constant("cache.import")},
       {"documents", kind::count(), [](const I& i) { return i.documents; }, "Stored"},
       {"blocks", kind::count(), [](const I& i) { return i.blocks; }, "Blocks of KV stored"},
       {"skipped", kind::count(), [](const I& i) { return i.skipped; },
        "Already there with the same content"},
       {"stale", kind::count(), [](const I& i) { return i.stale; },
        "Stored documents with KV of another model"},
       {"rejected", kind::list(rejected.kind()),
        [](const I& i) { return rejected.list(i.rejected); }}});
  return reply;
}

const Reply<RequestInfo>& running_request_reply() {
  using R = RequestInfo;
  static const Reply<R> reply(
      "RunningRequest", "",
      {{"id", kind::text(), [](const R& r) { return r.id; }},
       {"object", kind::constant("request")},
       {"namespace", kind::text(), [](const R& r) { return r.ns; }},
       {"state", kind::one_of({"waiting", "prefilling", "decoding", "preempted"}),
        [](const R& r) { return request_state_name(r.state); }},
       {"strategy", kind::text(), [](const R& r) { return r.strategy; },
        "As asked for; once planned, the one in use"},
       {"prompt_tokens", kind::count(), [](const R& r) { return r.prompt_tokens; }},
       {"completion_tokens", kind::count(), [](const R& r) { return r.completion_tokens; }},
       {"age_ms", kind::count(), [](const R& r) { return r.age.count(); }},
       {"queue_position", kind::or_null(kind::count()),
        [](const R& r) {
          return r.queue_position < 0 ? std::nullopt : std::optional(r.queue_position);
        },
        "0: next; null: it runs"}});
  return reply;
}

}  // namespace quire
