/// This file declares the shared jobs in PostgreSQL. The tables are in docs/formats.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cachestore/catalog/postgres_pool.h"
#include "cachestore/catalog/request_fence.h"
#include "cachestore/catalog/shared_jobs.h"

namespace quire {

/// Returns the slot of RequestFence::current() as statements have it; empty: there is none.
std::string_view request_slot();

/// The condition of a statement which changes something, behind PostgresJobs::hold_request(): the
/// request in this slot is the replica's own, or there is none.
#define QUIRE_REQUEST_IS_OWN(slot, replica)                                             \
  "(" slot "::bytea = '' OR EXISTS (SELECT 1 FROM quire_replies q WHERE q.slot = " slot \
  "::bytea AND q.owner = " replica "::text AND q.reply = ''))"

class PostgresJobs final : public SharedJobs {
 public:
  explicit PostgresJobs(PostgresPool& pool) : pool_(pool), replica_(random_name()) {}

  /// What every connection of the pool has to prepare.
  static std::span<const PostgresConnection::Prepared> statements();
  /// Returns the number of the job if this replica has it, and keeps others from taking it until
  /// the transaction ends. The fence has to outlive the statement.
  PostgresStatement hold(const JobFence& fence) const;
  /// Returns what finds a row if this replica has the request of RequestFence::current(), and keeps
  /// others from taking it until the transaction ends, and then for the time of a lease.
  PostgresStatement hold_request() const;
  /// Returns what marks the item as done.
  static PostgresStatement mark(const JobFence& fence);
  /// Returns what says that this replica is alive.
  PostgresStatement sign_of_life() const;

  const std::string& replica() const override { return replica_; }
  Status add(const SharedJob& job, std::span<const SharedJobPart> parts) override;
  Status save(const SharedJob& job) override;
  Result<SharedJob> get(std::string_view id) override;
  Result<std::vector<SharedJob>> list(std::string_view ns, const SharedJobList& options) override;
  Result<std::vector<SharedJob>> open_with(std::string_view ns, std::string_view bytes,
                                           std::size_t limit) override;
  Status cancel(std::string_view ns, std::string_view id) override;
  Result<std::vector<StoredJobPart>> parts(std::string_view id, std::string_view after,
                                           std::size_t limit) override;
  Result<std::vector<SharedJobItem>> items(std::string_view id) override;
  Status succeed(std::string_view earlier) override;
  Status beat() override;
  Result<std::vector<OwnJob>> renew(std::size_t limit,
                                    std::span<const std::string> except) override;
  Status begin(std::string_view id) override;
  Status release(std::string_view id) override;
  Status leave() override;
  Status purge(std::int64_t age_ms) override;

 private:
  PostgresPool& pool_;
  const std::string replica_;
};

}  // namespace quire
