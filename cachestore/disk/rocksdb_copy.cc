#include "cachestore/disk/rocksdb_copy.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/format/record.h"

namespace quire::rocksdb_internal {
namespace {

constexpr std::size_t kBatchBytes = 4 << 20;
constexpr std::array<const char*, 3> kStates = {"open", "closed", "behind"};
constexpr std::array<Family, 3> kFamilies = {Family::kCatalog, Family::kJobs, Family::kMeta};

std::string_view view(const ::rocksdb::Slice& s) { return {s.data(), s.size()}; }

/// Returns whether a record is of the store, and not of the upkeep of one database.
bool is_own(Family family, std::string_view key) {
  return !WriteLedger::is_slot_key(key) && !(family == Family::kMeta && key == RecordCopy::kMark);
}

/// Changes a database until it has the records of another one.
class Alike {
 public:
  Alike(RecordDatabase& from, RecordDatabase& to) : from_(from), to_(to) {}

  Status run() {
    for (const Family family : kFamilies) QUIRE_RETURN_IF_ERROR(run(family));
    return flush();
  }
  std::uint64_t changes() const { return changes_; }

 private:
  Status run(Family family) {
    const auto from = from_.iterate(family), to = to_.iterate(family);
    from->SeekToFirst();
    to->SeekToFirst();
    while (from->Valid() || to->Valid()) {
      const int order = !from->Valid() ? 1 : !to->Valid() ? -1 : from->key().compare(to->key());
      if (order > 0) {
        QUIRE_RETURN_IF_ERROR(change(family, view(to->key()), std::nullopt));
      } else if (order < 0 || from->value() != to->value()) {
        QUIRE_RETURN_IF_ERROR(change(family, view(from->key()), from->value().ToString()));
      }
      if (order <= 0) from->Next();
      if (order >= 0) to->Next();
    }
    QUIRE_RETURN_IF_ERROR(to_status(from->status(), "read the record"));
    return to_status(to->status(), "read the copy of the record");
  }
  Status change(Family family, std::string_view key, std::optional<std::string> value) {
    if (!is_own(family, key)) return {};
    ++changes_;
    bytes_ += key.size() + (value ? value->size() : 0);
    writes_.push_back({family, std::string(key), std::move(value)});
    return bytes_ < kBatchBytes ? Status() : flush();
  }
  Status flush() {
    if (writes_.empty()) return {};
    bytes_ = 0;
    return to_.write(std::exchange(writes_, {}), Sync::kNo);
  }

  RecordDatabase& from_;
  RecordDatabase& to_;
  std::vector<RecordWrite> writes_;
  std::size_t bytes_ = 0;
  std::uint64_t changes_ = 0;
};

std::string new_id() {
  std::random_device random;
  std::ostringstream id;
  for (int i = 0; i < 4; ++i) id << std::hex << random();
  return id.str();
}

}  // namespace

std::string RecordCopy::Mark::text() const {
  return id + " " + std::to_string(records) + " " + std::to_string(copy) + " " +
         kStates[static_cast<std::size_t>(state)];
}

std::optional<RecordCopy::Mark> RecordCopy::Mark::parse(std::string_view text) {
  Mark mark;
  std::string state;
  std::istringstream in{std::string(text)};
  in >> mark.id >> mark.records >> mark.copy >> state;
  const auto known = std::ranges::find(kStates, state);
  if (!in || known == kStates.end()) return std::nullopt;
  mark.state = static_cast<State>(known - kStates.begin());
  return mark;
}

Result<std::optional<RecordCopy::Mark>> RecordCopy::mark_of(RecordDatabase& db) {
  const auto stored = db.get(Family::kMeta, kMark);
  if (stored.code() == Code::kNotFound) return std::optional<Mark>();
  QUIRE_RETURN_IF_ERROR(stored.status());
  const auto text = record::decode_opaque(*stored);
  return text.ok() ? Mark::parse(*text) : std::nullopt;
}

Status RecordCopy::set_mark(RecordDatabase& db, const Mark& mark) {
  const RecordWrite write{Family::kMeta, std::string(kMark), record::encode_opaque(mark.text())};
  return db.write(std::span(&write, 1), Sync::kYes);
}

Status RecordCopy::forget(RecordDatabase& records) {
  QUIRE_ASSIGN_OR_RETURN(const auto mark, mark_of(records));
  if (!mark) return {};
  const RecordWrite write{Family::kMeta, std::string(kMark), std::nullopt};
  return records.write(std::span(&write, 1), Sync::kYes);
}

RecordCopy::RecordCopy(StoreFolder folder, const RocksDbTierOptions& options)
    : folder_(std::move(folder)), options_(options) {
  options_.max_bytes = 0;  // the copy is no part of the budget
}

Status RecordCopy::open(RecordDatabase& records) {
  QUIRE_RETURN_IF_ERROR(open_database());
  Status status = settle(records);
  // A block of the copy cannot be read.
  if (status.code() == Code::kCorruption) {
    log_warning("the copy of the record is damaged and made anew",
                {{"path", folder_.root()}, {"reason", status.message()}});
    db_.reset();
    QUIRE_RETURN_IF_ERROR(folder_.remove_record());
    QUIRE_RETURN_IF_ERROR(open_database());
    status = settle(records);
  }
  return status;
}

Status RecordCopy::open_database() {
  db_ = std::make_unique<RecordDatabase>(folder_, options_);
  const Status status = db_->open();
  if (status.code() != Code::kCorruption) return status.with_field("disk.copy_path");
  log_warning("the copy of the record is damaged and made anew",
              {{"path", folder_.root()}, {"reason", status.message()}});
  db_.reset();
  QUIRE_RETURN_IF_ERROR(folder_.remove_record());
  db_ = std::make_unique<RecordDatabase>(folder_, options_);
  return db_->open().with_field("disk.copy_path");
}

Status RecordCopy::settle(RecordDatabase& records) {
  QUIRE_ASSIGN_OR_RETURN(const auto of_records, mark_of(records));
  QUIRE_ASSIGN_OR_RETURN(const auto of_copy, mark_of(*db_));
  const bool same = of_records && of_copy && of_records->id == of_copy->id;
  if (same && of_records->state == Mark::State::kClosed && of_records->text() == of_copy->text())
    return begin(records, of_records->id);
  const auto since = [](std::uint64_t now, std::uint64_t then) {
    return static_cast<std::int64_t>(now) - static_cast<std::int64_t>(then);
  };
  const bool fewer = same && of_records->records == of_copy->records &&
                     since(db_->last_write(), of_copy->copy) >
                         since(records.last_write(), of_records->records);
  const bool whole = same && of_records->state != Mark::State::kBehind &&
                     db_->lost_writes().count == 0;
  if (whole && (fewer || records.lost_writes().count > 0)) {
    Alike back(*db_, records);
    QUIRE_RETURN_IF_ERROR(back.run());
    brought_back_ = back.changes();
    log_warning("records that the store had lost are back from their copy",
                {{"path", folder_.root()}, {"records", std::to_string(brought_back_)}});
    return begin(records, of_records->id);
  }
  Alike copy(records, *db_);
  QUIRE_RETURN_IF_ERROR(copy.run());
  if (copy.changes() > 0)
    log_info("the copy of the record is complete",
             {{"path", folder_.root()}, {"records", std::to_string(copy.changes())}});
  return begin(records, same ? of_records->id : new_id());
}

/// Says in both how far they are alike now.
Status RecordCopy::begin(RecordDatabase& records, std::string id) {
  id_ = std::move(id);
  // Writing the mark is one more write of each.
  const Mark mark{id_, records.last_write() + 1, db_->last_write() + 1, Mark::State::kOpen};
  QUIRE_RETURN_IF_ERROR(set_mark(*db_, mark).with_field("disk.copy_path"));
  return set_mark(records, mark);
}

void RecordCopy::write(RecordDatabase& records, std::span<const RecordWrite> writes, Sync sync) {
  if (behind()) return;
  const Status status = db_->write(writes, sync);
  if (status.ok()) return;
  const std::lock_guard lock(mu_);
  if (behind()) return;
  // Before anything that the copy lacks is acknowledged.
  const Status said = set_mark(records, {id_, 0, 0, Mark::State::kBehind});
  behind_.store(true);
  log_error("the copy of the record cannot be written: it is behind until the next start",
            {{"path", folder_.root()}, {"reason", status.to_string()}});
  if (!said.ok()) log_error("the record cannot say so", {{"reason", said.to_string()}});
}

void RecordCopy::close(RecordDatabase& records) {
  if (db_ == nullptr || !db_->is_open()) return;
  if (!behind()) {
    const Mark mark{id_, records.last_write() + 1, db_->last_write() + 1, Mark::State::kClosed};
    Status status = db_->flush();
    if (status.ok()) status = set_mark(*db_, mark);
    if (status.ok()) status = set_mark(records, mark);
    if (!status.ok())
      log_warning("the copy of the record was not closed, the next start compares it",
                  {{"reason", status.to_string()}});
  }
  db_->close();
  folder_.seal();
}

std::unique_ptr<RecordDatabase> open_whole_copy(const StoreFolder& folder, std::string* why,
                                                std::int64_t* last_ms) {
  RocksDbTierOptions options;
  options.read_only = true;
  auto db = std::make_unique<RecordDatabase>(folder, options);
  Status status = db->open();
  if (status.ok()) {
    const auto mark = db->get(Family::kMeta, RecordCopy::kMark);
    if (!mark.ok()) status = Status::corruption("it is no copy of a record");
  }
  if (status.ok()) {
    const auto lost = db->look_for_lost_writes();
    status = lost.status();
    if (lost.ok() && lost->count > 0) status = Status::corruption("its log has lost writes");
  }
  for (const Family family : kFamilies) {
    if (!status.ok()) break;
    const auto it = db->iterate(family);
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
    }
    status = to_status(it->status(), "read it");
  }
  if (!status.ok()) {
    *why = status.message();
    return nullptr;
  }
  std::ifstream file(folder.ledger(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  *last_ms = 0;
  for (const WriteLedger::Entry& entry : WriteLedger::parse(bytes))
    *last_ms = std::max(*last_ms, entry.ms);
  return db;
}

}  // namespace quire::rocksdb_internal
