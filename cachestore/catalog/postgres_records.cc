#include "cachestore/catalog/postgres_records.h"

#include <utility>
#include <vector>

#include "cachestore/catalog/request_fence.h"
#include "cachestore/catalog/shared_catalog.h"

namespace quire {
namespace {

constexpr PostgresConnection::Prepared kRecordStatements[] = {
    {"record_get", "SELECT revision, value, writer FROM quire_records WHERE name = $1::bytea"},
    {"record_make",
     "INSERT INTO quire_records (name, revision, value, writer) SELECT $1::bytea, 1, $2::bytea, "
     "$3::text WHERE " QUIRE_REQUEST_IS_OWN("$4", "$5") " ON CONFLICT (name) DO NOTHING"},
    {"record_put",
     "UPDATE quire_records SET revision = revision + 1, value = $2::bytea, writer = $3::text WHERE "
     "name = $1::bytea AND revision = $6::bigint AND " QUIRE_REQUEST_IS_OWN("$4", "$5")},
};

constexpr PostgresConnection::Prepared kReplyStatements[] = {
    // A slot that this replica has without a reply is what an earlier attempt left, as its own
    // requests in progress do not get here. One that another has begun a moment ago is that one's:
    // its sign of life may be younger than what this statement sees of quire_replicas.
    {"reply_begin",
     "INSERT INTO quire_replies AS r (slot, body, owner) VALUES ($1::bytea, $2::bytea, $3::text) "
     "ON CONFLICT (slot) DO UPDATE SET body = excluded.body, owner = excluded.owner, reply = '', "
     "at = now() WHERE r.at < now() - $4::bigint * interval '1 second' OR (r.reply = '' AND "
     "(r.owner = excluded.owner OR (r.at < now() - $5::bigint * interval '1 millisecond' AND NOT "
     "EXISTS (SELECT 1 FROM quire_replicas q WHERE q.id = r.owner AND q.until > now())))) "
     "RETURNING 1::bigint"},
    {"reply_get", "SELECT body, reply FROM quire_replies WHERE slot = $1::bytea"},
    {"reply_complete",
     "UPDATE quire_replies SET reply = $3::bytea, at = now() WHERE slot = $1::bytea AND owner = "
     "$2::text RETURNING 1::bigint"},
    {"reply_forget",
     "DELETE FROM quire_replies WHERE slot = $1::bytea AND owner = $2::text AND reply = ''"},
    {"reply_purge",
     "DELETE FROM quire_replies WHERE at < now() - $1::bigint * interval '1 second'"},
};

std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

}  // namespace

// ---- records ----

std::span<const PostgresConnection::Prepared> PostgresRecords::statements() {
  return kRecordStatements;
}

Result<SharedRecord> PostgresRecords::get(std::string_view name) {
  const PostgresStatement ask = prepared("record_get", {name});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&ask, 1}));
  const PostgresRows& rows = answers.at(0);
  if (rows.size() == 0) return SharedRecord();
  return SharedRecord{rows.number(0, 0), std::string(rows.bytes(0, 1))};
}

Status PostgresRecords::put(std::string_view name, std::string_view value, std::uint64_t expected) {
  // The statements may run twice, so the writer tells whether the first time has made the change.
  const std::string writer = random_name();
  const Digest* const request = RequestFence::current();
  std::vector<PostgresValue> values{name, value, writer, request_slot(), jobs_.replica()};
  if (expected != 0) values.emplace_back(expected);
  std::vector<PostgresStatement> statements;
  if (request != nullptr) statements.push_back(jobs_.hold_request());
  statements.push_back(prepared(expected == 0 ? "record_make" : "record_put", std::move(values)));
  statements.push_back(prepared("record_get", {name}));
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements, value.size()));
  if (request != nullptr && answers.at(0).size() != 1) return request_taken_over();
  const PostgresRows& rows = answers.back();
  if (rows.size() == 1 && rows.bytes(0, 2) == writer) return {};
  return Status(Code::kFailedPrecondition, "another replica has changed it");
}

// ---- replies ----

std::span<const PostgresConnection::Prepared> PostgresReplies::statements() {
  return kReplyStatements;
}

Result<SharedReply> PostgresReplies::begin(const Digest& slot, const Digest& body,
                                           std::chrono::seconds keep) {
  const auto lease_ms = static_cast<std::uint64_t>(pool_.options().job_lease.count());
  // Without a sign of life the slot would be anyone's after the lease.
  const PostgresStatement statements[] = {
      jobs_.sign_of_life(),
      prepared("reply_begin", {bytes_of(slot), bytes_of(body), jobs_.replica(),
                               static_cast<std::uint64_t>(keep.count()), lease_ms}),
      prepared("reply_get", {bytes_of(slot)})};
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run(statements));
  SharedReply found;
  if (answers.at(1).size() > 0) return found;
  const PostgresRows& rows = answers.at(2);
  if (rows.size() > 0 && rows.bytes(0, 0) != bytes_of(body)) {
    found.outcome = SharedReply::Outcome::kMismatch;
  } else if (rows.size() == 0 || rows.bytes(0, 1).empty()) {
    found.outcome = SharedReply::Outcome::kInProgress;
  } else {
    found.outcome = SharedReply::Outcome::kReplay;
    found.reply = rows.bytes(0, 1);
  }
  return found;
}

Status PostgresReplies::complete(const Digest& slot, std::string_view reply) {
  const PostgresStatement statement = prepared("reply_complete",
                                               {bytes_of(slot), jobs_.replica(), reply});
  QUIRE_ASSIGN_OR_RETURN(const auto answers, pool_.run({&statement, 1}, reply.size()));
  return answers.at(0).size() == 1 ? Status()
                                   : Status::precondition("another replica has the request");
}

Status PostgresReplies::forget(const Digest& slot) {
  const PostgresStatement statement = prepared("reply_forget", {bytes_of(slot), jobs_.replica()});
  return pool_.run({&statement, 1}).status();
}

Status PostgresReplies::purge(std::chrono::seconds keep) {
  const PostgresStatement statement = prepared("reply_purge",
                                               {static_cast<std::uint64_t>(keep.count())});
  return pool_.run({&statement, 1}).status();
}

}  // namespace quire
