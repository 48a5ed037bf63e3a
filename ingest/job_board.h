/// The jobs of the service in the form that callers see: snapshots, lists, cancellation and
/// listeners.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "ingest/document/job.h"

namespace quire {

/// Threads: every method may be called from any thread. Those marked (disk) may wait on disk: they
/// belong on a worker thread, never on an I/O thread. Listeners run on the service's own threads,
/// hold no lock, and must not block. A foreign or unknown id is kNotFound.
class JobBoard {
 public:
  virtual ~JobBoard() = default;

  /// Returns the job with results. (disk for jobs finished long ago) Errors: kNotFound.
  virtual Result<JobSnapshot> job(std::string_view ns, std::string_view job_id) = 0;
  /// Errors: kInvalidArgument (field "limit").
  virtual Result<JobListPage> list_jobs(std::string_view ns, const JobListOptions& options) = 0;
  /// Cancels the items not finished; finished ones stay. Returns the job, unchanged if it has
  /// finished. (disk) Errors: kNotFound.
  virtual Result<JobSnapshot> cancel_job(std::string_view ns, std::string_view job_id) = 0;
  /// Reports progress (at most four times per second), and kDone exactly once at the end. For a
  /// finished job, kDone comes before this returns. Errors: kNotFound.
  virtual Result<Subscription> subscribe(std::string_view ns, std::string_view job_id,
                                         JobListener listener) = 0;
  /// Calls `done` once when no job works on any of these documents; before this returns, if none
  /// does.
  virtual Subscription when_synchronized(std::string_view ns, std::span<const std::string> ids,
                                         std::function<void()> done) = 0;
};

}  // namespace quire
