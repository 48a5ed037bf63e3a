#include "cachestore/disk/rocksdb_copy.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/format/record.h"

namespace quire::rocksdb_internal {
namespace {

/// The field of errors of the copy itself.
constexpr const char* kCopyField = "disk.copy_path";
constexpr std::size_t kBatchBytes = 4 << 20;
constexpr std::array<const char*, 3> kStates = {"open", "closed", "behind"};
constexpr std::array<Family, 3> kFamilies = {Family::kCatalog, Family::kJobs, Family::kMeta};
/// Keys of family kMeta in a copy, with the numbers of writes modulo kNumbers.
constexpr std::string_view kNumberKey = "record_copy/number/";
constexpr std::uint64_t kNumbers = WriteLedger::kSlots;

std::string_view view(const ::rocksdb::Slice& s) { return {s.data(), s.size()}; }

RecordWrite number_write(std::uint64_t number) {
  return {Family::kMeta, std::string(kNumberKey) + std::to_string(number % kNumbers),
          record::encode_opaque(std::to_string(number))};
}

/// Changes a database until it has the records of another one.
class Alike {
 public:
  Alike(RecordDatabase& from, RecordDatabase& to) : from_(from), to_(to) {}

  /// Errors: of either, see below.
  Status run() {
    for (const Family family : kFamilies) QUIRE_RETURN_IF_ERROR(run(family));
    return flush();
  }
  std::uint64_t changes() const { return changes_; }
  /// Returns whether run() failed as the first one cannot be read.
  bool from_failed() const { return from_failed_; }

 private:
  Status run(Family family) {
    const auto from = from_.iterate(family), to = to_.iterate(family);
    from->SeekToFirst();
    to->SeekToFirst();
    for (;;) {
      // An iterator ends at what it cannot read, too.
      if (!from->Valid() && !from->status().ok()) {
        from_failed_ = true;
        return to_status(from->status(), "read the records");
      }
      if (!to->Valid() && !to->status().ok()) return to_status(to->status(), "read the records");
      if (!from->Valid() && !to->Valid()) return {};
      const int order = !from->Valid() ? 1 : !to->Valid() ? -1 : from->key().compare(to->key());
      if (order > 0) {
        QUIRE_RETURN_IF_ERROR(change(family, view(to->key()), std::nullopt));
      } else if (order < 0 || from->value() != to->value()) {
        QUIRE_RETURN_IF_ERROR(change(family, view(from->key()), from->value().ToString()));
      }
      if (order <= 0) from->Next();
      if (order >= 0) to->Next();
    }
  }
  Status change(Family family, std::string_view key, std::optional<std::string> value) {
    if (!is_client_record(family, key)) return {};
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
  bool from_failed_ = false;
};

/// Returns whether a database has nothing of any client.
Result<bool> is_empty(RecordDatabase& db) {
  bool empty = true;
  const auto any = [&empty](std::string_view, std::string_view) { return empty = false; };
  for (const char kind : {kHeadKind, kTokensKind, kTextKind, kNamedTextKind, kWaitingKind})
    QUIRE_RETURN_IF_ERROR(db.scan(Family::kCatalog, std::string(1, kind), std::string(1, kind + 1),
                                  /*descending=*/false, any));
  QUIRE_RETURN_IF_ERROR(db.scan(Family::kJobs, {}, {}, /*descending=*/false, any));
  return empty;
}

/// Opens the folder of a copy, which begins anew if it is damaged.
Result<StoreFolder> open_folder(const std::string& path) {
  auto folder = StoreFolder::open(path, /*read_only=*/false);
  if (folder.code() != Code::kCorruption) return folder;
  log_warning("the copy of the record is damaged, set aside and made anew",
              {{"path", path}, {"reason", folder.status().message()}});
  {
    QUIRE_ASSIGN_OR_RETURN(const StoreFolder damaged,
                           StoreFolder::open(path, /*read_only=*/false, FolderUse::kRepair));
    QUIRE_RETURN_IF_ERROR(damaged.set_record_aside("earlier").status());
  }
  return StoreFolder::open(path, /*read_only=*/false);
}

std::string new_id() {
  std::random_device random;
  std::ostringstream id;
  id << std::hex;
  for (int i = 0; i < 4; ++i) id << random();
  return id.str();
}

}  // namespace

bool is_client_record(Family family, std::string_view key) {
  if (WriteLedger::is_slot_key(key)) return false;
  return family != Family::kMeta || (key != CopyMark::kMark && !key.starts_with(kNumberKey));
}

std::string CopyMark::text() const {
  return id + " " + std::to_string(number) + " " + kStates[static_cast<std::size_t>(state)];
}

std::optional<CopyMark> CopyMark::parse(std::string_view text) {
  CopyMark mark;
  std::string state;
  std::istringstream in{std::string(text)};
  in >> mark.id >> mark.number >> state;
  const auto known = std::ranges::find(kStates, state);
  if (!in || mark.id.empty() || known == kStates.end()) return std::nullopt;
  mark.state = static_cast<State>(known - kStates.begin());
  return mark;
}

Result<std::optional<CopyMark>> CopyMark::of(RecordDatabase& db) {
  const auto stored = db.get(Family::kMeta, kMark);
  if (stored.code() == Code::kNotFound) return std::optional<CopyMark>();
  QUIRE_RETURN_IF_ERROR(stored.status());
  const auto text = record::decode_opaque(*stored);
  return text.ok() ? parse(*text) : std::nullopt;
}

RecordWrite CopyMark::write() const {
  return {Family::kMeta, std::string(kMark), record::encode_opaque(text())};
}

RecordCopy::RecordCopy(const RocksDbTierOptions& options)
    : options_(options), path_(options.copy_path) {
  options_.max_bytes = 0;      // the copy is no part of the budget
  options_.copy_path.clear();  // nor has it a copy of its own
}

Status RecordCopy::open_database() {
  const auto open = [this]() -> Status {
    if (!folder_) {
      QUIRE_ASSIGN_OR_RETURN(StoreFolder folder, open_folder(path_));
      folder_.emplace(std::move(folder));
    }
    db_ = std::make_unique<RecordDatabase>(*folder_, options_);
    const Status status = db_->open();
    if (status.code() != Code::kCorruption) return status;
    QUIRE_RETURN_IF_ERROR(set_aside("it is damaged: " + status.message()));
    db_ = std::make_unique<RecordDatabase>(*folder_, options_);
    return db_->open();
  };
  Status status = open();
  if (status.ok()) return {};
  // It is no damage of the store itself.
  if (status.code() == Code::kCorruption) status = Status::io(status.message());
  return status.with_context("the copy of the record").with_field(kCopyField);
}

/// Closes the database, whose files stay in a folder of their own.
Status RecordCopy::set_aside(std::string_view why) {
  db_.reset();
  const auto kept = folder_->set_record_aside("earlier");
  if (!kept.ok()) return kept.status().with_field(kCopyField);
  log_warning("the copy of the record begins anew, and what it was is kept",
              {{"path", path_}, {"kept", *kept}, {"reason", std::string(why)}});
  return {};
}

Status RecordCopy::open(RecordDatabase& records, const StoreFolder& folder) {
  needed_ = records.found_lost_writes() || folder.wants_copy();
  // The ledger forgets lost writes, and this start may end before the copy has them back.
  if (needed_) QUIRE_RETURN_IF_ERROR(folder.say_wants_copy());
  Status status = open_database();
  if (status.ok()) status = settle(records, folder);
  // What else may be wrong with the copy is a mistake in the settings.
  const bool away = status.code() == Code::kIo || status.code() == Code::kNotFound ||
                    status.code() == Code::kResourceExhausted;
  if (away && status.field() == kCopyField) return go_without(records, status);
  QUIRE_RETURN_IF_ERROR(status);
  if (!behind()) db_->lost_writes_mended();
  folder.forget_restored();
  folder.forget_wants_copy();
  return {};
}

Status RecordCopy::leave(RecordDatabase& records, const StoreFolder& folder) {
  QUIRE_ASSIGN_OR_RETURN(const auto mark, CopyMark::of(records));
  Status said = mark ? say_behind(records, *mark) : Status();
  const bool whole = !folder.wants_copy() && records.lost_writes().count == 0;
  if (whole && said.code() == Code::kResourceExhausted) {
    log_warning("no room to note that the copy of the record is behind", {});
    said = {};
  }
  QUIRE_RETURN_IF_ERROR(said);
  folder.forget_wants_copy();
  return {};
}

/// Says in the records that the copy has nothing after their last write.
Status RecordCopy::say_behind(RecordDatabase& records, const CopyMark& mark) {
  if (mark.state == CopyMark::State::kBehind) return {};
  const CopyMark behind{mark.id, records.last_present(), CopyMark::State::kBehind};
  const RecordWrite write = behind.write();
  return records.write(std::span(&write, 1), Sync::kYes);
}

/// Goes on with the records alone, as after a write to the copy that failed. Returns `why` where
/// there never was a copy, as a wrong setting names none, and where the copy may have what the
/// records lack, which the next open could not tell from what was deleted since.
Status RecordCopy::go_without(RecordDatabase& records, const Status& why) {
  db_.reset();
  folder_.reset();
  QUIRE_ASSIGN_OR_RETURN(const auto mark, CopyMark::of(records));
  if (!mark) return why;
  if (needed_)
    return Status(why.code(),
                  why.message() +
                      "; the record has lost writes, which this copy may have: make "
                      "its disk readable, or go on with the record alone by "
                      "disk.record_copies = 1, without disk.copy_path",
                  kCopyField);
  // Before anything that the copy lacks is acknowledged.
  QUIRE_RETURN_IF_ERROR(say_behind(records, *mark));
  behind_ = true;
  log_error("the copy of the record cannot be opened: it is behind until the next start",
            {{"path", path_}, {"reason", why.to_string()}});
  return {};
}

/// Returns the number of the last write of the records that the copy has.
Result<std::uint64_t> RecordCopy::last_number() {
  std::uint64_t last = 0;
  const std::string end = std::string(kNumberKey.substr(0, kNumberKey.size() - 1)) + '0';
  QUIRE_RETURN_IF_ERROR(db_->scan(Family::kMeta, kNumberKey, end, /*descending=*/false,
                                  [&last](std::string_view, std::string_view value) {
                                    const auto text = record::decode_opaque(value);
                                    if (text.ok())
                                      last = std::max<std::uint64_t>(
                                          last, std::strtoull(text->c_str(), nullptr, 10));
                                    return true;
                                  }));
  return last;
}

Status RecordCopy::settle(RecordDatabase& records, const StoreFolder& folder) {
  const bool restored = folder.was_restored();
  QUIRE_ASSIGN_OR_RETURN(const auto of_records, CopyMark::of(records));
  QUIRE_ASSIGN_OR_RETURN(const bool new_records, is_empty(records));
  const std::uint64_t in_records = records.last_present();
  // Of a copy that cannot be read nothing is taken.
  const auto of_copy = CopyMark::of(*db_);
  const auto in_copy = last_number();
  const auto nothing = is_empty(*db_);
  const bool readable = of_copy.ok() && in_copy.ok() && nothing.ok();
  const bool same = readable && !restored && of_records && *of_copy &&
                    of_records->id == (*of_copy)->id;
  if (same && of_records->state == CopyMark::State::kClosed &&
      of_records->text() == (*of_copy)->text() && in_records == of_records->number + 1 &&
      db_->lost_writes().count == 0) {
    QUIRE_RETURN_IF_ERROR(begin(records, of_records->id));
    start_reading(records);
    return {};
  }
  const bool behind = of_records && of_records->state == CopyMark::State::kBehind;
  const bool lost = same && !behind && *in_copy > in_records;
  // The records went on without the copy before anyone knew that they had lost something.
  const bool parted = same && behind && of_records->number > 0 && *in_copy > of_records->number;
  const bool begins = readable && !restored && !of_records && new_records && *of_copy && !*nothing;
  needed_ = needed_ || lost || begins;
  // The next start does not take a record that is half brought back for a whole one.
  if (lost || begins) QUIRE_RETURN_IF_ERROR(folder.say_wants_copy());
  if (readable && of_records && !*of_copy && *nothing)
    log_warning("the copy of the record is not where it was, and is made anew", {{"path", path_}});
  if ((lost || begins) && db_->lost_writes().count == 0) {
    const Status whole = read_all();
    if (whole.ok()) return bring_back(records, **of_copy);
    log_error("the store has lost records, and their copy cannot be read whole",
              {{"path", path_}, {"reason", whole.message()}});
    QUIRE_RETURN_IF_ERROR(set_aside("it cannot be read: " + whole.message()));
  } else if (!readable) {
    QUIRE_RETURN_IF_ERROR(set_aside("it cannot be read"));
  } else if (!*nothing && (!same || parted || needed_)) {
    QUIRE_RETURN_IF_ERROR(set_aside("it is of another record, or has what that has lost"));
  }
  if (db_ == nullptr) QUIRE_RETURN_IF_ERROR(open_database());
  Alike copy(records, *db_);
  Status alike = copy.run();
  if (copy.from_failed()) return alike;
  if (alike.code() == Code::kCorruption) {
    QUIRE_RETURN_IF_ERROR(set_aside("it cannot be read: " + alike.message()));
    QUIRE_RETURN_IF_ERROR(open_database());
    Alike again(records, *db_);
    alike = again.run();
    if (again.from_failed()) return alike;
  }
  id_ = same ? of_records->id : new_id();
  if (!alike.ok()) {
    fall_behind(records, alike);
    return {};
  }
  if (copy.changes() > 0)
    log_info("the copy of the record is complete",
             {{"path", path_}, {"records", std::to_string(copy.changes())}});
  read_whole_ = true;
  return begin(records, id_);
}

/// Gives the records what the copy has, which was read whole.
Status RecordCopy::bring_back(RecordDatabase& records, const CopyMark& mark) {
  Alike back(*db_, records);
  const Status status = back.run();
  if (!status.ok())
    return back.from_failed() && status.code() == Code::kCorruption
               ? Status::io("the copy of the record: " + status.message())
               : status;
  brought_back_ = back.changes();
  log_warning("records that the store had lost are back from their copy",
              {{"path", path_}, {"records", std::to_string(brought_back_)}});
  QUIRE_RETURN_IF_ERROR(begin(records, mark.id));
  records.lost_writes_mended();
  return {};
}

/// Says in both that they are alike, first in the copy, whose numbers begin anew.
Status RecordCopy::begin(RecordDatabase& records, std::string id) {
  id_ = std::move(id);
  const std::uint64_t number = records.last_write();
  const CopyMark mark{id_, number, CopyMark::State::kOpen};
  std::vector<RecordWrite> writes = {mark.write()};
  Status status = db_->scan(
      Family::kMeta, kNumberKey, std::string(kNumberKey.substr(0, kNumberKey.size() - 1)) + '0',
      /*descending=*/false, [&writes](std::string_view key, std::string_view) {
        writes.push_back({Family::kMeta, std::string(key), std::nullopt});
        return true;
      });
  writes.push_back(number_write(number + 1));  // writing the mark is a write of the records
  if (status.ok()) status = db_->write(writes, Sync::kYes);
  if (!status.ok()) {
    fall_behind(records, status);
    return {};
  }
  const RecordWrite write = mark.write();
  return records.write(std::span(&write, 1), Sync::kYes);
}

void RecordCopy::write(RecordDatabase& records, std::span<const RecordWrite> writes, Sync sync,
                       std::uint64_t number) {
  if (behind()) return;
  std::vector<RecordWrite> numbered;
  if (number > 0) {
    numbered.assign(writes.begin(), writes.end());
    numbered.push_back(number_write(number));
    writes = numbered;
  }
  const Status status = db_->write(writes, sync);
  if (!status.ok()) fall_behind(records, status);
}

/// Reads every record once, unless it is closed before.
Status RecordCopy::read_all() {
  for (const Family family : kFamilies) {
    const auto it = db_->iterate(family);
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      if (closing_.load(std::memory_order_relaxed)) return {};
    }
    QUIRE_RETURN_IF_ERROR(to_status(it->status(), "read it"));
  }
  read_whole_ = true;
  return {};
}

void RecordCopy::start_reading(RecordDatabase& records) {
  try {
    reader_ = std::thread([this, &records] {
      try {
        const Status read = read_all();
        if (!read.ok()) fall_behind(records, read);
      } catch (...) {
        log_warning("the copy of the record could not be read whole for want of memory",
                    {{"path", path_}});
      }
    });
  } catch (const std::system_error&) {
    log_warning("the copy of the record is not read whole: no thread can be started",
                {{"path", path_}});
  }
}

void RecordCopy::stop_reading() {
  closing_ = true;
  if (reader_.joinable()) reader_.join();
}

void RecordCopy::fall_behind(RecordDatabase& records, const Status& why) {
  const std::lock_guard lock(behind_mu_);
  if (behind()) return;
  // Before anything that the copy lacks is acknowledged.
  const RecordWrite mark = CopyMark{id_, 0, CopyMark::State::kBehind}.write();
  const Status said = records.write(std::span(&mark, 1), Sync::kYes);
  behind_.store(true);
  log_error("the copy of the record cannot be kept: it is behind until the next start",
            {{"path", path_}, {"reason", why.to_string()}});
  if (!said.ok()) log_error("the record cannot say so", {{"reason", said.to_string()}});
}

void RecordCopy::close(RecordDatabase& records) {
  stop_reading();
  if (db_ == nullptr || !db_->is_open()) return;
  if (!id_.empty() && !behind() && !compare_) {
    const CopyMark mark{id_, records.last_write(), CopyMark::State::kClosed};
    const RecordWrite in_copy[] = {mark.write(), number_write(mark.number + 1)};
    Status status = db_->flush();
    if (status.ok()) status = db_->write(in_copy, Sync::kYes);
    if (status.ok()) status = records.write(std::span(in_copy, 1), Sync::kYes);
    if (!status.ok())
      log_warning("the copy of the record was not closed, the next start compares it",
                  {{"reason", status.to_string()}});
  }
  db_->close();
  folder_->seal();
}

std::int64_t newest_in_ledger(const StoreFolder& folder) {
  std::int64_t newest = 0;
  for (const std::string& path : {folder.ledger(), folder.ledger_twin()}) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    for (const WriteLedger::Entry& entry : WriteLedger::parse(bytes))
      newest = std::max(newest, entry.ms);
  }
  return newest;
}

std::unique_ptr<RecordDatabase> open_whole_copy(const StoreFolder& folder, std::string* why,
                                                std::int64_t* last_ms) {
  RocksDbTierOptions options;
  options.read_only = true;
  auto db = std::make_unique<RecordDatabase>(folder, options);
  Status status = db->open();
  if (status.ok()) {
    const auto mark = CopyMark::of(*db);
    status = mark.status();
    if (mark.ok() && !*mark) status = Status::corruption("it is no complete copy of a record");
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
  *last_ms = newest_in_ledger(folder);
  return db;
}

}  // namespace quire::rocksdb_internal
