/// This file declares the shared catalog in PostgreSQL. The tables are in docs/formats.md.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/catalog/postgres_jobs.h"
#include "cachestore/catalog/postgres_pool.h"
#include "cachestore/catalog/postgres_records.h"
#include "cachestore/catalog/shared_catalog.h"

namespace quire {

class PostgresCatalog final : public SharedCatalog {
 public:
  explicit PostgresCatalog(const CatalogOptions& options);
  ~PostgresCatalog() override;

  Result<std::string> identity() override { return pool_.identity(); }
  Result<std::uint64_t> put(const CatalogPut& put, std::uint64_t expected) override;
  Result<std::uint64_t> remove(std::string_view ns, std::string_view id, std::uint64_t expected,
                               bool expired) override;
  Status confirm(std::string_view ns, std::string_view id, std::uint64_t expected,
                 const JobFence& fence) override;
  Status bar(std::string_view ns, std::string_view id) override;
  Result<std::vector<CatalogEntry>> heads(std::span<const CatalogName> names) override;
  Result<std::vector<CatalogBody>> bodies(std::span<const CatalogName> names) override;
  Result<std::vector<CatalogEntry>> list(const CatalogName& after, std::size_t limit) override;
  Result<CatalogPosition> end() override;
  Result<CatalogChanges> changes(const CatalogPosition& after, std::size_t limit) override;
  Status trim() override;
  void wait(std::chrono::milliseconds longest) override;
  void stop() override;
  std::uint64_t failures() const override { return pool_.failures(); }
  SharedJobs& jobs() override { return jobs_; }
  SharedRecords& records() override { return records_; }
  SharedReplies& replies() override { return replies_; }

 private:
  struct ChangeNumbers {
    std::uint64_t change = 0;  // of the part of the log
    std::uint64_t job = 0;     // that the document has from now on; 0: a new one
  };
  /// Makes one change: `statements` returns what writes the document under the number of the
  /// change.
  Result<std::uint64_t> change(
      std::string_view ns, std::string_view id, std::uint64_t expected,
      const std::optional<JobFence>& fence, std::size_t bytes,
      const std::function<std::vector<PostgresStatement>(const ChangeNumbers&)>& statements);
  void keep_own(std::uint32_t shard, std::uint64_t number, const std::string& writer);
  /// Finds out whether a change was made whose answer was lost.
  Status resolve(std::uint32_t shard, std::uint64_t number, const std::string& writer);

  PostgresPool pool_;
  PostgresJobs jobs_;
  PostgresRecords records_;
  PostgresReplies replies_;
  std::mutex own_mu_;
  /// Writers of changes that this process has made and not read back, by shard and number.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> own_;  // guarded by own_mu_
  const int wake_fd_;
  std::unique_ptr<PostgresConnection> listener_;  // of the thread in wait()
};

Result<std::unique_ptr<SharedCatalog>> open_postgres_catalog(const CatalogOptions& options);

}  // namespace quire
