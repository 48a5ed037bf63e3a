#include "cachestore/catalog/postgres_catalog.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {

constexpr std::chrono::milliseconds kPause{100};
/// A replica that was away for longer compares the whole catalog. A deletion stays while there is a
/// job that it bars, however long all replicas were away.
constexpr std::string_view kTrim[] = {
    "DELETE FROM quire_changes WHERE at < now() - interval '7 days'",
    "DELETE FROM quire_deletions WHERE at < now() - interval '7 days' AND number < (SELECT "
    "coalesce(min(number), 9223372036854775807) FROM quire_jobs WHERE NOT ended)"};

constexpr PostgresConnection::Prepared kStatements[] = {
    // Who holds this row makes the next change of the shard, and nobody else until it is committed
    // or gone. So numbers become visible in their order, and none is left out.
    {"lock", "SELECT number FROM quire_shards WHERE shard = $1::bigint FOR UPDATE"},
    {"revision",
     "SELECT revision, job FROM quire_documents WHERE ns = $1::bytea AND id = $2::bytea FOR "
     "UPDATE"},
    {"deletion", "SELECT number FROM quire_deletions WHERE ns = $1::bytea AND id = $2::bytea"},
    {"advance", "UPDATE quire_shards SET number = $2::bigint WHERE shard = $1::bigint"},
    {"log",
     "INSERT INTO quire_changes (shard, number, ns, id, writer) VALUES ($1::bigint, $2::bigint, "
     "$3::bytea, $4::bytea, $5::text)"},
    {"insert",
     "INSERT INTO quire_documents (ns, id, revision, body, version, head, job, tokens, text) "
     "VALUES "
     "($1::bytea, $2::bytea, $3::bigint, $3::bigint, $4::bigint, $5::bytea, coalesce(nullif("
     "$6::bigint, 0), nextval('quire_order')), $7::bytea, $8::bytea)"},
    {"replace",
     "UPDATE quire_documents SET revision = $3::bigint, body = $3::bigint, version = $4::bigint, "
     "head = $5::bytea, job = coalesce(nullif($6::bigint, 0), nextval('quire_order')), tokens = "
     "$7::bytea, text = $8::bytea WHERE ns = $1::bytea AND id = $2::bytea"},
    {"replace_tokens",
     "UPDATE quire_documents SET revision = $3::bigint, body = $3::bigint, version = $4::bigint, "
     "head = $5::bytea, job = coalesce(nullif($6::bigint, 0), nextval('quire_order')), tokens = "
     "$7::bytea WHERE ns = $1::bytea AND id = $2::bytea"},
    {"replace_head",
     "UPDATE quire_documents SET revision = $3::bigint, version = $4::bigint, head = $5::bytea, "
     "job "
     "= greatest(job, $6::bigint) WHERE ns = $1::bytea AND id = $2::bytea"},
    {"order",
     "UPDATE quire_documents SET job = $3::bigint WHERE ns = $1::bytea AND id = $2::bytea"},
    {"deleted",
     "INSERT INTO quire_deletions (ns, id, number) VALUES ($1::bytea, $2::bytea, "
     "nextval('quire_order')) ON CONFLICT (ns, id) DO UPDATE SET number = excluded.number, at = "
     "now()"},
    // A document that ran out was still made later than those that earlier jobs would make.
    {"expired",
     "INSERT INTO quire_deletions (ns, id, number) SELECT d.ns, d.id, d.job FROM quire_documents d "
     "WHERE d.ns = $1::bytea AND d.id = $2::bytea AND EXISTS (SELECT 1 FROM quire_jobs j WHERE NOT "
     "j.ended AND j.number < d.job) ON CONFLICT (ns, id) DO UPDATE SET number = "
     "greatest(quire_deletions.number, excluded.number), at = now()"},
    {"delete", "DELETE FROM quire_documents WHERE ns = $1::bytea AND id = $2::bytea"},
    {"bar",
     "INSERT INTO quire_deletions (ns, id, number) SELECT $1::bytea, $2::bytea, "
     "nextval('quire_order') WHERE EXISTS (SELECT 1 FROM quire_jobs WHERE NOT ended) AND NOT "
     "EXISTS (SELECT 1 FROM quire_documents WHERE ns = $1::bytea AND id = $2::bytea) "
     "AND " QUIRE_REQUEST_IS_OWN("$3", "$4") " ON CONFLICT (ns, id) DO UPDATE SET number = "
                                             "excluded.number, at = now()"},
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
     "SELECT number, ns, id, writer FROM quire_changes WHERE shard = $1::bigint AND number > "
     "$2::bigint ORDER BY number LIMIT $3::bigint"},
    {"writers",
     "SELECT c.shard, c.writer FROM unnest(string_to_array($1::text, ',')::bigint[]) WITH "
     "ORDINALITY AS p (number, nth) JOIN quire_changes c ON c.shard = p.nth - 1 AND c.number = "
     "p.number"},
    {"writer", "SELECT writer FROM quire_changes WHERE shard = $1::bigint AND number = $2::bigint"},
};

std::vector<PostgresConnection::Prepared> statements() {
  std::vector<PostgresConnection::Prepared> all(std::begin(kStatements), std::end(kStatements));
  for (const auto more :
       {PostgresJobs::statements(), PostgresRecords::statements(), PostgresReplies::statements()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

CatalogPosition position_in(const PostgresRows& rows) {
  CatalogPosition out{};
  for (int i = 0; i < rows.size(); ++i)
    if (const std::uint64_t shard = rows.number(i, 0); shard < kCatalogShards)
      out[to_size(shard)] = rows.number(i, 1);
  return out;
}

CatalogName name_in(const PostgresRows& rows, int row, int column) {
  return {std::string(rows.bytes(row, column)), std::string(rows.bytes(row, column + 1))};
}

}  // namespace

PostgresCatalog::PostgresCatalog(const CatalogOptions& options)
    : pool_(options, statements()),
      jobs_(pool_),
      records_(pool_, jobs_),
      replies_(pool_, jobs_),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

PostgresCatalog::~PostgresCatalog() {
  stop();
  listener_.reset();
  ::close(wake_fd_);
}

void PostgresCatalog::stop() {
  pool_.stop();
  const std::uint64_t one = 1;
  (void)!::write(wake_fd_, &one, sizeof one);
}

// ---- reading ----

Result<std::vector<CatalogEntry>> PostgresCatalog::heads(std::span<const CatalogName> names) {
  std::vector<PostgresStatement> statements;
  for (const CatalogName& n : names) statements.push_back(prepared("head", {n.ns, n.id}));
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements));
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
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements, kMostBytes));
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
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}));
  const PostgresRows& rows = answers.at(0);
  std::vector<CatalogEntry> out;
  for (int i = 0; i < rows.size(); ++i)
    out.push_back({name_in(rows, i, 0), {rows.number(i, 2), rows.number(i, 3)}, {}});
  return out;
}

Result<CatalogPosition> PostgresCatalog::end() {
  const PostgresStatement ask = prepared("end");
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}));
  return position_in(answers.at(0));
}

Result<CatalogChanges> PostgresCatalog::changes(const CatalogPosition& after, std::size_t limit) {
  CatalogChanges out;
  std::string numbers;
  for (const std::uint64_t number : after)
    numbers += (numbers.empty() ? "" : ",") + std::to_string(number);
  const PostgresStatement look[] = {prepared("end"), prepared("writers", {numbers})};
  QUIRE_ASSIGN_OR_RETURN(const auto found, pool_.run(look));
  out.end = position_in(found.at(0));
  const PostgresRows& writers = found.at(1);
  for (int i = 0; i < writers.size(); ++i)
    if (const std::uint64_t shard = writers.number(i, 0); shard < kCatalogShards)
      out.before[to_size(shard)] = writers.bytes(i, 1);
  std::vector<PostgresStatement> statements;
  std::vector<std::uint32_t> shards;
  for (std::uint32_t shard = 0; shard < kCatalogShards; ++shard) {
    if (out.end[shard] <= after[shard]) continue;
    statements.push_back(prepared("changes", {static_cast<std::uint64_t>(shard), after[shard],
                                              static_cast<std::uint64_t>(limit)}));
    shards.push_back(shard);
  }
  if (statements.empty()) return out;
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements));
  for (std::size_t i = 0; i < answers.size(); ++i)
    for (int row = 0; row < answers[i].size(); ++row)
      out.changes.push_back({shards[i], answers[i].number(row, 0), name_in(answers[i], row, 1),
                             std::string(answers[i].bytes(row, 3))});
  const std::lock_guard lock(own_mu_);
  std::erase_if(own_, [&](const auto& own) { return own.first.second <= after[own.first.first]; });
  for (const CatalogChange& c : out.changes)
    if (const auto own = own_.find({c.shard, c.number}); own != own_.end())
      out.lost = out.lost || own->second != c.writer;
  return out;
}

Status PostgresCatalog::trim() {
  const PostgresStatement statements[] = {plain(kTrim[0]), plain(kTrim[1])};
  return pool_.run(statements).status();
}

// ---- changing ----

Result<std::uint64_t> PostgresCatalog::change(
    std::string_view ns, std::string_view id, std::uint64_t expected,
    const std::optional<JobFence>& fence, std::size_t bytes,
    const std::function<std::vector<PostgresStatement>(const ChangeNumbers&)>& statements) {
  const std::uint32_t shard = catalog_shard(ns, id);
  const std::uint64_t part = shard;
  const auto until = pool_.deadline(bytes);
  const std::string writer = random_name();
  std::uint64_t number = 0;
  for (int attempt = 0;; ++attempt) {
    auto connection = pool_.take(until, attempt > 0);
    if (!connection.ok()) return pool_.failed(connection.status());
    std::vector<PostgresRows> rows;
    std::vector<PostgresStatement> look{plain(kBeginChange), prepared("lock", {part}),
                                        prepared("revision", {ns, id})};
    const bool requested = !fence && RequestFence::current() != nullptr;
    if (requested) look.push_back(jobs_.hold_request());
    if (fence) {
      look.push_back(jobs_.hold(*fence));
      look.push_back(prepared("deletion", {ns, id}));
    }
    if (Status s = (*connection)->run(look, until, &rows); !s.ok()) {
      if (attempt == 0 && connection->was_stale()) continue;  // nothing was changed yet
      return pool_.failed(std::move(s));
    }
    if (rows[1].size() != 1)
      return pool_.failed(catalog_away("the table quire_shards lacks the row of a shard"));
    if (requested && rows[3].size() != 1) return request_taken_over();
    ChangeNumbers numbers;
    if (fence) {
      if (rows[3].size() != 1) return job_taken_over();
      numbers.job = rows[3].number(0, 0);
      const bool replaced = rows[2].size() > 0 && rows[2].number(0, 1) > numbers.job;
      if (replaced || (rows[4].size() > 0 && rows[4].number(0, 0) > numbers.job))
        return change_overtaken();
      // A document of tables of version 1 has no number, and 0 would give it a new one.
      if (fence->says_nothing_new && rows[2].size() > 0)
        numbers.job = std::max<std::uint64_t>(rows[2].number(0, 1), 1);
    }
    const std::uint64_t found = rows[2].size() > 0 ? rows[2].number(0, 0) : 0;
    if (found != expected)
      return Status::precondition("the document has changed in the shared catalog");
    numbers.change = number = rows[1].number(0, 0) + 1;
    rows.clear();
    // Announced after the commit: a transaction that announces keeps all others waiting while it
    // commits. Who misses it asks a little later.
    std::vector<PostgresStatement> write = statements(numbers);
    write.push_back(prepared("advance", {part, number}));
    write.push_back(prepared("log", {part, number, ns, id, writer}));
    if (fence) write.push_back(PostgresJobs::mark(*fence));
    const std::size_t before = write.size();
    write.push_back(plain("COMMIT"));
    write.push_back(plain("NOTIFY quire_changes"));
    const Status s = (*connection)->run(write, until, &rows);
    if (rows.size() > before) {
      if (rows[before].command() == "COMMIT") {
        keep_own(shard, number, writer);
        return number;
      }
      return pool_.failed(catalog_away("the change was rolled back"));
    }
    if (rows.size() < before && !(*connection)->is_broken())
      return pool_.failed(s);  // not committed
    pool_.count_failure();
    break;
  }
  QUIRE_RETURN_IF_ERROR(resolve(shard, number, writer));
  keep_own(shard, number, writer);
  return number;
}

/// Remembers a change that was made until it is read back.
void PostgresCatalog::keep_own(std::uint32_t shard, std::uint64_t number,
                               const std::string& writer) {
  const std::lock_guard lock(own_mu_);
  own_.emplace(std::pair{shard, number}, writer);
}

Status PostgresCatalog::resolve(std::uint32_t shard, std::uint64_t number,
                                const std::string& writer) {
  const std::uint64_t part = shard;
  const auto until = pool_.deadline();
  Status why;
  do {
    auto connection = pool_.take(until);
    why = connection.status();
    if (why.ok()) {
      std::vector<PostgresRows> rows;
      // The lock waits for the transaction in question, wherever its answer went.
      const PostgresStatement ask[] = {plain(kBeginChange), prepared("lock", {part}),
                                       prepared("writer", {part, number}), plain("ROLLBACK")};
      why = (*connection)->run(ask, until, &rows);
      if (why.ok() && rows[2].size() > 0 && rows[2].bytes(0, 0) == writer) return {};
      if (why.ok()) return catalog_away("the connection was lost, and the change was not made");
    }
    if (!pool_.stopped()) std::this_thread::sleep_for(kPause);
  } while (!pool_.stopped() && Clock::now() < until);
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
  return change(p.ns, p.id, expected, p.fence, bytes, [&](const ChangeNumbers& numbers) {
    std::vector<PostgresValue> values{p.ns, p.id, numbers.change, p.version, p.head, numbers.job};
    if (p.tokens) values.emplace_back(*p.tokens);
    if (p.text) values.emplace_back(*p.text);
    return std::vector{prepared(expected == 0 ? "insert"
                                : p.text      ? "replace"
                                : p.tokens    ? "replace_tokens"
                                              : "replace_head",
                                std::move(values))};
  });
}

Result<std::uint64_t> PostgresCatalog::remove(std::string_view ns, std::string_view id,
                                              std::uint64_t expected, bool expired) {
  if (expected == 0) return Status::precondition("the document is not in the shared catalog");
  return change(ns, id, expected, std::nullopt, 0, [&](const ChangeNumbers&) {
    return std::vector{prepared(expired ? "expired" : "deleted", {ns, id}),
                       prepared("delete", {ns, id})};
  });
}

Status PostgresCatalog::confirm(std::string_view ns, std::string_view id, std::uint64_t expected,
                                const JobFence& fence) {
  const auto until = pool_.deadline();
  for (int attempt = 0;; ++attempt) {
    auto connection = pool_.take(until, attempt > 0);
    if (!connection.ok()) return pool_.failed(connection.status());
    std::vector<PostgresRows> rows;
    const PostgresStatement look[] = {plain(kBeginChange), prepared("revision", {ns, id}),
                                      jobs_.hold(fence)};
    if (Status s = (*connection)->run(look, until, &rows); !s.ok()) {
      if (attempt == 0 && connection->was_stale()) continue;
      return pool_.failed(std::move(s));
    }
    if (rows[2].size() != 1) return job_taken_over();
    const std::uint64_t job = rows[2].number(0, 0);
    if (rows[1].size() > 0 && rows[1].number(0, 1) > job) return change_overtaken();
    if (rows[1].size() == 0 || rows[1].number(0, 0) != expected)
      return Status::precondition("the document has changed in the shared catalog");
    rows.clear();
    const PostgresStatement write[] = {prepared("order", {ns, id, job}), PostgresJobs::mark(fence),
                                       plain("COMMIT")};
    if (Status s = (*connection)->run(write, until, &rows); !s.ok())
      return pool_.failed(std::move(s));
    return {};
  }
}

Status PostgresCatalog::bar(std::string_view ns, std::string_view id) {
  const std::uint64_t part = catalog_shard(ns, id);
  // A change that has looked for a bar and is not committed yet holds the lock.
  std::vector<PostgresStatement> statements{
      plain(kBeginChange), prepared("lock", {part}),
      prepared("bar", {ns, id, request_slot(), jobs_.replica()}), prepared("revision", {ns, id})};
  const bool requested = RequestFence::current() != nullptr;
  if (requested) statements.insert(statements.begin() + 2, jobs_.hold_request());
  statements.push_back(plain("COMMIT"));
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements));
  if (requested && answers.at(2).size() != 1) return request_taken_over();
  return answers.at(requested ? 4 : 3).size() == 0
             ? Status()
             : Status::precondition("the document has been made meanwhile");
}

// ---- announcements ----

void PostgresCatalog::wait(std::chrono::milliseconds longest) {
  // The server was away: the connection may be one that nobody answers on any more.
  if (listener_ && (pool_.reconnected() || listener_->is_broken())) listener_.reset();
  if (!listener_ && !pool_.stopped()) {
    if (auto connection = pool_.connect(pool_.deadline()); connection.ok()) {
      std::vector<PostgresRows> rows;
      const PostgresStatement statement = plain("LISTEN quire_changes");
      // What was announced before is not told again: the caller looks.
      if ((*connection)->run({&statement, 1}, pool_.deadline(), &rows).ok()) {
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
