// Administration of the cache: statistics, eviction, pins and verification.
#include <algorithm>
#include <boost/json/array.hpp>
#include <iterator>
#include <unordered_set>

#include "base/log.h"
#include "cachestore/store_admin.h"
#include "engine/engine.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/admin_codec.h"
#include "server/reply/admin_reply.h"
#include "server/service/pin_share.h"
#include "server/upkeep/backups.h"

namespace quire {
namespace json = boost::json;
namespace {

NamespaceUse namespace_use(Services& services, const NamespaceStats& n) {
  // This excludes KV that a reader holds at the moment.
  EvictRequest all;
  all.tenant = services.ingest->tenant(n.name);
  all.force = all.dry_run = true;
  const auto kv = services.store->evict(all);
  NamespaceUse out{n, kv.ok() ? *kv : EvictReport{}};
  if (const auto used = services.store->tenant_use(n.name))
    out.quota = {*used, services.store->options().quotas.of(n.name)};
  return out;
}

/// Returns what all shared tiers did together. Nobody counts the bytes that lie there.
CacheTierUse shared_tier_use(const RemoteStats& remote, std::uint64_t hit_tokens) {
  CacheTierUse out{.name = "remote", .state = "ok", .hit_tokens = hit_tokens};
  for (const RemoteTierStats& t : remote.tiers) {
    if (!t.up) out.state = "degraded";
    out.stats.hits += t.hits;
    out.stats.misses += t.misses;
    out.stats.read_bytes += t.read_bytes;
    out.stats.written_bytes += t.written_bytes;
    out.errors += t.failures + t.bad + t.write_failures;
  }
  out.stats.evictions = remote.quota_removed;
  return out;
}

/// Fails the call because a document is not in the store although a job reads it, here or at
/// another replica. Returns false if there is none.
bool fail_unread(Call& call, const std::string& id, std::size_t at) {
  const auto known = call.services.ingest->documents().get(call.ns, id);
  if (known.code() == Code::kNotFound || known.code() == Code::kInvalidArgument) return false;
  if (known.ok())
    call.fail(make_problem("document_not_ready",
                           "the document '" + id.substr(0, 256) +
                               "' is still being read; try again once its job has ended",
                           "document_ids[" + std::to_string(at) + "]"));
  else
    call.fail(ingest_problem(known.status()));
  return true;
}

/// Returns the heads of documents. Fails the call with 404 if one does not exist, and with 409 if a
/// job still reads it.
std::optional<std::vector<DocumentManifest>> heads_of(Call& call,
                                                      const std::vector<std::string>& ids) {
  std::vector<DocumentManifest> out;
  json::array missing;
  for (const auto& id : ids) {
    AdminStore& store = *call.services.store;
    auto head = store.get_document_head(call.ns, id);
    if (head.code() == Code::kNotFound) {  // here; another replica may have made it a moment ago
      if (const Status s = store.refresh_document(call.ns, id); !s.ok()) {
        call.fail(ingest_problem(s));
        return std::nullopt;
      }
      head = store.get_document_head(call.ns, id);
    }
    if (head.ok()) {
      out.push_back(std::move(*head));
    } else if (head.code() == Code::kNotFound || head.code() == Code::kInvalidArgument) {
      if (fail_unread(call, id, static_cast<std::size_t>(&id - ids.data()))) return std::nullopt;
      missing.emplace_back(id);
    } else {
      call.fail(ingest_problem(head.status()));
      return std::nullopt;
    }
  }
  if (missing.empty()) return out;
  const std::string first(missing.front().as_string());
  const auto at = std::find(ids.begin(), ids.end(), first) - ids.begin();
  Problem p = make_problem(
      "document_not_found",
      "there is no document '" + first.substr(0, 256) + "' in the namespace '" + call.ns + "'",
      "document_ids[" + std::to_string(at) + "]");
  p.extra["document_ids"] = std::move(missing);
  call.fail(p);
  return std::nullopt;
}

std::vector<ContextKey> keys_of(const std::vector<DocumentManifest>& documents) {
  std::vector<ContextKey> out;
  for (const auto& d : documents)
    for (const auto& chunk : d.chunks)
      if (!chunk.key.is_zero()) out.push_back(chunk.key);
  return out;
}

/// Returns the contexts of all documents of a namespace.
Result<std::vector<ContextKey>> keys_of_namespace(AdminStore& store, const std::string& ns) {
  std::vector<ContextKey> out;
  ListOptions options;
  options.limit = 1000;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const DocumentList page, store.list_documents(ns, options));
    const std::vector<ContextKey> keys = keys_of(page.documents);
    out.insert(out.end(), keys.begin(), keys.end());
    if (!page.has_more || page.documents.empty()) return out;
    options.after = page.documents.back().id;
  }
}

void set_pins(const std::shared_ptr<Call>& call, bool pinned) {
  const auto body = body_json(*call);
  if (!body) return;
  PinBody request;
  if (failed(*call, read_pin(*body, request))) return;
  const auto documents = heads_of(*call, request.document_ids);
  if (!documents) return;
  Services& services = call->services;
  std::lock_guard one_at_a_time(services.pins_mu);
  if (pinned) {
    std::vector<DocumentManifest> more;
    std::copy_if(documents->begin(), documents->end(), std::back_inserter(more),
                 [](const auto& d) { return !d.pinned; });
    const EngineInfo& info = services.engine->info();
    PinBytes bytes = pin_bytes(*services.store, more, kv_bytes(info, 1));
    if (request.tier != Tier::kDram) bytes.dram = 0;
    if (const Status s = check_pin_share(*services.store, info,
                                         services.config()->cache.max_pinned_ratio, bytes);
        !s.ok()) {
      return call->fail(problem_of(s.with_field("document_ids"), "cache_full"));
    }
  }
  DocumentPatch patch;
  patch.pinned = pinned;
  for (const auto& d : *documents)
    if (const auto done = services.ingest->documents().patch(call->ns, d.id, patch); !done.ok())
      return fail_document(*call, done.status(), d.id);
  if (pinned && request.tier == Tier::kDram)
    for (const auto& d : *documents) load_into_memory(services, d);
  const StoreAdminStats now = services.store->admin_stats();
  const auto& tier = request.tier == Tier::kDram ? now.dram : now.disk;
  call->reply_json(200,
                   pins_reply().json({pinned, request.tier, documents->size(), tier.pinned_bytes}));
}

/// Queues the contexts found bad to be computed again; returns how many.
std::uint64_t repair(Services& services, const std::vector<ContextKey>& contexts) {
  const std::unordered_set<ContextKey, DigestHash> bad(contexts.begin(), contexts.end());
  std::unordered_set<ContextKey, DigestHash> repaired;
  if (bad.empty()) return 0;
  for (const auto& ns : services.store->namespaces()) {
    ListOptions options;
    options.limit = 1000;
    options.filter = [&](const DocumentManifest& m) {
      return m.status == DocumentStatus::kReady &&
             std::any_of(m.chunks.begin(), m.chunks.end(),
                         [&](const auto& chunk) { return bad.contains(chunk.key); });
    };
    for (bool more = true; more;) {
      const auto page = services.store->list_documents(ns.name, options);
      if (!page.ok()) break;
      for (const auto& d : page->documents) {
        // Busy or full: it is computed at its next use.
        if (!services.ingest->warm(ns.name, d.id).ok()) continue;
        for (const auto& chunk : d.chunks)
          if (bad.contains(chunk.key)) repaired.insert(chunk.key);
      }
      more = page->has_more && !page->documents.empty();
      if (more) options.after = page->documents.back().id;
    }
  }
  return repaired.size();
}

}  // namespace

json::object cache_stats_json(Services& services,
                              std::optional<std::vector<NamespaceUse>> namespaces) {
  const MetricsSnapshot m = metrics_snapshot(services);
  const CacheTotals totals = services.metrics->cache_totals();
  CacheUseNow now;
  now.uptime_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::steady_clock::now() - services.started)
                           .count();
  for (const auto& [status, n] : m.documents_by_status)
    (status == "ready"    ? now.documents_ready
     : status == "failed" ? now.documents_failed
                          : now.documents_in_progress) += n;
  // A tier is asked for what those before it did not have.
  std::uint64_t asked = totals.lookup_tokens;
  const auto add_tier = [&](CacheTierUse tier) {
    tier.lookup_tokens = asked;
    asked -= std::min(asked, tier.hit_tokens);
    now.tiers.push_back(tier);
  };
  add_tier({.name = "dram",
            .state = "ok",
            .stats = m.store.dram,
            .admin = m.admin.dram,
            .hit_tokens = totals.dram_hit_tokens});
  add_tier({.name = "disk",
            .state = m.disk_full ? "full" : "ok",
            .stats = m.store.disk,
            .admin = m.admin.disk,
            .hit_tokens = totals.disk_hit_tokens,
            .errors = m.store.io_errors});
  if (!m.store.remote.tiers.empty())
    add_tier(shared_tier_use(m.store.remote, totals.remote_hit_tokens));
  now.saved_tokens = totals.saved_tokens;
  if (const double speed = services.engine->load().prefill_tokens_per_second; speed > 0)
    now.saved_seconds = static_cast<double>(totals.saved_tokens) / speed;
  if (m.ingest.tokens > 0)
    now.dedup_ratio = static_cast<double>(m.ingest.deduplicated_tokens) /
                      static_cast<double>(m.ingest.tokens);
  now.segments = m.store.segments;
  now.integrity_failures = m.store.integrity_failures;
  if (!m.models.empty()) now.fingerprint = m.models.front().fingerprint;
  now.queries_running = m.queries_running;
  now.queries_waiting = m.queries_waiting;
  now.namespaces = std::move(namespaces);
  return cache_stats_reply().json(now);
}

namespace handlers {

void cache_stats(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {"by"})) return;
  const auto* by = call->request().param("by");
  if (by && *by != "namespace" && *by != "tier")
    return call->fail(make_problem(
        "invalid_value", "by is '" + by->substr(0, 64) + "'; use namespace or tier", "by"));
  std::optional<std::vector<NamespaceUse>> namespaces;
  if (by && *by == "namespace") {
    namespaces.emplace();
    for (const auto& n : call->services.store->namespaces())
      if (call->key->allows_namespace(n.name))
        namespaces->push_back(namespace_use(call->services, n));
  }
  call->reply_json(200, cache_stats_json(call->services, std::move(namespaces)));
}

void cache_evict(std::shared_ptr<Call> call) {
  const auto body = body_json(*call);
  if (!body) return;
  EvictBody asked;
  if (failed(*call, read_evict(*body, asked))) return;
  EvictRequest request;
  request.tier = asked.tier;
  request.target_bytes = asked.target_bytes;
  request.force = asked.force;
  request.dry_run = asked.dry_run;
  if (asked.older_than_seconds)
    request.unused_since_ms = unix_ms_now() - *asked.older_than_seconds * 1000;
  if (!asked.document_ids.empty()) {
    const auto documents = heads_of(*call, asked.document_ids);
    if (!documents) return;
    request.keys = keys_of(*documents);
  } else if (!call->covers_all_namespaces()) {
    std::string tenant = call->services.ingest->tenant(call->ns);
    if (tenant == call->ns) {
      request.tenant = std::move(tenant);
    } else {
      // Where namespaces share KV it is all one tenant's, so only documents tell whose it is.
      auto keys = keys_of_namespace(*call->services.store, call->ns);
      if (!keys.ok()) return call->fail(ingest_problem(keys.status()));
      request.keys = std::move(*keys);
    }
  }
  const auto report = call->services.store->evict(request);
  if (!report.ok()) return call->fail(ingest_problem(report.status()));
  call->reply_json(200, eviction_reply().json({asked.tier, asked.dry_run, *report}));
}

void cache_pin(std::shared_ptr<Call> call) { set_pins(call, true); }
void cache_unpin(std::shared_ptr<Call> call) { set_pins(call, false); }

void cache_flush(std::shared_ptr<Call> call) {
  if (const auto s = call->services.ingest->run_maintenance(); !s.ok())
    return call->fail(ingest_problem(s));
  if (const auto s = call->services.store->flush(); !s.ok()) return call->fail(ingest_problem(s));
  call->reply_json(200, json::object{{"object", "cache.flush"}, {"flushed", true}});
}

void admin_backup(std::shared_ptr<Call> call) {
  Backups* const backups = call->services.backups.get();
  if (backups == nullptr)
    return call->fail(make_problem("not_supported",
                                   "this service makes no backups; set backup.path to a folder",
                                   "backup.path"));
  const auto made = backups->make();
  if (made.code() == Code::kUnavailable)
    return call->fail(make_problem("overloaded", made.status().message()));
  if (!made.ok()) return call->fail(ingest_problem(made.status()));
  call->reply_json(200, backup_reply().json(*made));
}

void cache_verify(std::shared_ptr<Call> call) {
  std::vector<ContextKey> bad;
  const auto report = call->services.store->verify_contexts(bad, [&](const VerifyReport&) {
    return !call->exchange->client_gone() && !call->services.stopping;
  });
  if (!report.ok()) return call->fail(ingest_problem(report.status()));
  call->reply_json(200, verification_reply().json({*report, repair(call->services, bad)}));
}

}  // namespace handlers
}  // namespace quire
