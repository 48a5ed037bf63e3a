/// Replies to the calls that take documents in, once their jobs have ended or at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ingest/document/job.h"
#include "server/service/call.h"

namespace quire {

struct IngestAnswer {
  std::int64_t wait_ms = 0;  ///< how long to wait for the jobs; 0: reply at once
  bool single = false;       ///< one document: if it failed, the call fails with its error
  bool put = false;          ///< a new document is 201
  /// Of each document, job by job, its place in the call; empty: one after the other.
  std::vector<std::size_t> places = {};
};

/// Records the job's duration once it ends, whether or not a client waits for it.
void observe_job(Services& services, const std::string& ns, const std::string& job_id);

/// Calls `then` once, on a worker if there is room, when the job has ended, after `most`, or once
/// the service drains as once_draining() does. No thread waits.
void when_job_ends(Services& services, const std::string& ns, const std::string& job_id,
                   std::chrono::milliseconds most, std::function<void()> then);

/// Replies 200 or 201 for finished jobs, and 202 with the first job's place for others. It waits
/// without holding a thread. `jobs` are those of the call, in order, with or without results.
void answer_ingest(std::shared_ptr<Call> call, std::vector<JobSnapshot> jobs,
                   const IngestAnswer& how);

}  // namespace quire
