#include "server/handlers/ingest_answer.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "ingest/document/job_watch.h"
#include "server/handlers/common.h"
#include "server/reply/job_reply.h"

namespace quire {
namespace {

void reply_ingest(Call& call, const std::vector<JobSnapshot>& jobs, const IngestAnswer& how) {
  const IngestOutcome outcome = join_jobs(jobs, how.places);
  const auto& results = outcome.results;
  if (how.single && results.size() == 1 && results[0].result == ItemResult::kFailed &&
      results[0].error) {
    const ItemError& e = *results[0].error;
    Problem p = make_problem(e.code, with_subject(e.message, e.param), e.param);
    p.extra["job_id"] = outcome.id;
    return call.fail(p);
  }
  int status = outcome.finished() ? 200 : 202;
  if (how.put && outcome.finished() && results.size() == 1 &&
      results[0].result == ItemResult::kCreated)
    status = 201;
  call.add_log("documents", std::to_string(outcome.counts.total));
  std::vector<std::pair<std::string, std::string>> headers;
  if (!outcome.finished()) headers.emplace_back("Location", "/v1/jobs/" + outcome.id);
  call.reply_json(status, ingest_json(outcome), std::move(headers));
}

/// The last job to end, the timer or a stop of the service replies, whichever comes first.
class JobWait : public std::enable_shared_from_this<JobWait> {
 public:
  JobWait(std::shared_ptr<Call> call, std::vector<JobSnapshot> jobs, const IngestAnswer& how)
      : call_(std::move(call)), how_(how), jobs_(std::move(jobs)) {}

  void begin() {
    Services& services = call_->services;
    const auto self = shared_from_this();
    timer_ = services.timers->at(TimerQueue::Clock::now() + std::chrono::milliseconds(how_.wait_ms),
                                 [self, &services] {
                                   const auto over = [self] { self->answer(); };
                                   if (!services.workers->post_reply(over)) over();
                                 });
    const std::weak_ptr<JobWait> weak = self;
    once_draining(
        services,
        [weak] {
          const auto wait = weak.lock();
          return !wait || wait->is_over();
        },
        [weak, &services] {
          const auto wait = weak.lock();
          if (!wait) return;
          services.timers->cancel(wait->timer_);
          wait->answer();
        });
    std::vector<std::string> ids;
    for (const JobSnapshot& job : jobs_) ids.push_back(job.id);
    left_ = ids.size();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto subscription = services.ingest->jobs().subscribe(
          call_->ns, ids[i], [self, &services, i](JobEvent event, const JobSnapshot& now) {
            if (event != JobEvent::kDone) return;
            self->keep(i, now);
            self->one_ended(services);
          });
      if (!subscription.ok()) {
        one_ended(services);
        continue;
      }
      const std::lock_guard lock(mu_);
      if (!answered_) subscriptions_.push_back(std::move(*subscription));
    }
  }

 private:
  void one_ended(Services& services) {
    if (left_.fetch_sub(1) != 1) return;
    services.timers->cancel(timer_);
    // A listener must not drop its own subscription, because that destroys the listener. If the
    // pool is stopping, the service ends its listeners itself.
    const auto self = shared_from_this();
    if (!services.workers->post_reply([self] { self->answer(); })) answer();
  }

  bool is_over() {
    const std::lock_guard lock(mu_);
    return answered_;
  }

  /// Keeps the end of a call's only job; a long call reads its many jobs again instead.
  void keep(std::size_t i, const JobSnapshot& now) {
    const std::lock_guard lock(mu_);
    if (jobs_.size() == 1) jobs_[i] = now;
  }

  void answer() {
    std::vector<JobSnapshot> jobs, now;
    {
      const std::lock_guard lock(mu_);
      if (std::exchange(answered_, true)) return;
      jobs.swap(jobs_);
    }
    for (JobSnapshot& job : jobs) {
      if (!job.finished()) {
        auto latest = call_->services.ingest->jobs().job(call_->ns, job.id);
        if (!latest.ok()) {
          fail_job(*call_, latest.status(), job.id);
          return drop();
        }
        job = std::move(*latest);
      }
      now.push_back(std::move(job));
      if (jobs.size() > 1 && now.size() * now[0].results.size() > kMostResults)
        now.back().results.clear();
    }
    reply_ingest(*call_, now, how_);
    drop();
  }

  void drop() {
    std::vector<Subscription> dropped;
    const std::lock_guard lock(mu_);
    dropped.swap(subscriptions_);
  }

  const std::shared_ptr<Call> call_;
  const IngestAnswer how_;
  std::uint64_t timer_ = 0;
  std::atomic<std::size_t> left_{0};
  std::mutex mu_;
  bool answered_ = false;                    // guarded by mu_
  std::vector<JobSnapshot> jobs_;            // guarded by mu_
  std::vector<Subscription> subscriptions_;  // guarded by mu_
};

}  // namespace

void observe_job(Services& services, const std::string& ns, const std::string& job_id) {
  auto watch = std::make_shared<JobWatch>();
  auto subscription = services.ingest->jobs().subscribe(
      ns, job_id, [&services, watch](JobEvent event, const JobSnapshot& job) {
        if (event != JobEvent::kDone) return;
        if (job.started_ms > 0)
          services.metrics->ingest_finished(static_cast<double>(job.finished_ms - job.started_ms) /
                                            1000.0);
        // The listener must not drop the subscription itself, because that destroys the listener.
        // If the pool is full or stopping, the service ends its listeners itself.
        (void)services.workers->post([watch] { watch->end(); });
      });
  if (!subscription.ok()) return;  // the job is already gone, so it is not counted
  (void)watch->keep(std::move(*subscription));
}

void when_job_ends(Services& services, const std::string& ns, const std::string& job_id,
                   std::chrono::milliseconds most, std::function<void()> then) {
  struct Wait {
    JobWatch watch;
    std::mutex mu;
    std::function<void()> then;  // guarded by mu; empty: it was called
    std::uint64_t timer = 0;     // guarded by mu
  };
  auto wait = std::make_shared<Wait>();
  wait->then = std::move(then);
  const auto go_on = [&services](Wait& w) {
    w.watch.end();
    std::function<void()> call;
    std::uint64_t timer = 0;
    {
      std::lock_guard lock(w.mu);
      call = std::exchange(w.then, nullptr);
      timer = w.timer;
    }
    services.timers->cancel(timer);
    if (call) call();
  };
  // A listener must not drop its own subscription, because that destroys the listener.
  const auto end = [wait, go_on, &services] {
    const auto run = [wait, go_on] { go_on(*wait); };
    if (!services.workers->post_reply(run)) run();
  };
  {
    std::lock_guard lock(wait->mu);
    wait->timer = services.timers->at(TimerQueue::Clock::now() + most, end);
  }
  auto subscription = services.ingest->jobs().subscribe(ns, job_id,
                                                        [end](JobEvent event, const JobSnapshot&) {
                                                          if (event == JobEvent::kDone) end();
                                                        });
  if (!subscription.ok()) return end();
  if (!wait->watch.keep(std::move(*subscription))) return;
  const std::weak_ptr<Wait> weak = wait;
  once_draining(
      services,
      [weak] {
        const auto w = weak.lock();
        return !w || w->watch.ended();
      },
      [weak, go_on] {
        if (const auto w = weak.lock()) go_on(*w);
      });
}

void answer_ingest(std::shared_ptr<Call> call, std::vector<JobSnapshot> jobs,
                   const IngestAnswer& how) {
  const bool finished = std::all_of(jobs.begin(), jobs.end(),
                                    [](const JobSnapshot& j) { return j.finished(); });
  if (finished || how.wait_ms <= 0) return reply_ingest(*call, jobs, how);
  std::make_shared<JobWait>(std::move(call), std::move(jobs), how)->begin();
}

}  // namespace quire
