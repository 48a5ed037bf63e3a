/// This file declares jobs that the replicas of a shared catalog have in common. Each unfinished
/// job belongs to one replica, and to another once that one is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct SharedJob {
  std::string id, ns;
  std::uint64_t status = 0;  ///< of the caller's choice, below kAnyJobStatus
  bool ended = false;
  bool cancel = false;  ///< a replica that does not have the job wants it cancelled
  std::string record;   ///< the caller's bytes
};
inline constexpr std::uint64_t kAnyJobStatus = 255;

/// What the work needs besides the record: it is kept until the job ends.
struct SharedJobPart {
  std::string_view name, value;
};
struct StoredJobPart {
  std::string name, value;
};
/// An item of a job that is done, with the caller's bytes about it.
struct SharedJobItem {
  std::uint64_t item = 0;
  std::string mark;
};
struct OwnJob {
  std::string id;
  bool cancel = false;
  /// Replicas in a row that had begun the job when they died. It is 1 if the last one had an item
  /// done.
  std::uint64_t attempts = 0;
};
struct SharedJobList {
  std::string after;  ///< exclusive: ids behind this one in list order; empty: from the start
  std::size_t limit = 20;
  bool descending = true;
  std::uint64_t status = kAnyJobStatus;
};

/// Ties a change of a document to an item of a job.
struct JobFence {
  std::string job;
  std::uint64_t item = 0;
  std::string mark;
  /// The change says nothing new of the document, as where only its KV is made anew. Then it is no
  /// later than the change before it, and jobs between the two may still replace the document.
  bool says_nothing_new = false;
};

/// A replica is heard of with each beat() and renew(). Once it has not been for
/// CatalogOptions::job_lease by the catalog's clock, others take its jobs, and changes under its
/// fences fail. Threads: all methods concurrently. Errors of all: catalog_is_away().
class SharedJobs {
 public:
  virtual ~SharedJobs() = default;

  /// Returns the name of this replica, which no other process has or had.
  virtual const std::string& replica() const = 0;
  /// Makes a job of this replica, durably, with its parts. One that it has stays as it is. Errors:
  /// kFailedPrecondition (another replica has a job of this name).
  virtual Status add(const SharedJob& job, std::span<const SharedJobPart> parts) = 0;
  /// Writes status, end and record of a job of this replica. Parts and items of one that has ended
  /// are deleted. Errors: job_taken_over().
  virtual Status save(const SharedJob& job) = 0;
  /// Errors: kNotFound.
  virtual Result<SharedJob> get(std::string_view id) = 0;
  virtual Result<std::vector<SharedJob>> list(std::string_view ns,
                                              const SharedJobList& options) = 0;
  /// Returns unfinished jobs whose record contains these bytes, latest first.
  virtual Result<std::vector<SharedJob>> open_with(std::string_view ns, std::string_view bytes,
                                                   std::size_t limit) = 0;
  /// Asks the replica that has the job to cancel it, if it has not ended.
  virtual Status cancel(std::string_view ns, std::string_view id) = 0;
  /// Returns parts of a job after this name (exclusive) in order of bytes.
  virtual Result<std::vector<StoredJobPart>> parts(std::string_view id, std::string_view after,
                                                   std::size_t limit) = 0;
  virtual Result<std::vector<SharedJobItem>> items(std::string_view id) = 0;

  /// Takes all jobs of an earlier process of this replica that no other has taken.
  virtual Status succeed(std::string_view earlier) = 0;
  /// Says that this replica is alive.
  virtual Status beat() = 0;
  /// Does so, takes up to `limit` jobs of those that are not, apart from those named, and returns
  /// the unfinished ones that it has.
  virtual Result<std::vector<OwnJob>> renew(std::size_t limit,
                                            std::span<const std::string> except) = 0;
  /// Says that work on a job of this replica begins, durably. Errors: job_taken_over().
  virtual Status begin(std::string_view id) = 0;
  /// Leaves one job of this replica to the others.
  virtual Status release(std::string_view id) = 0;
  /// Leaves the jobs of this replica to the others.
  virtual Status leave() = 0;
  /// Deletes jobs that ended longer ago than this.
  virtual Status purge(std::int64_t age_ms) = 0;
};

/// Returns the failure of a change whose job another replica has by now.
Status job_taken_over();
/// Returns the failure of a change under a fence of an earlier job than that of the document, or
/// from before its deletion. The order of jobs is that in which add() made them; a change without a
/// fence is later than all jobs before it.
Status change_overtaken();
bool is_change_overtaken(const Status& status);
bool is_job_taken_over(const Status& status);

}  // namespace quire
