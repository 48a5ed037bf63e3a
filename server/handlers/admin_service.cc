// Administration of the service: settings, reload, drain, and the events of the dashboard.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value_from.hpp>
#include <map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cachestore/store_admin.h"
#include "engine/engine.h"
#include "server/config/shown_url.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/reply/admin_reply.h"
#include "server/reply/job_reply.h"
#include "server/reply/list_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

/// One client of GET /v1/admin/events. Each tick reads the counters and reports changes since the
/// last one. Ticks of one stream never overlap.
class EventStream : public std::enable_shared_from_this<EventStream> {
 public:
  explicit EventStream(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  void tick() {
    Services& services = call_->services;
    if (services.draining || !send()) return call_->end_events();
    const auto next = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    services.timers->at(next, [self = shared_from_this()] {
      // If the pool is full or stopping, the stream ends with its last pointer.
      (void)self->call_->services.workers->post([self] { self->tick(); });
    });
  }

 private:
  /// Returns false once the client is gone. A tick's base values are read before its first event is
  /// sent, so a client with one event learns of all later changes.
  bool send() {
    Services& services = call_->services;
    const StoreStats now = services.store->stats();
    const StoreAdminStats admin = services.store->admin_stats();
    const std::vector<JobSnapshot> changed = changed_jobs();
    bool there = call_->event("stats", cache_stats_json(services));
    if (!std::exchange(first_, false)) {
      there = there && evictions("dram", now.dram, admin.dram, before_.dram, admin_before_.dram) &&
              evictions("disk", now.disk, admin.disk, before_.disk, admin_before_.disk);
      there = there && errors("integrity", before_.integrity_failures, now.integrity_failures);
      there = there && errors("io", before_.io_errors, now.io_errors);
      for (const auto& job : changed) there = there && call_->event("job", job_json(job));
    }
    before_ = now;
    admin_before_ = admin;
    return there;
  }

  bool evictions(std::string_view tier, const TierStats& now, const StoreAdminStats::Tier& admin,
                 const TierStats& before, const StoreAdminStats::Tier& admin_before) {
    const std::uint64_t count = now.evictions + admin.requested_evictions - before.evictions -
                                admin_before.requested_evictions;
    const std::uint64_t bytes = now.evicted_bytes + admin.requested_bytes - before.evicted_bytes -
                                admin_before.requested_bytes;
    return count == 0 ||
           call_->event("evict", json::object{{"tier", tier}, {"count", count}, {"bytes", bytes}});
  }
  bool errors(std::string_view kind, std::uint64_t before, std::uint64_t now) {
    return now == before ||
           call_->event("error", json::object{{"kind", kind}, {"count", now - before}});
  }
  /// Returns the jobs that are new or whose status changed since the last call.
  std::vector<JobSnapshot> changed_jobs() {
    Services& services = call_->services;
    std::vector<JobSnapshot> changed;
    std::map<std::string, JobStatus> seen;
    JobListOptions newest;
    newest.limit = 100;
    for (const auto& ns : services.store->namespaces()) {
      if (!call_->key->allows_namespace(ns.name)) continue;
      const auto page = services.ingest->jobs().list_jobs(ns.name, newest);
      if (!page.ok()) continue;
      for (const auto& job : page->jobs) {
        seen[job.id] = job.status;
        const auto known = jobs_.find(job.id);
        if (known == jobs_.end() || known->second != job.status) changed.push_back(job);
      }
    }
    jobs_ = std::move(seen);
    return changed;
  }

  const std::shared_ptr<Call> call_;
  StoreStats before_;
  StoreAdminStats admin_before_;
  std::map<std::string, JobStatus> jobs_;  // the newest jobs only
  bool first_ = true;
};

json::value setting_value(const Setting& setting, Config& config) {
  const auto pointer = setting.pointer(config);
  if (auto* const* text = std::get_if<std::string*>(&pointer)) return json::value(**text);
  if (auto* const* i = std::get_if<std::int64_t*>(&pointer)) return **i;
  if (auto* const* d = std::get_if<double*>(&pointer)) return **d;
  if (auto* const* b = std::get_if<bool*>(&pointer)) return **b;
  json::array list;
  for (const auto& item : *std::get<std::vector<std::string>*>(pointer)) list.emplace_back(item);
  return list;
}

}  // namespace

namespace handlers {

void effective_config(std::shared_ptr<Call> call) {
  Config config = *call->services.config();
  json::object o;
  for (const auto& s : setting_table()) {
    json::value v = setting_value(s, config);
    if (v.is_string()) v = url_without_secrets(std::string_view(v.as_string()));
    const json::string_view section(s.section.data(), s.section.size());
    if (!o.contains(section)) o[section] = json::object();
    o[section].as_object()[json::string_view(s.key.data(), s.key.size())] = std::move(v);
  }
  call->reply_json(200, o);
}

void admin_reload(std::shared_ptr<Call> call) {
  const Services& services = call->services;
  if (!services.reload)
    return call->fail(make_problem(
        "not_supported", "this service was started without settings that can be read again"));
  const auto needs_restart = services.reload();
  if (!needs_restart.ok()) {
    const Status& s = needs_restart.status();
    return call->fail(
        make_problem("invalid_value", "the old settings stay: " + s.message(), s.field()));
  }
  const auto keys = services.keys();
  call->reply_json(200, json::object{{"object", "reload"},
                                     {"reloaded", true},
                                     {"keys", keys->size()},
                                     {"needs_restart", json::value_from(*needs_restart)}});
}

void admin_drain(std::shared_ptr<Call> call) {
  if (!call->services.draining.exchange(true))
    log_info("draining",
             {{"request_id", call->request_id}, {"key", call->key ? call->key->name : ""}});
  // This request itself is one of those running.
  call->reply_json(200, json::object{{"object", "drain"},
                                     {"draining", true},
                                     {"requests_running", call->services.requests_running - 1}});
}

void admin_requests(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const bool all = call->covers_all_namespaces();
  json::array data;
  for (const ServedModel& m : served_models(call->services))
    for (const auto& r : m.engine->requests())
      if (all || r.ns == call->ns) data.push_back(running_request_reply().json(r));
  call->reply_json(200, list_json(std::move(data), false));
}

void admin_cancel_request(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  const bool any = call->covers_all_namespaces();
  const auto cancel = [&](Engine& engine) {
    const auto running = engine.requests();
    const auto found = std::ranges::find(running, id, &RequestInfo::id);
    return found != running.end() && (any || found->ns == call->ns) && engine.cancel(id);
  };
  const auto models = served_models(call->services);
  if (std::ranges::none_of(models, [&](const ServedModel& m) { return cancel(*m.engine); }))
    return call->fail(make_problem(
        "query_expired", "no query '" + id.substr(0, 128) + "' is running or waiting", "id"));
  call->reply_json(200, json::object{{"id", id}, {"object", "request"}, {"cancelled", true}});
}

void admin_events(std::shared_ptr<Call> call) {
  call->start_events();
  std::make_shared<EventStream>(std::move(call))->tick();
}

}  // namespace handlers
}  // namespace quire
