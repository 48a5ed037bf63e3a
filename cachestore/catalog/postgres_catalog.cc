#include "cachestore/catalog/postgres_catalog.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>
#include <utility>

#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {

constexpr std::chrono::milliseconds kFirstPause{100}, kLongestPause{2000};
/// What a transfer is given besides the timeout: a server and a network that are much slower serve
/// nobody.
constexpr std::size_t kSlowestBytesPerMs = 1000;
/// A replica that was away for longer compares the whole catalog.
constexpr const char* kTrim = "DELETE FROM quire_changes WHERE at < now() - interval '7 days'";

/// Whatever a role has as its default: each statement has to see what was committed before it.
constexpr std::string_view kBegin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// One entry a version of the tables. What stands here is never changed, only added to.
constexpr std::array<const char*, 1> kMigrations = {
    R"(CREATE TABLE quire_catalog (identity text NOT NULL);
CREATE TABLE quire_shards (shard bigint PRIMARY KEY, number bigint NOT NULL) WITH (fillfactor = 10);
CREATE TABLE quire_documents (ns bytea NOT NULL, id bytea NOT NULL, revision bigint NOT NULL,
  body bigint NOT NULL, version bigint NOT NULL, head bytea NOT NULL, tokens bytea NOT NULL,
  text bytea NOT NULL, PRIMARY KEY (ns, id));
CREATE TABLE quire_changes (shard bigint NOT NULL, number bigint NOT NULL, ns bytea NOT NULL,
  id bytea NOT NULL, writer text NOT NULL, at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (shard, number));
CREATE INDEX quire_changes_at ON quire_changes (at))"};

constexpr PostgresConnection::Prepared kStatements[] = {
    // Who holds this row makes the next change of the shard, and nobody else until it is committed
    // or gone. So numbers become visible in their order, and none is left out.
    {"lock", "SELECT number FROM quire_shards WHERE shard = $1::bigint FOR UPDATE"},
    {"revision",
     "SELECT revision FROM quire_documents WHERE ns = $1::bytea AND id = $2::bytea FOR UPDATE"},
    {"advance", "UPDATE quire_shards SET number = $2::bigint WHERE shard = $1::bigint"},
    {"log",
     "INSERT INTO quire_changes (shard, number, ns, id, writer) VALUES ($1::bigint, $2::bigint, "
     "$3::bytea, $4::bytea, $5::text)"},
    {"insert",
     "INSERT INTO quire_documents (ns, id, revision, body, version, head, tokens, text) VALUES "
     "($1::bytea, $2::bytea, $3::bigint, $3::bigint, $4::bigint, $5::bytea, $6::bytea, $7::bytea)"},
    {"replace",
     "UPDATE quire_documents SET revision = $3::bigint, body = $3::bigint, version = $4::bigint, "
     "head = $5::bytea, tokens = $6::bytea, text = $7::bytea WHERE ns = $1::bytea AND id = "
     "$2::bytea"},
    {"replace_tokens",
     "UPDATE quire_documents SET revision = $3::bigint, body = $3::bigint, version = $4::bigint, "
     "head = $5::bytea, tokens = $6::bytea WHERE ns = $1::bytea AND id = $2::bytea"},
    {"replace_head",
     "UPDATE quire_documents SET revision = $3::bigint, version = $4::bigint, head = $5::bytea "
     "WHERE ns = $1::bytea AND id = $2::bytea"},
    {"delete", "DELETE FROM quire_documents WHERE ns = $1::bytea AND id = $2::bytea"},
    {"head",
     "SELECT ns, id, revision, body, head FROM quire_documents WHERE ns = $1::bytea AND id = "
     "$2::bytea"},
    {"body",
     "SELECT ns, id, body, tokens, text FROM quire_documents WHERE ns = $1::bytea AND id = "
     "$2::bytea"},
    {"list",
     "SELECT ns, id, revision, body FROM quire_documents WHERE (ns, id) > ($1::bytea, $2::bytea) "
     "ORDER BY ns, id LIMIT $3::bigint"},
    {"end", "SELECT shard, number FROM quire_shards"},
    {"changes",
     "SELECT number, ns, id FROM quire_changes WHERE shard = $1::bigint AND number > $2::bigint "
     "ORDER BY number LIMIT $3::bigint"},
    {"writer", "SELECT writer FROM quire_changes WHERE shard = $1::bigint AND number = $2::bigint"},
};

PostgresStatement prepared(std::string_view name, std::vector<PostgresValue> values = {}) {
  return {name, {}, std::move(values)};
}
PostgresStatement plain(std::string_view sql, std::vector<PostgresValue> values = {}) {
  return {{}, sql, std::move(values)};
}

/// Returns 32 hexadecimal digits that nobody else has.
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

CatalogName name_in(const PostgresRows& rows, int row, int column) {
  return {std::string(rows.bytes(row, column)), std::string(rows.bytes(row, column + 1))};
}

}  // namespace

PostgresCatalog::PostgresCatalog(const CatalogOptions& options)
    : options_(options), wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), pause_(kFirstPause) {}

PostgresCatalog::~PostgresCatalog() {
  stop();
  listener_.reset();
  idle_.clear();
  ::close(wake_fd_);
}

void PostgresCatalog::stop() {
  stop_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_fd_, &one, sizeof one);
  returned_.notify_all();
}

Clock::time_point PostgresCatalog::deadline(std::size_t bytes) const {
  return Clock::now() + options_.timeout +
         std::chrono::milliseconds(static_cast<std::int64_t>(bytes / kSlowestBytesPerMs));
}

Status PostgresCatalog::failed(Status status) {
  if (catalog_is_away(status)) ++failures_;
  return status;
}

// ---- connections ----

Result<std::unique_ptr<PostgresConnection>> PostgresCatalog::connect(Clock::time_point deadline) {
  {
    const std::lock_guard lock(mu_);
    if (Clock::now() < down_until_) return last_failure_;
  }
  auto connection = PostgresConnection::open(options_.url, deadline, stop_);
  Status status = connection.status();
  if (status.ok()) status = migrate(**connection, deadline);
  if (status.ok()) status = (*connection)->prepare(kStatements, deadline);
  const std::lock_guard lock(mu_);
  if (status.ok()) {
    listens_anew_ = listens_anew_ || pause_ > kFirstPause;
    pause_ = kFirstPause;
    down_until_ = {};
    return connection;
  }
  last_failure_ = status;
  down_until_ = Clock::now() + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  return status;
}

Result<PostgresCatalog::Lease> PostgresCatalog::take(Clock::time_point deadline, bool fresh) {
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

void PostgresCatalog::give_back(std::unique_ptr<PostgresConnection> connection) {
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

Status PostgresCatalog::migrate(PostgresConnection& connection, Clock::time_point deadline) {
  std::vector<PostgresRows> rows;
  // A server that does not hear from a replica any more must not keep its locks.
  const std::string ms = std::to_string(options_.timeout.count());
  const std::string idle = "SET idle_in_transaction_session_timeout = " + ms,
                    locked = "SET lock_timeout = " + ms,
                    longest = "SET statement_timeout = " + std::to_string(std::max<std::int64_t>(
                                                               options_.timeout.count(), 60'000));
  const PostgresStatement session[] = {
      plain(idle), plain(locked), plain(longest), plain("SET client_min_messages = error"),
      plain("SELECT to_regclass('quire_migrations')::text IS NOT NULL")};
  QUIRE_RETURN_IF_ERROR(connection.run(session, deadline, &rows));
  {
    const std::lock_guard lock(mu_);
    if (!identity_.empty()) return {};
  }
  const bool exists = rows.at(4).bytes(0, 0) == std::string_view("\1", 1);
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

Result<std::string> PostgresCatalog::identity() {
  auto connection = take(deadline());
  if (!connection.ok()) return failed(connection.status());
  const std::lock_guard lock(mu_);
  return identity_;
}

// ---- reading ----

Result<std::vector<PostgresRows>> PostgresCatalog::read(
    std::span<const PostgresStatement> statements, std::size_t bytes) {
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

Result<std::vector<CatalogEntry>> PostgresCatalog::heads(std::span<const CatalogName> names) {
  std::vector<PostgresStatement> statements;
  for (const CatalogName& n : names) statements.push_back(prepared("head", {n.ns, n.id}));
  QUIRE_ASSIGN_OR_RETURN(const auto answers, read(statements));
  std::vector<CatalogEntry> out;
  for (const PostgresRows& rows : answers)
    if (rows.size() > 0)
      out.push_back({name_in(rows, 0, 0),
                     {rows.number(0, 2), rows.number(0, 3)},
                     std::string(rows.bytes(0, 4))});
  return out;
}

Result<std::vector<CatalogBody>> PostgresCatalog::bodies(std::span<const CatalogName> names) {
  std::vector<PostgresStatement> statements;
  for (const CatalogName& n : names) statements.push_back(prepared("body", {n.ns, n.id}));
  // How long the texts are is not known here.
  constexpr std::size_t kMostBytes = 64u << 20;
  QUIRE_ASSIGN_OR_RETURN(const auto answers, read(statements, kMostBytes));
  std::vector<CatalogBody> out;
  for (const PostgresRows& rows : answers)
    if (rows.size() > 0)
      out.push_back({name_in(rows, 0, 0), rows.number(0, 2), std::string(rows.bytes(0, 3)),
                     std::string(rows.bytes(0, 4))});
  return out;
}

Result<std::vector<CatalogEntry>> PostgresCatalog::list(const CatalogName& after,
                                                        std::size_t limit) {
  const PostgresStatement ask = prepared("list",
                                         {after.ns, after.id, static_cast<std::uint64_t>(limit)});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, read({&ask, 1}));
  const PostgresRows& rows = answers.at(0);
  std::vector<CatalogEntry> out;
  for (int i = 0; i < rows.size(); ++i)
    out.push_back({name_in(rows, i, 0), {rows.number(i, 2), rows.number(i, 3)}, {}});
  return out;
}

Result<CatalogPosition> PostgresCatalog::end() {
  const PostgresStatement ask = prepared("end");
  QUIRE_ASSIGN_OR_RETURN(const auto answers, read({&ask, 1}));
  CatalogPosition out{};
  const PostgresRows& rows = answers.at(0);
  for (int i = 0; i < rows.size(); ++i)
    if (const std::uint64_t shard = rows.number(i, 0); shard < kCatalogShards)
      out[to_size(shard)] = rows.number(i, 1);
  return out;
}

Result<CatalogChanges> PostgresCatalog::changes(const CatalogPosition& after, std::size_t limit) {
  CatalogChanges out;
  QUIRE_ASSIGN_OR_RETURN(out.end, end());
  std::vector<PostgresStatement> statements;
  std::vector<std::uint32_t> shards;
  for (std::uint32_t shard = 0; shard < kCatalogShards; ++shard) {
    if (out.end[shard] <= after[shard]) continue;
    statements.push_back(prepared("changes", {static_cast<std::uint64_t>(shard), after[shard],
                                              static_cast<std::uint64_t>(limit)}));
    shards.push_back(shard);
  }
  if (statements.empty()) return out;
  QUIRE_ASSIGN_OR_RETURN(const auto answers, read(statements));
  for (std::size_t i = 0; i < answers.size(); ++i)
    for (int row = 0; row < answers[i].size(); ++row)
      out.changes.push_back({shards[i], answers[i].number(row, 0), name_in(answers[i], row, 1)});
  return out;
}

Status PostgresCatalog::trim() {
  const PostgresStatement statement = plain(kTrim);
  return read({&statement, 1}).status();
}

// ---- changing ----

Result<std::uint64_t> PostgresCatalog::change(
    std::string_view ns, std::string_view id, std::uint64_t expected, std::size_t bytes,
    const std::function<PostgresStatement(std::uint64_t)>& statement) {
  const std::uint32_t shard = catalog_shard(ns, id);
  const std::uint64_t part = shard;
  const auto until = deadline(bytes);
  const std::string writer = random_name();
  std::uint64_t number = 0;
  for (int attempt = 0;; ++attempt) {
    auto connection = take(until, attempt > 0);
    if (!connection.ok()) return failed(connection.status());
    std::vector<PostgresRows> rows;
    const PostgresStatement look[] = {plain(kBegin), prepared("lock", {part}),
                                      prepared("revision", {ns, id})};
    if (Status s = (*connection)->run(look, until, &rows); !s.ok()) {
      if (attempt == 0 && connection->was_stale()) continue;  // nothing was changed yet
      return failed(std::move(s));
    }
    if (rows[1].size() != 1)
      return failed(catalog_away("the table quire_shards lacks the row of a shard"));
    const std::uint64_t found = rows[2].size() > 0 ? rows[2].number(0, 0) : 0;
    if (found != expected)
      return Status::precondition("the document has changed in the shared catalog");
    number = rows[1].number(0, 0) + 1;
    rows.clear();
    // Announced after the commit: a transaction that announces keeps all others waiting while it
    // commits. Who misses it asks a little later.
    const PostgresStatement write[] = {prepared("advance", {part, number}), statement(number),
                                       prepared("log", {part, number, ns, id, writer}),
                                       plain("COMMIT"), plain("NOTIFY quire_changes")};
    const Status s = (*connection)->run(write, until, &rows);
    if (rows.size() > 3) {
      if (rows[3].command() == "COMMIT") return number;
      return failed(catalog_away("the change was rolled back"));
    }
    if (rows.size() < 3 && !(*connection)->is_broken()) return failed(s);  // not committed
    ++failures_;
    break;
  }
  QUIRE_RETURN_IF_ERROR(resolve(shard, number, writer));
  return number;
}

Status PostgresCatalog::resolve(std::uint32_t shard, std::uint64_t number,
                                const std::string& writer) {
  const std::uint64_t part = shard;
  const auto until = deadline();
  Status why;
  do {
    auto connection = take(until);
    why = connection.status();
    if (why.ok()) {
      std::vector<PostgresRows> rows;
      // The lock waits for the transaction in question, wherever its answer went.
      const PostgresStatement ask[] = {plain(kBegin), prepared("lock", {part}),
                                       prepared("writer", {part, number}), plain("ROLLBACK")};
      why = (*connection)->run(ask, until, &rows);
      if (why.ok() && rows[2].size() > 0 && rows[2].bytes(0, 0) == writer) return {};
      if (why.ok()) return catalog_away("the connection was lost, and the change was not made");
    }
    if (!stop_) std::this_thread::sleep_for(kFirstPause);
  } while (!stop_ && Clock::now() < until);
  return catalog_away(
      "the connection was lost while the change was committed, and nobody can say whether it was "
      "made (" +
      why.message() + "); look at the document once the catalog answers");
}

Result<std::uint64_t> PostgresCatalog::put(const CatalogPut& p, std::uint64_t expected) {
  const std::size_t bytes = p.head.size() + (p.tokens ? p.tokens->size() : 0) +
                            (p.text ? p.text->size() : 0);
  if ((expected == 0 && !p.text) || (p.text && !p.tokens))
    return Status::precondition("a new document, or a new text, needs its token ids");
  return change(p.ns, p.id, expected, bytes, [&](std::uint64_t number) {
    std::vector<PostgresValue> values{p.ns, p.id, number, p.version, p.head};
    if (p.tokens) values.emplace_back(*p.tokens);
    if (p.text) values.emplace_back(*p.text);
    return prepared(expected == 0 ? "insert"
                    : p.text      ? "replace"
                    : p.tokens    ? "replace_tokens"
                                  : "replace_head",
                    std::move(values));
  });
}

Result<std::uint64_t> PostgresCatalog::remove(std::string_view ns, std::string_view id,
                                              std::uint64_t expected) {
  if (expected == 0) return Status::precondition("the document is not in the shared catalog");
  return change(ns, id, expected, 0, [&](std::uint64_t) { return prepared("delete", {ns, id}); });
}

// ---- announcements ----

void PostgresCatalog::wait(std::chrono::milliseconds longest) {
  // The server was away: the connection may be one that nobody answers on any more.
  if (listener_ && (listens_anew_.exchange(false) || listener_->is_broken())) listener_.reset();
  if (!listener_ && !stop_) {
    if (auto connection = connect(deadline()); connection.ok()) {
      std::vector<PostgresRows> rows;
      const PostgresStatement statement = plain("LISTEN quire_changes");
      // What was announced before is not told again: the caller looks.
      if ((*connection)->run({&statement, 1}, deadline(), &rows).ok()) {
        listener_ = std::move(*connection);
        return;
      }
    }
  }
  if (listener_) return listener_->wait_for_announcement(wake_fd_, longest);
  pollfd p{wake_fd_, POLLIN, 0};
  (void)::poll(&p, 1, static_cast<int>(longest.count()));
}

Result<std::unique_ptr<SharedCatalog>> open_postgres_catalog(const CatalogOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_postgres_url(options.url));
  log_info("documents are those of a shared catalog", {{"catalog", postgres_address(options.url)}});
  return std::unique_ptr<SharedCatalog>(std::make_unique<PostgresCatalog>(options));
}

}  // namespace quire
