/// This file declares the shared catalog in PostgreSQL. The tables are in docs/formats.md.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cachestore/catalog/postgres_connection.h"
#include "cachestore/catalog/shared_catalog.h"

namespace quire {

/// Keeps a few connections. After a failed attempt to connect it fails at once for a while, twice
/// as long after each, so that nobody waits for a server that is away.
class PostgresCatalog final : public SharedCatalog {
 public:
  explicit PostgresCatalog(const CatalogOptions& options);
  ~PostgresCatalog() override;

  Result<std::string> identity() override;
  Result<std::uint64_t> put(const CatalogPut& put, std::uint64_t expected) override;
  Result<std::uint64_t> remove(std::string_view ns, std::string_view id,
                               std::uint64_t expected) override;
  Result<std::vector<CatalogEntry>> heads(std::span<const CatalogName> names) override;
  Result<std::vector<CatalogBody>> bodies(std::span<const CatalogName> names) override;
  Result<std::vector<CatalogEntry>> list(const CatalogName& after, std::size_t limit) override;
  Result<CatalogPosition> end() override;
  Result<CatalogChanges> changes(const CatalogPosition& after, std::size_t limit) override;
  Status trim() override;
  void wait(std::chrono::milliseconds longest) override;
  void stop() override;
  std::uint64_t failures() const override { return failures_; }

 private:
  /// A connection of the pool, which goes back there with this object unless it is broken.
  class Lease {
   public:
    Lease(PostgresCatalog* catalog, std::unique_ptr<PostgresConnection> connection, bool used)
        : catalog_(catalog), connection_(std::move(connection)), used_(used) {}
    Lease(Lease&& o) noexcept
        : catalog_(std::exchange(o.catalog_, nullptr)),
          connection_(std::move(o.connection_)),
          used_(o.used_) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (catalog_ != nullptr) catalog_->give_back(std::move(connection_));
    }
    PostgresConnection& operator*() { return *connection_; }
    PostgresConnection* operator->() { return connection_.get(); }
    /// Whether it was lost, and may have been so before this call began.
    bool was_stale() const { return used_ && connection_->is_broken(); }

   private:
    PostgresCatalog* catalog_;
    std::unique_ptr<PostgresConnection> connection_;
    bool used_;
  };

  Clock::time_point deadline(std::size_t bytes = 0) const;
  /// `fresh`: a connection that was just made, after one of the idle ones turned out to be lost.
  Result<Lease> take(Clock::time_point deadline, bool fresh = false);
  void give_back(std::unique_ptr<PostgresConnection> connection);
  Result<std::unique_ptr<PostgresConnection>> connect(Clock::time_point deadline);
  /// Makes or renews the tables, and learns the catalog's name.
  Status migrate(PostgresConnection& connection, Clock::time_point deadline);
  Result<std::vector<PostgresRows>> read(std::span<const PostgresStatement> statements,
                                         std::size_t bytes = 0);
  /// Makes one change: `statement` returns what writes the document under the number of the change.
  Result<std::uint64_t> change(std::string_view ns, std::string_view id, std::uint64_t expected,
                               std::size_t bytes,
                               const std::function<PostgresStatement(std::uint64_t)>& statement);
  /// Finds out whether a change was made whose answer was lost.
  Status resolve(std::uint32_t shard, std::uint64_t number, const std::string& writer);
  Status failed(Status status);

  const CatalogOptions options_;
  const int wake_fd_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> listens_anew_{false};
  std::atomic<std::uint64_t> failures_{0};

  std::mutex mu_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<PostgresConnection>> idle_;  // guarded by mu_
  int lent_ = 0;                                           // guarded by mu_
  Clock::time_point down_until_{};                         // guarded by mu_
  std::chrono::milliseconds pause_{};                      // guarded by mu_
  Status last_failure_;                                    // guarded by mu_
  std::string identity_;                                   // guarded by mu_; empty: not known yet

  std::unique_ptr<PostgresConnection> listener_;  // of the thread in wait()
};

Result<std::unique_ptr<SharedCatalog>> open_postgres_catalog(const CatalogOptions& options);

}  // namespace quire
