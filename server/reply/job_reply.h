/// Replies about jobs, and what became of posted documents.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "ingest/document/job.h"
#include "server/reply/reply.h"

namespace quire {

const Reply<JobCounts>& job_counts_reply();
const Reply<JobItem>& job_item_reply();
const Reply<JobUsage>& ingest_usage_reply();
/// What JobSnapshot::status says.
Kind job_status();
const Reply<JobSnapshot>& job_reply();
boost::json::object job_json(const JobSnapshot& job);
/// What became of one call that posted documents: its jobs as if they were one.
struct IngestOutcome : JobSnapshot {
  std::vector<std::string> job_ids;
};
/// A reply shows the results of at most this many documents; each job has its own.
inline constexpr std::size_t kMostResults = 1024;
/// Adds the jobs up, of which there must be at least one. `id` is that of the first. `places` says
/// of each document, job by job, where it stood in the call; empty: one after the other. Results
/// are in the order of the call.
IngestOutcome join_jobs(const std::vector<JobSnapshot>& jobs,
                        const std::vector<std::size_t>& places = {});
/// The reply of POST /v1/documents.
const Reply<IngestOutcome>& ingest_reply();
boost::json::object ingest_json(const IngestOutcome& outcome);

}  // namespace quire
