/// This file declares a few connections to the database of the shared catalog, whose tables exist
/// and are those that this program knows. The tables are in docs/formats.md.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cachestore/catalog/catalog_options.h"
#include "cachestore/catalog/postgres_connection.h"

namespace quire {

/// Whatever a role has as its default: each statement has to see what was committed before it.
inline constexpr std::string_view kBeginChange = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// Returns a statement that the pool's connections have prepared.
inline PostgresStatement prepared(std::string_view name, std::vector<PostgresValue> values = {}) {
  return {name, {}, std::move(values)};
}
/// Returns a statement that is sent as text; `sql` ends with a zero byte.
inline PostgresStatement plain(std::string_view sql, std::vector<PostgresValue> values = {}) {
  return {{}, sql, std::move(values)};
}
/// Returns 32 hexadecimal digits that nobody else has.
std::string random_name();

/// After a failed attempt to connect it fails at once for a while, twice as long after each, so
/// that nobody waits for a server that is away. Where the last one succeeded, it tries once more
/// before that. Threads: all methods concurrently.
class PostgresPool {
 public:
  /// Every connection prepares these statements.
  PostgresPool(const CatalogOptions& options, std::vector<PostgresConnection::Prepared> statements);
  PostgresPool(const PostgresPool&) = delete;
  PostgresPool& operator=(const PostgresPool&) = delete;

  /// A connection, which goes back to the pool with this object unless it is broken.
  class Lease {
   public:
    Lease(PostgresPool* pool, std::unique_ptr<PostgresConnection> connection, bool used)
        : pool_(pool), connection_(std::move(connection)), used_(used) {}
    Lease(Lease&& o) noexcept
        : pool_(std::exchange(o.pool_, nullptr)),
          connection_(std::move(o.connection_)),
          used_(o.used_) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (pool_ != nullptr) pool_->give_back(std::move(connection_));
    }
    PostgresConnection& operator*() { return *connection_; }
    PostgresConnection* operator->() { return connection_.get(); }
    /// Whether it was lost, and may have been so before this call began.
    bool was_stale() const { return used_ && connection_->is_broken(); }

   private:
    PostgresPool* pool_;
    std::unique_ptr<PostgresConnection> connection_;
    bool used_;
  };

  const CatalogOptions& options() const { return options_; }
  /// Returns when an exchange that begins now has to be over. `bytes`: of texts that it transfers.
  Clock::time_point deadline(std::size_t bytes = 0) const;
  /// `fresh`: a connection that was just made, after one of the idle ones turned out to be lost.
  Result<Lease> take(Clock::time_point deadline, bool fresh = false);
  /// Returns a connection that is none of the pool's.
  Result<std::unique_ptr<PostgresConnection>> connect(Clock::time_point deadline);
  /// Runs statements that may run twice. Sent at once, they are one transaction.
  Result<std::vector<PostgresRows>> run(std::span<const PostgresStatement> statements,
                                        std::size_t bytes = 0);
  /// Returns the catalog's name. Errors: kFailedPrecondition (its tables are newer).
  Result<std::string> identity();
  /// Lets calls that wait for an answer fail from now on.
  void stop();
  bool stopped() const { return stop_; }
  /// Returns whether the server was away and back since the last call.
  bool reconnected() { return reconnected_.exchange(false); }
  /// Counts a failure of the catalog, and returns it.
  Status failed(Status status);
  void count_failure() { ++failures_; }
  std::uint64_t failures() const { return failures_; }

 private:
  void give_back(std::unique_ptr<PostgresConnection> connection);
  /// Makes or renews the tables, and learns the catalog's name.
  Status migrate(PostgresConnection& connection, Clock::time_point deadline);

  const CatalogOptions options_;
  const std::vector<PostgresConnection::Prepared> statements_;
  std::atomic<bool> stop_{false}, reconnected_{false};
  std::atomic<std::size_t> first_host_{0};  ///< of the address, to which the last one connected
  std::atomic<std::uint64_t> failures_{0};

  std::mutex mu_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<PostgresConnection>> idle_;  // guarded by mu_
  int lent_ = 0;                                           // guarded by mu_
  Clock::time_point down_until_{};                         // guarded by mu_
  std::chrono::milliseconds pause_{};                      // guarded by mu_
  Status last_failure_;                                    // guarded by mu_
  std::string identity_;                                   // guarded by mu_; empty: not known yet
};

}  // namespace quire
