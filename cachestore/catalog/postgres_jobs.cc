#include "cachestore/catalog/postgres_jobs.h"

#include <utility>

#include "cachestore/catalog/shared_catalog.h"

namespace quire {
namespace {

// A replica that stops takes its row away, so one whose row is there has died in the middle of the
// jobs that it had begun. Marks of items say whether the last attempt has brought a job forward.
#define QUIRE_COUNT_ATTEMPT                                                                      \
  "begun = false, attempts = CASE WHEN NOT begun OR NOT EXISTS (SELECT 1 FROM quire_replicas r " \
  "WHERE r.id = quire_jobs.owner) THEN attempts WHEN (SELECT count(*) FROM quire_job_items i "   \
  "WHERE i.job = "                                                                               \
  "quire_jobs.id) > marks THEN 1 ELSE attempts + 1 END, marks = (SELECT count(*) FROM "          \
  "quire_job_items i WHERE i.job = quire_jobs.id)"

constexpr PostgresConnection::Prepared kStatements[] = {
    {"job_add",
     "INSERT INTO quire_jobs (id, ns, owner, status, ended, record) SELECT $1::bytea, $2::bytea, "
     "$3::text, $4::bigint, $5::bigint <> 0, $6::bytea WHERE " QUIRE_REQUEST_IS_OWN(
         "$7", "$3") " ON CONFLICT (id) DO NOTHING"},
    {"job_owner", "SELECT owner FROM quire_jobs WHERE id = $1::bytea"},
    {"job_add_part",
     "INSERT INTO quire_job_parts (job, name, value) SELECT $1::bytea, $2::bytea, $3::bytea WHERE "
     "EXISTS (SELECT 1 FROM quire_jobs WHERE id = $1::bytea) ON CONFLICT (job, name) DO NOTHING"},
    {"job_save",
     "UPDATE quire_jobs SET status = $3::bigint, ended = $4::bigint <> 0, record = $5::bytea, at = "
     "now() WHERE id = $1::bytea AND owner = $2::text RETURNING status"},
    {"job_drop_parts",
     "DELETE FROM quire_job_parts WHERE job = $1::bytea AND EXISTS (SELECT 1 FROM quire_jobs WHERE "
     "id = $1::bytea AND ended)"},
    {"job_drop_items",
     "DELETE FROM quire_job_items WHERE job = $1::bytea AND EXISTS (SELECT 1 FROM quire_jobs WHERE "
     "id = $1::bytea AND ended)"},
    {"job_get",
     "SELECT id, ns, status, ended::int::bigint, cancel::int::bigint, record FROM quire_jobs WHERE "
     "id = $1::bytea"},
    {"job_list_up",
     "SELECT id, ns, status, ended::int::bigint, cancel::int::bigint, record FROM quire_jobs WHERE "
     "ns = $1::bytea AND id > $2::bytea AND ($3::bigint = 255 OR status = $3::bigint) ORDER BY id "
     "LIMIT $4::bigint"},
    {"job_list_down",
     "SELECT id, ns, status, ended::int::bigint, cancel::int::bigint, record FROM quire_jobs WHERE "
     "ns = $1::bytea AND (id < $2::bytea OR $2::bytea = '') AND ($3::bigint = 255 OR status = "
     "$3::bigint) ORDER BY id DESC LIMIT $4::bigint"},
    {"job_open_with",
     "SELECT id, ns, status, ended::int::bigint, cancel::int::bigint, record FROM quire_jobs WHERE "
     "ns = $1::bytea AND NOT ended AND position($2::bytea in record) > 0 ORDER BY number DESC "
     "LIMIT "
     "$3::bigint"},
    {"job_cancel",
     "UPDATE quire_jobs SET cancel = true WHERE id = $1::bytea AND ns = $2::bytea AND NOT ended"},
    {"job_parts",
     "SELECT name, value FROM quire_job_parts WHERE job = $1::bytea AND name > $2::bytea ORDER BY "
     "name LIMIT $3::bigint"},
    {"job_items", "SELECT item, mark FROM quire_job_items WHERE job = $1::bytea ORDER BY item"},
    {"job_hold",
     "SELECT number FROM quire_jobs WHERE id = $1::bytea AND owner = $2::text AND NOT ended FOR "
     "SHARE"},
    // Who takes the slot at this moment waits, and then finds that it is in use.
    {"request_hold",
     "UPDATE quire_replies SET at = now() WHERE slot = $1::bytea AND owner = $2::text AND reply = "
     "'' RETURNING 1::bigint"},
    {"job_mark",
     "INSERT INTO quire_job_items (job, item, mark) VALUES ($1::bytea, $2::bigint, $3::bytea) ON "
     "CONFLICT (job, item) DO UPDATE SET mark = excluded.mark"},
    // The database's clock alone decides, so that of a replica may be wrong. Its transaction may
    // have begun long ago.
    {"replica_beat",
     "INSERT INTO quire_replicas (id, until) VALUES ($1::text, clock_timestamp() + $2::bigint * "
     "interval '1 millisecond') ON CONFLICT (id) DO UPDATE SET until = excluded.until"},
    {"replica_succeed", "UPDATE quire_jobs SET owner = $1::text, " QUIRE_COUNT_ATTEMPT
                        " WHERE owner = $2::text AND NOT ended"},
    {"job_begin",
     "UPDATE quire_jobs SET begun = true WHERE id = $1::bytea AND owner = $2::text AND NOT ended "
     "RETURNING id"},
    {"job_release",
     "UPDATE quire_jobs SET owner = '' WHERE id = $1::bytea AND owner = $2::text AND NOT ended"},
    {"replica_leave", "DELETE FROM quire_replicas WHERE id = $1::text"},
    // What another replica takes at this moment is left out, and looked at the next time.
    {"job_claim",
     "WITH free AS (SELECT j.id FROM quire_jobs j WHERE NOT j.ended AND NOT EXISTS (SELECT 1 FROM "
     "quire_replicas r WHERE r.id = j.owner AND r.until > now()) AND position(j.id in "
     "$3::bytea) = 0 ORDER BY j.id LIMIT $2::bigint FOR UPDATE OF j SKIP LOCKED) UPDATE quire_jobs "
     "SET owner = $1::text, " QUIRE_COUNT_ATTEMPT " FROM free WHERE quire_jobs.id = free.id"},
    {"job_own",
     "SELECT id, cancel::int::bigint, attempts FROM quire_jobs WHERE owner = $1::text AND NOT "
     "ended ORDER BY id"},
    {"job_purge",
     "DELETE FROM quire_jobs WHERE ended AND at < now() - $1::bigint * interval '1 millisecond'"},
    {"replica_purge", "DELETE FROM quire_replicas WHERE until < now() - interval '1 day'"},
};
#undef QUIRE_COUNT_ATTEMPT

/// How long parts are is not known before they are read.
constexpr std::size_t kMostPartBytes = 64u << 20;

SharedJob job_in(const PostgresRows& rows, int row) {
  SharedJob job;
  job.id = rows.bytes(row, 0);
  job.ns = rows.bytes(row, 1);
  job.status = rows.number(row, 2);
  job.ended = rows.number(row, 3) != 0;
  job.cancel = rows.number(row, 4) != 0;
  job.record = rows.bytes(row, 5);
  return job;
}

std::uint64_t flag(bool value) { return value ? 1 : 0; }

}  // namespace

std::span<const PostgresConnection::Prepared> PostgresJobs::statements() { return kStatements; }

PostgresStatement PostgresJobs::hold(const JobFence& fence) const {
  return prepared("job_hold", {fence.job, replica_});
}

std::string_view request_slot() {
  const Digest* const slot = RequestFence::current();
  if (slot == nullptr) return {};
  return {reinterpret_cast<const char*>(slot->bytes.data()), slot->bytes.size()};
}

PostgresStatement PostgresJobs::hold_request() const {
  return prepared("request_hold", {request_slot(), replica_});
}

PostgresStatement PostgresJobs::mark(const JobFence& fence) {
  return prepared("job_mark", {fence.job, fence.item, fence.mark});
}

PostgresStatement PostgresJobs::sign_of_life() const {
  const auto ms = static_cast<std::uint64_t>(pool_.options().job_lease.count());
  return prepared("replica_beat", {replica_, ms});
}

Status PostgresJobs::add(const SharedJob& job, std::span<const SharedJobPart> parts) {
  const bool requested = RequestFence::current() != nullptr;
  std::vector<PostgresStatement> statements;
  if (requested) statements.push_back(hold_request());
  statements.push_back(prepared("job_add", {job.id, job.ns, replica_, job.status, flag(job.ended),
                                            job.record, request_slot()}));
  statements.push_back(prepared("job_owner", {job.id}));
  std::size_t bytes = job.record.size();
  for (const SharedJobPart& part : parts) {
    statements.push_back(prepared("job_add_part", {job.id, part.name, part.value}));
    bytes += part.value.size();
  }
  // A replica that has not been heard of yet would lose the job at once. Last, as other signs of
  // life wait until this one is committed, and the parts may be long.
  statements.push_back(sign_of_life());
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements, bytes));
  if (requested && answers.at(0).size() != 1) return request_taken_over();
  const PostgresRows& owner = answers.at(requested ? 2 : 1);
  if (owner.size() == 1 && owner.bytes(0, 0) == replica_) return {};
  return Status::precondition("another replica has a job of this name");
}

Status PostgresJobs::save(const SharedJob& job) {
  std::vector<PostgresStatement> statements{
      prepared("job_save", {job.id, replica_, job.status, flag(job.ended), job.record})};
  if (job.ended) {
    statements.push_back(prepared("job_drop_parts", {job.id}));
    statements.push_back(prepared("job_drop_items", {job.id}));
  }
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements, job.record.size()));
  return answers.at(0).size() == 1 ? Status() : job_taken_over();
}

Result<SharedJob> PostgresJobs::get(std::string_view id) {
  const PostgresStatement ask = prepared("job_get", {id});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}));
  if (answers.at(0).size() == 0) return Status::not_found("no job " + std::string(id));
  return job_in(answers[0], 0);
}

Result<std::vector<SharedJob>> PostgresJobs::list(std::string_view ns,
                                                  const SharedJobList& options) {
  const PostgresStatement ask = prepared(
      options.descending ? "job_list_down" : "job_list_up",
      {ns, options.after, options.status, static_cast<std::uint64_t>(options.limit)});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}));
  std::vector<SharedJob> out;
  for (int i = 0; i < answers.at(0).size(); ++i) out.push_back(job_in(answers[0], i));
  return out;
}

Result<std::vector<SharedJob>> PostgresJobs::open_with(std::string_view ns, std::string_view bytes,
                                                       std::size_t limit) {
  const PostgresStatement ask = prepared("job_open_with",
                                         {ns, bytes, static_cast<std::uint64_t>(limit)});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}));
  std::vector<SharedJob> out;
  for (int i = 0; i < answers.at(0).size(); ++i) out.push_back(job_in(answers[0], i));
  return out;
}

Status PostgresJobs::cancel(std::string_view ns, std::string_view id) {
  const PostgresStatement statement = prepared("job_cancel", {id, ns});
  return pool_.run({&statement, 1}).status();
}

Result<std::vector<StoredJobPart>> PostgresJobs::parts(std::string_view id, std::string_view after,
                                                       std::size_t limit) {
  const PostgresStatement ask = prepared("job_parts",
                                         {id, after, static_cast<std::uint64_t>(limit)});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}, kMostPartBytes));
  std::vector<StoredJobPart> out;
  const PostgresRows& rows = answers.at(0);
  for (int i = 0; i < rows.size(); ++i)
    out.push_back({std::string(rows.bytes(i, 0)), std::string(rows.bytes(i, 1))});
  return out;
}

Result<std::vector<SharedJobItem>> PostgresJobs::items(std::string_view id) {
  const PostgresStatement ask = prepared("job_items", {id});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}));
  std::vector<SharedJobItem> out;
  const PostgresRows& rows = answers.at(0);
  for (int i = 0; i < rows.size(); ++i)
    out.push_back({rows.number(i, 0), std::string(rows.bytes(i, 1))});
  return out;
}

Status PostgresJobs::succeed(std::string_view earlier) {
  const PostgresStatement statements[] = {sign_of_life(),
                                          prepared("replica_succeed", {replica_, earlier}),
                                          prepared("replica_leave", {earlier})};
  return pool_.run(statements).status();
}

Status PostgresJobs::beat() {
  const PostgresStatement statement = sign_of_life();
  return pool_.run({&statement, 1}).status();
}

Result<std::vector<OwnJob>> PostgresJobs::renew(std::size_t limit,
                                                std::span<const std::string> except) {
  std::vector<PostgresStatement> statements{sign_of_life()};
  std::string names;  // all of one length, so none is a part of another
  for (const std::string& id : except) names += id + '\n';
  if (limit > 0)
    statements.push_back(
        prepared("job_claim", {replica_, static_cast<std::uint64_t>(limit), names}));
  statements.push_back(prepared("job_own", {replica_}));
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements));
  std::vector<OwnJob> out;
  const PostgresRows& rows = answers.back();
  for (int i = 0; i < rows.size(); ++i)
    out.push_back({std::string(rows.bytes(i, 0)), rows.number(i, 1) != 0, rows.number(i, 2)});
  return out;
}

Status PostgresJobs::begin(std::string_view id) {
  const PostgresStatement statement = prepared("job_begin", {id, replica_});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&statement, 1}));
  return answers.at(0).size() == 1 ? Status() : job_taken_over();
}

Status PostgresJobs::release(std::string_view id) {
  const PostgresStatement statement = prepared("job_release", {id, replica_});
  return pool_.run({&statement, 1}).status();
}

Status PostgresJobs::leave() {
  const PostgresStatement statement = prepared("replica_leave", {replica_});
  return pool_.run({&statement, 1}).status();
}

Status PostgresJobs::purge(std::int64_t age_ms) {
  const PostgresStatement statements[] = {
      prepared("job_purge", {static_cast<std::uint64_t>(age_ms)}), prepared("replica_purge")};
  return pool_.run(statements).status();
}

}  // namespace quire
