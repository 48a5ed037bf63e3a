#include "cachestore/catalog/postgres_pool.h"

#include <algorithm>
#include <array>
#include <random>

#include "base/index.h"
#include "cachestore/catalog/shared_catalog.h"

namespace quire {
namespace {

constexpr std::chrono::milliseconds kFirstPause{100}, kLongestPause{2000};
/// What a transfer is given besides the timeout: a server and a network that are much slower serve
/// nobody.
constexpr std::size_t kSlowestBytesPerMs = 1000;

/// One entry a version of the tables. What stands here is never changed, only added to.
constexpr std::array<const char*, 4> kMigrations = {
    R"(CREATE TABLE quire_catalog (identity text NOT NULL);
CREATE TABLE quire_shards (shard bigint PRIMARY KEY, number bigint NOT NULL) WITH (fillfactor = 10);
CREATE TABLE quire_documents (ns bytea NOT NULL, id bytea NOT NULL, revision bigint NOT NULL,
  body bigint NOT NULL, version bigint NOT NULL, head bytea NOT NULL, tokens bytea NOT NULL,
  text bytea NOT NULL, PRIMARY KEY (ns, id));
CREATE TABLE quire_changes (shard bigint NOT NULL, number bigint NOT NULL, ns bytea NOT NULL,
  id bytea NOT NULL, writer text NOT NULL, at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (shard, number));
CREATE INDEX quire_changes_at ON quire_changes (at))",
    R"(CREATE SEQUENCE quire_order CACHE 1;
ALTER TABLE quire_documents ADD COLUMN job bigint NOT NULL DEFAULT 0;
CREATE TABLE quire_deletions (ns bytea NOT NULL, id bytea NOT NULL, number bigint NOT NULL,
  at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (ns, id));
CREATE INDEX quire_deletions_at ON quire_deletions (at);
CREATE TABLE quire_replicas (id text PRIMARY KEY, until timestamptz NOT NULL)
  WITH (fillfactor = 10);
CREATE TABLE quire_jobs (id bytea PRIMARY KEY, ns bytea NOT NULL, owner text NOT NULL,
  number bigint NOT NULL DEFAULT nextval('quire_order'),
  status bigint NOT NULL, ended boolean NOT NULL, cancel boolean NOT NULL DEFAULT false,
  at timestamptz NOT NULL DEFAULT now(), record bytea NOT NULL) WITH (fillfactor = 50);
CREATE INDEX quire_jobs_ns ON quire_jobs (ns, id);
CREATE INDEX quire_jobs_open ON quire_jobs (owner, id) WHERE NOT ended;
CREATE INDEX quire_jobs_ended ON quire_jobs (at) WHERE ended;
CREATE TABLE quire_job_parts (job bytea NOT NULL, name bytea NOT NULL, value bytea NOT NULL,
  PRIMARY KEY (job, name));
CREATE TABLE quire_job_items (job bytea NOT NULL, item bigint NOT NULL, mark bytea NOT NULL,
  PRIMARY KEY (job, item)))",
    R"(CREATE TABLE quire_records (name bytea PRIMARY KEY, revision bigint NOT NULL,
  value bytea NOT NULL, writer text NOT NULL);
CREATE TABLE quire_replies (slot bytea PRIMARY KEY, body bytea NOT NULL, owner text NOT NULL,
  reply bytea NOT NULL DEFAULT '', at timestamptz NOT NULL DEFAULT now());
CREATE INDEX quire_replies_at ON quire_replies (at))",
    R"(ALTER TABLE quire_jobs ADD COLUMN attempts bigint NOT NULL DEFAULT 0,
  ADD COLUMN marks bigint NOT NULL DEFAULT 0, ADD COLUMN begun boolean NOT NULL DEFAULT false)"};

}  // namespace

std::string random_name() {
  std::random_device source;
  std::string out;
  for (int i = 0; i < 4; ++i) {
    char part[9];
    std::snprintf(part, sizeof part, "%08x", static_cast<unsigned>(source()));
    out += part;
  }
  return out;
}

PostgresPool::PostgresPool(const CatalogOptions& options,
                           std::vector<PostgresConnection::Prepared> statements)
    : options_(options), statements_(std::move(statements)), pause_(kFirstPause) {}

void PostgresPool::stop() {
  stop_ = true;
  returned_.notify_all();
}

Clock::time_point PostgresPool::deadline(std::size_t bytes) const {
  return Clock::now() + options_.timeout +
         std::chrono::milliseconds(static_cast<std::int64_t>(bytes / kSlowestBytesPerMs));
}

Status PostgresPool::failed(Status status) {
  if (catalog_is_away(status)) ++failures_;
  return status;
}

Result<std::unique_ptr<PostgresConnection>> PostgresPool::connect(Clock::time_point deadline) {
  bool again = false;
  {
    const std::lock_guard lock(mu_);
    if (Clock::now() < down_until_) return last_failure_;
    // The server was there: this connection alone may be lost while it is made, as those are that
    // an administrator ends, or all of a server that changes its role.
    again = pause_ == kFirstPause;
  }
  while (true) {
    auto connection = PostgresConnection::open(options_.url, deadline, stop_, &first_host_);
    Status status = connection.status();
    if (status.ok()) status = migrate(**connection, deadline);
    if (status.ok()) status = (*connection)->prepare(statements_, deadline);
    // It connects and answers nothing: the next attempt begins with another server.
    if (connection.ok() && !status.ok()) ++first_host_;
    const std::lock_guard lock(mu_);
    if (status.ok()) {
      if (pause_ > kFirstPause) reconnected_ = true;
      pause_ = kFirstPause;
      down_until_ = {};
      return connection;
    }
    if (std::exchange(again, false) && catalog_is_away(status) && !stop_ && Clock::now() < deadline)
      continue;
    last_failure_ = status;
    down_until_ = Clock::now() + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return status;
  }
}

Result<PostgresPool::Lease> PostgresPool::take(Clock::time_point deadline, bool fresh) {
  {
    std::unique_lock lock(mu_);
    if (!returned_.wait_until(lock, deadline,
                              [this] { return stop_ || lent_ < options_.connections; }))
      return catalog_away("all connections are in use (catalog.connections)");
    if (stop_) return catalog_away("the service stops");
    ++lent_;
    if (!fresh && !idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      return Lease(this, std::move(connection), /*used=*/true);
    }
  }
  auto connection = connect(deadline);
  if (connection.ok()) return Lease(this, std::move(*connection), /*used=*/false);
  give_back(nullptr);
  return connection.status();
}

void PostgresPool::give_back(std::unique_ptr<PostgresConnection> connection) {
  if (connection) connection->roll_back(deadline());
  {
    const std::lock_guard lock(mu_);
    --lent_;
    if (connection && connection->is_broken())
      idle_.clear();  // they were lost at the same time, most likely
    else if (connection)
      idle_.push_back(std::move(connection));
  }
  returned_.notify_one();
}

Status PostgresPool::migrate(PostgresConnection& connection, Clock::time_point deadline) {
  std::vector<PostgresRows> rows;
  // A server that does not hear from a replica any more must not keep its locks.
  const std::string ms = std::to_string(options_.timeout.count());
  const std::string idle = "SET idle_in_transaction_session_timeout = " + ms,
                    locked = "SET lock_timeout = " + ms,
                    longest = "SET statement_timeout = " + std::to_string(std::max<std::int64_t>(
                                                               options_.timeout.count(), 60'000));
  // Statements of one exchange are one transaction, and what others have committed meanwhile is no
  // failure of it.
  const PostgresStatement session[] = {
      plain(idle),
      plain(locked),
      plain(longest),
      plain("SET client_min_messages = error"),
      plain("SET default_transaction_isolation = 'read committed'"),
      plain("SELECT to_regclass('quire_migrations')::text IS NOT NULL")};
  QUIRE_RETURN_IF_ERROR(connection.run(session, deadline, &rows));
  {
    const std::lock_guard lock(mu_);
    if (!identity_.empty()) return {};
  }
  const bool exists = rows.back().bytes(0, 0) == std::string_view("\1", 1);
  constexpr std::string_view kVersion =
      "SELECT coalesce(max(version), 0)::bigint FROM "
      "quire_migrations";
  std::uint64_t version = 0;
  if (exists) {
    rows.clear();
    const PostgresStatement ask = plain(kVersion);
    QUIRE_RETURN_IF_ERROR(connection.run({&ask, 1}, deadline, &rows));
    version = rows.at(0).number(0, 0);
  }
  if (version < kMigrations.size()) {
    rows.clear();
    // Replicas that start at once make the tables one after the other.
    const PostgresStatement begin[] = {
        plain("BEGIN"), plain("SELECT pg_advisory_xact_lock(7020098117)"),
        plain("CREATE TABLE IF NOT EXISTS quire_migrations (version bigint PRIMARY KEY, at "
              "timestamptz NOT NULL DEFAULT now())"),
        plain(kVersion)};
    QUIRE_RETURN_IF_ERROR(connection.run(begin, deadline, &rows));
    version = rows.at(3).number(0, 0);
    std::vector<std::string> texts;
    for (std::size_t v = to_size(version); v < kMigrations.size(); ++v) {
      std::string_view rest = kMigrations[v];
      while (!rest.empty()) {
        const std::size_t end = rest.find(';');
        texts.emplace_back(rest.substr(0, end));
        rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
      }
      texts.push_back("INSERT INTO quire_migrations (version) VALUES (" + std::to_string(v + 1) +
                      ")");
    }
    if (version == 0) {
      texts.push_back("INSERT INTO quire_catalog (identity) VALUES ('" + random_name() + "')");
      texts.push_back(
          "INSERT INTO quire_shards (shard, number) SELECT n, 0 FROM generate_series("
          "0, " +
          std::to_string(kCatalogShards - 1) + ") AS n");
    }
    texts.emplace_back("COMMIT");
    std::vector<PostgresStatement> steps;
    for (const std::string& text : texts) steps.push_back(plain(text));
    rows.clear();
    QUIRE_RETURN_IF_ERROR(connection.run(steps, deadline, &rows));
    version = std::max<std::uint64_t>(version, kMigrations.size());
  }
  if (version > kMigrations.size())
    return Status(Code::kFailedPrecondition,
                  "the shared catalog has tables of version " + std::to_string(version) +
                      ", and this program knows them up to " + std::to_string(kMigrations.size()) +
                      ": it was changed by a newer one; use that one here, too",
                  "catalog.url");
  rows.clear();
  const PostgresStatement ask = plain("SELECT identity FROM quire_catalog");
  QUIRE_RETURN_IF_ERROR(connection.run({&ask, 1}, deadline, &rows));
  if (rows.at(0).size() != 1)
    return Status(Code::kFailedPrecondition, "the table quire_catalog has no name of the catalog",
                  "catalog.url");
  const std::lock_guard lock(mu_);
  identity_ = rows.at(0).bytes(0, 0);
  return {};
}

Result<std::string> PostgresPool::identity() {
  auto connection = take(deadline());
  if (!connection.ok()) return failed(connection.status());
  const std::lock_guard lock(mu_);
  return identity_;
}

Result<std::vector<PostgresRows>> PostgresPool::run(std::span<const PostgresStatement> statements,
                                                    std::size_t bytes) {
  const auto until = deadline(bytes);
  for (int attempt = 0;; ++attempt) {
    auto connection = take(until, attempt > 0);
    if (!connection.ok()) return failed(connection.status());
    std::vector<PostgresRows> rows;
    Status s = (*connection)->run(statements, until, &rows);
    if (s.ok()) return rows;
    if (attempt > 0 || !connection->was_stale()) return failed(std::move(s));
  }
}

}  // namespace quire
