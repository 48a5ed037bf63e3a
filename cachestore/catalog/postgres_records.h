/// This file declares shared records and replies in PostgreSQL. The tables are in docs/formats.md.
#pragma once

#include <span>
#include <string>

#include "cachestore/catalog/postgres_jobs.h"
#include "cachestore/catalog/postgres_pool.h"
#include "cachestore/catalog/shared_records.h"

namespace quire {

class PostgresRecords final : public SharedRecords {
 public:
  PostgresRecords(PostgresPool& pool, const PostgresJobs& jobs) : pool_(pool), jobs_(jobs) {}
  /// What every connection of the pool has to prepare.
  static std::span<const PostgresConnection::Prepared> statements();

  Result<SharedRecord> get(std::string_view name) override;
  Status put(std::string_view name, std::string_view value, std::uint64_t expected) override;

 private:
  PostgresPool& pool_;
  const PostgresJobs& jobs_;
};

class PostgresReplies final : public SharedReplies {
 public:
  PostgresReplies(PostgresPool& pool, const PostgresJobs& jobs) : pool_(pool), jobs_(jobs) {}
  /// What every connection of the pool has to prepare.
  static std::span<const PostgresConnection::Prepared> statements();

  Result<SharedReply> begin(const Digest& slot, const Digest& body,
                            std::chrono::seconds keep) override;
  Status complete(const Digest& slot, std::string_view reply) override;
  Status forget(const Digest& slot) override;
  Status purge(std::chrono::seconds keep) override;

 private:
  PostgresPool& pool_;
  const PostgresJobs& jobs_;
};

}  // namespace quire
