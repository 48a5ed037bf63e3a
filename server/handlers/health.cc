#include <boost/json/array.hpp>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "kernels/base/log.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/openapi/openapi.h"

namespace quire {
namespace json = boost::json;
namespace {

json::object checks(const Services& s, bool& ok) {
  const bool ready = s.ready, draining = s.draining;
  json::object o;
  o["model"] = ready ? "ok" : "loading";
  o["disk"] = ready ? "ok" : "loading";
  o["service"] = draining ? "draining" : "ok";
  ok = ready && !draining;
  return o;
}

json::object tier_json(std::string_view name, const TierStats& t, std::uint64_t errors) {
  json::object o;
  o["name"] = name;
  o["state"] = "ok";
  o["bytes"] = t.used_bytes;
  o["capacity_bytes"] = t.capacity_bytes;
  o["blocks"] = t.num_values;
  o["hits"] = t.hits;
  o["misses"] = t.misses;
  o["read_bytes"] = t.read_bytes;
  o["written_bytes"] = t.written_bytes;
  o["evictions"] = t.evictions;
  o["errors"] = errors;
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
  Problem p = make_problem(draining ? "draining" : "loading", draining ? "service: draining" : "model: loading");
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
  if (!call->services.config()->metrics.enabled) return call->fail(make_problem("route_not_found", "metrics.enabled is false"));
  HttpResponse r;
  r.content_type = "text/plain; version=0.0.4; charset=utf-8";
  r.body = call->services.metrics->text(metrics_snapshot(call->services));
  call->reply(std::move(r));
}

void openapi(std::shared_ptr<Call> call) {
  const auto document = openapi_document(call->services.routes->routes());
  if (!document.ok()) {
    log_error("the description of the API is not complete", {{"reason", document.status().to_string()}});
    return call->fail(problem_of(document.status(), "internal"));
  }
  call->reply_json(200, *document);
}

void cache_stats(std::shared_ptr<Call> call) {
  const MetricsSnapshot m = metrics_snapshot(call->services);
  json::object o;
  o["object"] = "cache.stats";
  o["uptime_seconds"] = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - call->services.started).count();
  json::object documents;
  std::uint64_t total = 0;
  for (const auto& [status, n] : m.documents_by_status) {
    documents[status] = n;
    total += n;
  }
  documents["total"] = total;
  o["documents"] = std::move(documents);
  o["tiers"] = json::array{tier_json("dram", m.store.dram, 0), tier_json("disk", m.store.disk, m.store.io_errors)};
  o["segments"] = m.store.segments;
  o["integrity_failures"] = m.store.integrity_failures;
  o["fingerprint"] = m.fingerprint;
  call->reply_json(200, o);
}

void effective_config(std::shared_ptr<Call> call) {
  const auto config = call->services.config();
  json::object o;
  for (const auto& s : setting_table()) {
    Config copy = *config;
    const auto pointer = s.pointer(copy);
    json::value v;
    if (auto* const* text = std::get_if<std::string*>(&pointer)) v = **text;
    else if (auto* const* i = std::get_if<std::int64_t*>(&pointer)) v = **i;
    else if (auto* const* d = std::get_if<double*>(&pointer)) v = **d;
    else if (auto* const* b = std::get_if<bool*>(&pointer)) v = **b;
    else {
      json::array list;
      for (const auto& item : *std::get<std::vector<std::string>*>(pointer)) list.emplace_back(item);
      v = std::move(list);
    }
    if (s.name() == "remote.url" && v.is_string() && !v.as_string().empty()) v = "***";
    const json::string_view section(s.section.data(), s.section.size());
    if (!o.contains(section)) o[section] = json::object();
    o[section].as_object()[json::string_view(s.key.data(), s.key.size())] = std::move(v);
  }
  call->reply_json(200, o);
}

}  // namespace handlers
}  // namespace quire
