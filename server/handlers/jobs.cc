#include <boost/json/array.hpp>
#include <memory>
#include <utility>

#include "base/index.h"
#include "ingest/document/job_watch.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/reply/job_reply.h"
#include "server/reply/list_reply.h"

namespace quire {
namespace json = boost::json;
namespace handlers {

void list_jobs(std::shared_ptr<Call> call) {
  const auto list = list_query(*call, {"status"});
  if (!list) return;
  if (!list->after.empty() && !list->after.starts_with("job_"))
    return call->fail(make_problem("invalid_value",
                                   "after is '" + list->after.substr(0, 64) +
                                       "', which is no job; give the last_id of the page before",
                                   "after"));
  JobListOptions options;
  options.after = list->after;
  options.limit = to_size(list->limit);
  options.descending = list->descending;
  if (const auto* status = call->request().param("status")) {
    options.status = parse_job_status(*status);
    if (!options.status)
      return call->fail(
          make_problem("invalid_value",
                       "status is '" + status->substr(0, 64) +
                           "'; use queued, running, succeeded, partial, failed or cancelled",
                       "status"));
  }
  const auto page = call->services.ingest->jobs().list_jobs(call->ns, options);
  if (!page.ok()) return call->fail(ingest_problem(page.status()));
  json::array data;
  for (const auto& job : page->jobs) data.push_back(job_json(job));
  call->reply_json(200, list_json(std::move(data), page->has_more));
}

void get_job(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const std::string id = call->path_param("id");
  const auto job = call->services.ingest->jobs().job(call->ns, id);
  if (!job.ok()) return fail_job(*call, job.status(), id);
  call->reply_json(200, job_json(*job));
}

void cancel_job(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const std::string id = call->path_param("id");
  const auto job = call->services.ingest->jobs().cancel_job(call->ns, id);
  if (!job.ok()) return fail_job(*call, job.status(), id);
  call->reply_json(200, job_json(*job));
}

void job_events(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  const auto now = call->services.ingest->jobs().job(call->ns, id);
  if (!now.ok()) return fail_job(*call, now.status(), id);

  auto stream = std::make_shared<JobWatch>();
  call->start_events();
  call->exchange->on_disconnect([weak = std::weak_ptr<JobWatch>(stream)] {
    if (auto s = weak.lock()) s->end();
  });
  auto subscription = call->services.ingest->jobs().subscribe(
      call->ns, id,
      [call, weak = std::weak_ptr<JobWatch>(stream)](JobEvent event, const JobSnapshot& job) {
        const bool done = event == JobEvent::kDone;
        const bool there = call->event(done ? "done" : "progress", job_json(job));
        if (done) call->end_events();
        if (!done && there) return;
        // The listener must not drop the subscription itself, because that destroys the listener.
        // If the pool is stopping, the service ends its listeners itself.
        if (auto s = weak.lock()) (void)call->services.workers->post_reply([s] { s->end(); });
      });
  if (!subscription.ok()) {
    (void)call->event("error", problem_body(problem_of(subscription.status(), "job_not_found"),
                                            call->instance, call->request_id));
    return call->end_events();
  }
  // The stream is part of the call's own state, so it lives as long as the call.
  call->body_state = stream;
  if (!stream->keep(std::move(*subscription))) return;
  once_draining(
      call->services,
      [weak = std::weak_ptr<JobWatch>(stream)] {
        const auto s = weak.lock();
        return !s || s->ended();
      },
      [weak_call = std::weak_ptr<Call>(call), weak = std::weak_ptr<JobWatch>(stream)] {
        if (const auto c = weak_call.lock()) {
          const Problem problem = make_problem(
              "draining",
              "the service is shutting down; the job goes on, after its next start if need be");
          (void)c->event("error", problem_body(problem, c->instance, c->request_id));
          c->end_events();
        }
        if (const auto s = weak.lock()) s->end();
      });
}

}  // namespace handlers
}  // namespace quire
