/// Jobs in the form that callers see: the request, its progress, and the result of each item.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingest/document/document_types.h"

namespace quire {

enum class JobStatus : std::uint8_t {
  kQueued,
  kRunning,
  kSucceeded,
  kPartial,
  kFailed,
  kCancelled
};
enum class JobType : std::uint8_t { kIngest, kWarm };
/// kPending: not decided yet. kWarmed: KV is back in the cache.
enum class ItemResult : std::uint8_t {
  kPending,
  kCreated,
  kUpdated,
  kUnchanged,
  kSkipped,
  kFailed,
  kCancelled,
  kWarmed
};
std::string_view job_status_name(JobStatus status);
std::string_view job_type_name(JobType type);
std::string_view item_result_name(ItemResult result);
std::optional<JobStatus> parse_job_status(std::string_view name);

/// JobItem is one document of a job.
struct JobItem {
  std::int32_t index = 0;  ///< index in the call
  std::string id;          ///< empty if the input was refused before it got one
  ItemResult result = ItemResult::kPending;
  DocumentStatus status = DocumentStatus::kQueued;
  std::uint64_t tokens = 0, blocks = 0;
  std::optional<ItemError> error;
  bool finished() const { return result != ItemResult::kPending; }
};

struct JobCounts {
  std::int64_t total = 0, completed = 0, in_progress = 0, failed = 0, cancelled = 0;
};
/// tokens_total is exact for documents already tokenised, and estimated from bytes for the others.
struct JobProgress {
  std::int64_t tokens_done = 0, tokens_total = 0;
  double ratio = 0;                    ///< 0..1
  double tokens_per_second = 0;        ///< since the job started in this process
  std::optional<std::int64_t> eta_ms;  ///< none until the speed is known
};
struct JobUsage {
  std::int64_t tokens = 0;               ///< sum over all documents that are ready
  std::int64_t cache_write_tokens = 0;   ///< prefilled and stored
  std::int64_t deduplicated_tokens = 0;  ///< found in the cache or computed once for several
};

struct JobSnapshot {
  std::string id, ns;  ///< "job_" + 26 characters, sortable by time of creation
  JobType type = JobType::kIngest;
  JobStatus status = JobStatus::kQueued;
  JobCounts counts;
  JobProgress progress;
  JobUsage usage;
  std::int64_t created_ms = 0, started_ms = 0, finished_ms = 0;  ///< Unix ms; 0: not yet
  std::vector<JobItem> results;  ///< in the order of the call; empty in lists and progress events
  std::optional<ItemError> error;
  bool finished() const { return status >= JobStatus::kSucceeded; }
};

/// Ends a subscription when destroyed. Afterwards no new call begins; a running one may still end.
class Subscription {
 public:
  Subscription() = default;
  explicit Subscription(std::shared_ptr<void> token) : token_(std::move(token)) {}
  void reset() { token_.reset(); }
  explicit operator bool() const { return token_ != nullptr; }

 private:
  std::shared_ptr<void> token_;
};

/// kProgress: a snapshot without results. kDone: the last event, with results.
enum class JobEvent : std::uint8_t { kProgress, kDone };
using JobListener = std::function<void(JobEvent event, const JobSnapshot& job)>;

struct JobListOptions {
  std::string after;
  std::size_t limit = 20;
  bool descending = true;
  std::optional<JobStatus> status;
};
struct JobListPage {
  std::vector<JobSnapshot> jobs;  ///< without results
  bool has_more = false;
};

}  // namespace quire
