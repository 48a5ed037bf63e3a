#include "cachestore/disk/rocksdb_records.h"

#include <rocksdb/metadata.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "cachestore/disk/log/manifest_note.h"
#include "cachestore/disk/rocksdb_backup.h"
#include "cachestore/disk/rocksdb_layout1.h"

#if defined(__SANITIZE_THREAD__)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace quire::rocksdb_internal {
namespace {

/// Hides RocksDB's synchronization from the thread sanitizer, which RocksDB is not built for.
class ForeignSection {
 public:
#if defined(__SANITIZE_THREAD__)
  ForeignSection() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~ForeignSection() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  ForeignSection() {}  // not defaulted, to avoid an unused-variable warning
#endif
  ForeignSection(const ForeignSection&) = delete;
  ForeignSection& operator=(const ForeignSection&) = delete;
};

using ::rocksdb::Slice;

enum Cf : std::size_t { kDefaultCf = 0, kCatalogCf, kJobsCf, kMetaCf, kExtentsCf, kNumCfs };
constexpr std::array<const char*, kNumCfs> kCfNames = {"default", "catalog", "jobs", "meta",
                                                       "extents"};
constexpr std::array<Cf, 4> kRecordCfs = {kCatalogCf, kJobsCf, kMetaCf, kExtentsCf};

Cf family_cf(Family f) {
  return f == Family::kCatalog ? kCatalogCf : f == Family::kJobs ? kJobsCf : kMetaCf;
}
constexpr std::int64_t kReopenMs = 1000;
Slice slice(std::string_view s) { return {s.data(), s.size()}; }
std::string_view view(const Slice& s) { return {s.data(), s.size()}; }

std::int64_t system_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

void log_lost(const char* what, const std::string& path, const LostWrites& lost) {
  log_error(what, {{"path", path},
                   {"writes", (lost.at_least ? "at least " : "") + std::to_string(lost.count)},
                   {"first_unix_ms", std::to_string(lost.first_ms)},
                   {"last_unix_ms", std::to_string(lost.last_ms)}});
}

/// Returns the segment of a placement's key.
std::optional<SegmentId> segment_of(std::string_view key) {
  if (key.size() != 8) return std::nullopt;
  SegmentId id = 0;
  for (const char c : key) id = (id << 8) | static_cast<unsigned char>(c);
  return id;
}

}  // namespace

std::string placement_key(SegmentId id) {
  std::string key;
  for (int i = 7; i >= 0; --i) key += static_cast<char>(id >> (8 * i));
  return key;
}

RecordDatabase::RecordDatabase(const StoreFolder& folder, const RocksDbTierOptions& options)
    : folder_(folder),
      options_(options),
      sizes_(sizing_bytes(options)),
      files_(std::make_shared<RecordFiles>()) {}

void RecordDatabase::close() {
  if (!db_) return;
  // Failures are ignored: everything acknowledged is already synced.
  for (auto* h : handles_) (void)db_->DestroyColumnFamilyHandle(h);
  (void)db_->Close();
  db_.reset();
}

Status RecordDatabase::open() {
  QUIRE_RETURN_IF_ERROR(open_database(options_.read_only));
  losses_.open(folder_.lost_writes());
  if (options_.read_only) return {};
  if (const LostWrites earlier = losses_.shown(); earlier.count > 0)
    log_lost(
        "an earlier start found that writes are lost, and no service was ready since to say so",
        folder_.db(), earlier);
  QUIRE_RETURN_IF_ERROR(ledger_.open(folder_.ledger(), losses_.compared(), folder_.ledger_twin()));
  return check_ledger(torn_writes());
}

std::optional<std::array<::rocksdb::ColumnFamilyHandle*, 2>> RecordDatabase::layout1_handles()
    const {
  if (handles_.size() <= kNumCfs) return std::nullopt;
  return std::array{handles_[kNumCfs], handles_[kNumCfs + 1]};
}

Status RecordDatabase::open_database(bool read_only) {
  ::rocksdb::DBOptions db_opts = db_options(options_);
  db_opts.listeners.push_back(files_);
  std::vector<std::string> present;
  check_ = std::make_unique<RecordCheck>(folder_, read_only);
  QUIRE_ASSIGN_OR_RETURN(const bool there, check_->check_files());
  if (there) {
    const auto status = ::rocksdb::DB::ListColumnFamilies(db_opts, folder_.db(), &present);
    if (!status.ok())
      return open_status(status, "open the store in '" + folder_.root() + "'")
          .with_field("disk.path");
  }
  const auto has = [&](const char* name) {
    return std::find(present.begin(), present.end(), name) != present.end();
  };
  std::vector<::rocksdb::ColumnFamilyDescriptor> families;
  const auto cache = record_cache();
  for (const char* name : kCfNames) {
    // A program that only reads creates nothing.
    if (read_only && name == kCfNames[kExtentsCf] && !has(name)) continue;
    families.emplace_back(name, record_options(options_, cache));
  }
  const bool both = has(kLayout1Families[0]) && has(kLayout1Families[1]),
             one = has(kLayout1Families[0]) || has(kLayout1Families[1]);
  const bool layout1 = both || (one && !read_only);
  if (layout1) {
    families.emplace_back(kLayout1Families[0], layout1_options(folder_.values()));
    families.emplace_back(kLayout1Families[1], layout1_options(folder_.sketches()));
  }
  if (there) QUIRE_RETURN_IF_ERROR(check_->check_gaps(db_opts, families));
  db_opts.wal_filter = check_->filter();
  for (;;) {
    ::rocksdb::DB* db = nullptr;
    const auto status = read_only
                            ? ::rocksdb::DB::OpenForReadOnly(db_opts, folder_.db(), families,
                                                             &handles_, &db)
                            : ::rocksdb::DB::Open(db_opts, folder_.db(), families, &handles_, &db);
    db_.reset(db);
    if (status.ok()) break;
    handles_.clear();
    bool again = layout1 && (status.IsCorruption() || status.IsPathNotFound()) &&
                 drop_damaged_files(folder_, options_, status.ToString(), db_opts, families);
    if (!again && status.IsCorruption() &&
        db_opts.wal_recovery_mode != ::rocksdb::WALRecoveryMode::kPointInTimeRecovery) {
      QUIRE_ASSIGN_OR_RETURN(again, check_->only_the_end_is_torn(db_opts, families));
      db_opts.wal_recovery_mode = ::rocksdb::WALRecoveryMode::kPointInTimeRecovery;
    }
    if (!again)
      return open_status(status, "open the store in '" + folder_.root() + "'")
          .with_field("disk.path");
  }
  if (families.size() < kNumCfs || families[kExtentsCf].name != kCfNames[kExtentsCf])
    handles_.insert(handles_.begin() + kExtentsCf, nullptr);
  if (!read_only) note_manifest();
  return {};
}

/// Notes how long the manifest is, of which all edits are on stable storage.
void RecordDatabase::note_manifest() const {
  std::vector<std::string> files;
  std::uint64_t bytes = 0;
  if (!db_->GetLiveFiles(files, &bytes, /*flush_memtable=*/false).ok()) return;
  const auto file = std::ranges::find_if(
      files, [](const std::string& name) { return name.starts_with("/MANIFEST-"); });
  if (file == files.end()) return;
  ManifestNote{file->substr(1), bytes, record_identity(folder_.db())}.write(folder_.edits());
}

/// Says how many acknowledged writes the log has lost, if any, and has the ledger begin anew.
/// `torn` writes were left out with the end of the log.
Status RecordDatabase::check_ledger(std::uint64_t torn) {
  LostWrites lost = ledger_.compare(kNumFamilies, [this](int family, std::size_t slot) {
    return slot_number(*db_, handles_[family_cf(Family(family))], slot);
  });
  if (lost.count > 0)
    log_lost(
        "acknowledged writes are lost: the log of the store was cut, emptied, deleted or replaced "
        "by an older one; documents written, changed or deleted in this time are as they were "
        "before",
        folder_.db(), lost);
  else
    lost.count = lost.torn = torn;  // when they were is not known
  found_lost_ = lost.count > 0;
  return found_lost_ && !keep_lost(lost) ? Status() : ledger_.forget();
}

/// Keeps a loss until it is told. Returns whether the ledger may forget it.
bool RecordDatabase::keep_lost(const LostWrites& lost) {
  // A start may end before it has looked into the copy.
  Status kept = options_.copy_path.empty() ? Status() : folder_.say_wants_copy();
  const Status noted = losses_.add(lost, ledger_.last());
  if (kept.ok()) kept = noted;
  if (!kept.ok())
    log_warning("lost writes cannot be noted: the next start may count them once more",
                {{"path", folder_.db()}, {"reason", kept.to_string()}});
  return kept.ok();
}

Status RecordDatabase::drop_layout1() {
  while (handles_.size() > kNumCfs) {
    QUIRE_RETURN_IF_ERROR(
        to_status(db_->DropColumnFamily(handles_.back()), "remove the old layout"));
    (void)db_->DestroyColumnFamilyHandle(handles_.back());
    handles_.pop_back();
  }
  return {};
}

bool RecordDatabase::resume_after_failure() {
  if (!failed_ && !files_->has_failed()) return false;
  const std::unique_lock lock(resume_mu_, std::try_to_lock);
  return lock.owns_lock() && resume();
}

Status RecordDatabase::recover(bool* reopened) {
  const std::lock_guard lock(resume_mu_);
  *reopened = resume();
  return failed_ ? not_yet() : Status();
}

/// Returns why the record cannot be written before it was opened again.
Status RecordDatabase::not_yet() const {
  return full_ ? Status::exhausted(
                     "the disk is full: the record is opened again as soon as there is room; free "
                     "some space and try again")
               : Status::io("the record is about to be opened again after an error of the disk");
}

/// Goes on after a write that failed, if any. Returns whether the database was opened again.
bool RecordDatabase::resume() {
  const bool stopped = files_->take_failure(), failed = failed_.exchange(false);
  if (!failed && !stopped) return false;
  bool again = false;
  {
    const std::shared_lock lock(open_mu_);
    const auto status = db_ ? db_->Resume() : ::rocksdb::Status::Aborted();
    if (status.ok() && !reads_only_) {
      // RocksDB goes on, but a write that failed may be in the log, or in memory under numbers that
      // later writes get, too. Opening the database decides. Those who have a store of layout 1
      // keep handles.
      if (!failed || handles_.size() > kNumCfs) return false;
      undecided_ = again = true;
    } else {
      again = !db_ || reads_only_ || status.severity() >= ::rocksdb::Status::Severity::kFatalError;
    }
  }
  if (again && reopen().ok()) {
    undecided_ = false;
    return true;
  }
  failed_ = true;
  return false;
}

/// Opens the database once more. All that was acknowledged is in its files.
Status RecordDatabase::reopen() {
  using namespace std::chrono;
  const std::int64_t now = duration_cast<milliseconds>(steady_clock::now().time_since_epoch())
                               .count();
  if (now - reopened_ms_ < kReopenMs) return Status::io("the record was opened just now");
  const std::unique_lock lock(open_mu_, std::try_to_lock);
  // Those who have a store of layout 1 keep handles.
  if (!lock.owns_lock() || handles_.size() > kNumCfs) return Status::io("the record is in use");
  reopened_ms_ = now;
  close();
  handles_.clear();
  const Status status = open_database(/*read_only=*/false);
  reads_only_ = !status.ok();
  full_ = status.code() == Code::kResourceExhausted;
  if (status.ok()) {
    log_warning("the record was opened again after an error of the disk", {{"path", folder_.db()}});
    // Later writes would take the slots of what the log has lost. Nobody writes meanwhile, and a
    // write in its torn end is one that failed.
    ledger_.read(losses_.compared());
    if (const Status s = check_ledger(/*torn=*/0); !s.ok())
      log_warning("the ledger of writes cannot begin anew",
                  {{"path", folder_.ledger()}, {"reason", s.to_string()}});
    return {};
  }
  log_error("the record cannot be written any more after an error of the disk",
            {{"path", folder_.db()}, {"reason", status.to_string()}});
  handles_.clear();
  if (const Status reads = open_database(/*read_only=*/true); !reads.ok())
    log_error("the record cannot be read any more",
              {{"path", folder_.db()}, {"reason", reads.to_string()}});
  return status;
}

Status RecordDatabase::check_open() const {
  return db_ ? Status() : Status::io("the record could not be opened again: see the log");
}

Status RecordDatabase::check_written(const ::rocksdb::Status& status, std::string_view what) {
  Status out = to_status(status, what);
  if (out.ok()) return out;
  if (!reads_only_) full_ = out.code() == Code::kResourceExhausted;
  failed_ = true;
  return out;
}

Status RecordDatabase::write(std::span<const RecordWrite> writes, Sync sync, std::uint64_t* given) {
  if (given != nullptr) *given = 0;
  if (undecided_ || reads_only_) return not_yet();
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  ::rocksdb::WriteBatch batch;
  for (const auto& w : writes) {
    files_->add_written(w.key.size() + (w.value ? w.value->size() : 0) + 64);
    auto* cf = handles_[family_cf(w.family)];
    const auto s = w.value ? batch.Put(cf, slice(w.key), slice(*w.value))
                           : batch.Delete(cf, slice(w.key));
    QUIRE_RETURN_IF_ERROR(to_status(s, "prepare a write"));
  }
  ::rocksdb::WriteOptions o;
  o.sync = sync == Sync::kYes;
  if (!o.sync || writes.empty()) {
    const ForeignSection foreign;
    return check_written(db_->Write(o, &batch), "write to the store");
  }
  WriteLedger::Turn turn = ledger_.next();
  const std::uint64_t number = turn.number;
  const std::string key = WriteLedger::slot_key(number % WriteLedger::kSlots),
                    value = WriteLedger::slot_value(number);
  WriteLedger::Families families = 0;
  for (const auto& w : writes) families |= 1U << static_cast<unsigned>(w.family);
  for (int f = 0; f < kNumFamilies; ++f) {
    if ((families >> f & 1) == 0) continue;
    files_->add_written(key.size() + value.size() + 64);
    QUIRE_RETURN_IF_ERROR(
        to_status(batch.Put(handles_[family_cf(Family(f))], key, value), "prepare a write"));
  }
  ::rocksdb::Status written;
  {
    const ForeignSection foreign;
    written = db_->Write(o, &batch);
  }
  turn.lock.unlock();
  QUIRE_RETURN_IF_ERROR(check_written(written, "write to the store"));
  if (given != nullptr) *given = number;
  ledger_.add(number, families, system_ms());
  if (files_->take_edit()) note_manifest();
  return {};
}

Result<std::string> RecordDatabase::get(Family family, std::string_view key) {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  std::string value;
  const auto s = db_->Get(::rocksdb::ReadOptions(), handles_[family_cf(family)], slice(key),
                          &value);
  if (s.IsNotFound()) return Status::not_found("no such record");
  QUIRE_RETURN_IF_ERROR(to_status(s, "read a record"));
  return value;
}

Status RecordDatabase::scan(Family family, std::string_view begin, std::string_view end,
                            bool descending, const DiskTier::ScanFn& fn) {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  ::rocksdb::ReadOptions o;
  const Slice lower = slice(begin), upper = slice(end);
  if (!begin.empty()) o.iterate_lower_bound = &lower;
  if (!end.empty()) o.iterate_upper_bound = &upper;
  std::unique_ptr<::rocksdb::Iterator> it(db_->NewIterator(o, handles_[family_cf(family)]));
  descending ? it->SeekToLast() : it->SeekToFirst();
  for (; it->Valid(); descending ? it->Prev() : it->Next()) {
    if (WriteLedger::is_slot_key(view(it->key()))) continue;
    if (!fn(view(it->key()), view(it->value()))) break;
  }
  return to_status(it->status(), "read the catalog");
}

std::unique_ptr<::rocksdb::Iterator> RecordDatabase::iterate(Family family) {
  ::rocksdb::ReadOptions o;
  o.fill_cache = false;
  return std::unique_ptr<::rocksdb::Iterator>(db_->NewIterator(o, handles_[family_cf(family)]));
}

std::uint64_t RecordDatabase::last_present() {
  return WriteLedger::last_present(kNumFamilies, [this](int family, std::size_t slot) {
    return slot_number(*db_, handles_[family_cf(Family(family))], slot);
  });
}

Result<LostWrites> RecordDatabase::look_for_lost_writes() {
  WriteLedger ledger;
  QUIRE_RETURN_IF_ERROR(ledger.open(folder_.ledger(), losses_.compared(), folder_.ledger_twin()));
  LostWrites lost = losses_.shown();
  lost.add(ledger.compare(kNumFamilies, [this](int family, std::size_t slot) {
    return slot_number(*db_, handles_[family_cf(Family(family))], slot);
  }));
  return lost;
}

Status RecordDatabase::scan_placements(const PlacementFn& fn) {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  if (!handles_[kExtentsCf]) return {};
  const std::unique_ptr<::rocksdb::Iterator> it(
      db_->NewIterator(::rocksdb::ReadOptions(), handles_[kExtentsCf]));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    fn(view(it->key()), segment_of(view(it->key())), view(it->value()));
  }
  return to_status(it->status(), "read the list of extents");
}

Status RecordDatabase::drop_placements() {
  auto*& handle = handles_[kExtentsCf];
  QUIRE_RETURN_IF_ERROR(to_status(db_->DropColumnFamily(handle), "drop the list of extents"));
  (void)db_->DestroyColumnFamilyHandle(handle);
  return to_status(db_->CreateColumnFamily(record_options(options_, record_cache()),
                                           kCfNames[kExtentsCf], &handle),
                   "begin the list of extents anew");
}

Status RecordDatabase::put_placement(SegmentId id, const Placement& placement, Sync sync) {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  const std::string key = placement_key(id), value = record::encode_placement(placement);
  files_->add_written(key.size() + value.size() + 64);
  ::rocksdb::WriteOptions o;
  o.sync = sync == Sync::kYes;
  const ForeignSection foreign;
  return check_written(db_->Put(o, handles_[kExtentsCf], key, value), "add a segment to the store");
}

Status RecordDatabase::erase_placement(SegmentId id) {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  files_->add_written(64);
  const ForeignSection foreign;
  return check_written(
      db_->Delete(::rocksdb::WriteOptions(), handles_[kExtentsCf], placement_key(id)),
      "free segment " + std::to_string(id));
}

Status RecordDatabase::erase_placements(std::span<const std::string> keys) {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  ::rocksdb::WriteBatch batch;
  for (const auto& key : keys) {
    QUIRE_RETURN_IF_ERROR(to_status(batch.Delete(handles_[kExtentsCf], key), "prepare a write"));
  }
  return to_status(db_->Write(::rocksdb::WriteOptions(), &batch), "forget lost segments");
}

DiskUsage RecordDatabase::usage() {
  const std::shared_lock lock(open_mu_);
  return files_->get([this] {
    DiskUsage measured;
    measured.catalog_bytes = folder_.catalog_bytes();
    if (!db_) return measured;
    std::uint64_t rewrite = sizes_.rewrite;
    for (auto* handle : record_handles()) {
      ::rocksdb::ColumnFamilyMetaData meta;
      db_->GetColumnFamilyMetaData(handle, &meta);
      std::uint64_t young = 0;  // rewriting level 0 into level 1 takes both at once
      for (const auto& level : meta.levels) young += level.level <= 1 ? level.size : 0;
      rewrite = std::max(rewrite, young);
    }
    measured.headroom_bytes = rewrite + 2 * sizes_.wal + manifest_limit(options_);
    return measured;
  });
}

std::vector<::rocksdb::ColumnFamilyHandle*> RecordDatabase::record_handles() const {
  std::vector<::rocksdb::ColumnFamilyHandle*> out;
  for (const Cf cf : kRecordCfs) {
    if (handles_[cf]) out.push_back(handles_[cf]);
  }
  return out;
}

Result<BackupReport> RecordDatabase::backup(const std::string& folder, std::uint32_t keep) {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  return add_backup(*db_, folder, keep);
}

Status RecordDatabase::flush() {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  return check_written(db_->Flush(::rocksdb::FlushOptions(), record_handles()),
                       "flush the catalog");
}

Status RecordDatabase::compact() {
  const std::shared_lock lock(open_mu_);
  QUIRE_RETURN_IF_ERROR(check_open());
  ::rocksdb::CompactRangeOptions o;
  o.bottommost_level_compaction = ::rocksdb::BottommostLevelCompaction::kForceOptimized;
  for (auto* handle : record_handles()) {
    QUIRE_RETURN_IF_ERROR(
        check_written(db_->CompactRange(o, handle, nullptr, nullptr), "compact the catalog"));
  }
  return {};
}

}  // namespace quire::rocksdb_internal
