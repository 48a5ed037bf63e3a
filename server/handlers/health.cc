#include <algorithm>

#include "base/log.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/text.h"
#include "server/openapi/openapi.h"

namespace quire {
namespace json = boost::json;
namespace {

json::object checks(Services& s, bool& ok) {
  const bool ready = s.ready, draining = s.draining;
  json::object o;
  o["model"] = ready ? "ok" : "loading";
  // All models are loaded before the service is ready.
  if (ready && !s.further.empty()) {
    json::object models;
    for (const ServedModel& m : served_models(s)) models[m.name()] = "ok";
    o["models"] = std::move(models);
  }
  // Answers go on with a full disk, so it does not make the service unready.
  o["disk"] = !ready ? "loading" : s.store && is_disk_full(s) ? "full" : "ok";
  o["service"] = draining ? "draining" : "ok";
  // Without a shared tier everything works, so it never makes the service unready.
  if (const RemoteStats remote = ready && s.store ? s.store->remote_stats() : RemoteStats();
      !remote.tiers.empty())
    o["remote"] = std::ranges::all_of(remote.tiers, &RemoteTierStats::up) ? "ok" : "degraded";
  // Without the shared catalog questions go on, so it does not make the service unready either.
  if (const CatalogStats catalog = ready && s.store ? s.store->catalog_stats() : CatalogStats();
      catalog.shared)
    o["catalog"] = catalog.up ? "ok" : "away since " + rfc3339(catalog.away_since_ms);
  // Documents are safe in the store itself, so a copy that is behind does not end the service.
  if (const RecordCopyState copy = ready && s.store ? s.store->record_copy() : RecordCopyState();
      copy.kept)
    o["record_copy"] = copy.behind ? "behind" : "ok";
  if (const LostWrites lost = ready && s.store ? s.store->lost_writes() : LostWrites();
      lost.count > 0)
    o["lost_writes"] = lost_text(lost);
  if (ready && !s.repaired.empty()) o["repaired"] = s.repaired;
  ok = ready && !draining;
  return o;
}

}  // namespace

namespace handlers {

void livez(std::shared_ptr<Call> call) { call->reply_json(200, json::object{{"status", "ok"}}); }

void readyz(std::shared_ptr<Call> call) {
  bool ok = false;
  const json::object c = checks(call->services, ok);
  if (ok) return call->reply_json(200, json::object{{"status", "ok"}});
  const bool draining = call->services.draining;
  Problem p = make_problem(draining ? "draining" : "loading",
                           draining ? "service: draining" : "model: loading");
  p.extra["checks"] = c;
  call->fail(p);
}

void healthz(std::shared_ptr<Call> call) {
  bool ok = false;
  json::object o;
  json::object c = checks(call->services, ok);
  o["status"] = ok ? "ok" : "unavailable";
  o["checks"] = std::move(c);
  call->reply_json(ok ? 200 : 503, o);
}

void metrics(std::shared_ptr<Call> call) {
  if (!call->services.config()->metrics.enabled)
    return call->fail(make_problem("route_not_found", "metrics.enabled is false"));
  HttpResponse r;
  r.content_type = "text/plain; version=0.0.4; charset=utf-8";
  r.body = call->services.metrics->text(metrics_snapshot(call->services),
                                        call->key && call->key->allows_any_namespace());
  call->reply(std::move(r));
}

void openapi(std::shared_ptr<Call> call) {
  const bool open = call->services.keys()->is_open() && !call->services.tokens;
  const auto document = openapi_document(call->services.routes->routes(),
                                         open ? OpenApiKeys::kNone : OpenApiKeys::kAsked);
  if (!document.ok()) {
    log_error("the description of the API is not complete",
              {{"reason", document.status().to_string()}});
    return call->fail(problem_of(document.status(), "internal"));
  }
  call->reply_json(200, *document);
}

}  // namespace handlers
}  // namespace quire
