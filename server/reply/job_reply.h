/// Replies about jobs, and what became of posted documents.
#pragma once

#include <boost/json/object.hpp>

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
/// The reply of POST /v1/documents.
const Reply<JobSnapshot>& ingest_reply();
boost::json::object ingest_json(const JobSnapshot& job);

}  // namespace quire
