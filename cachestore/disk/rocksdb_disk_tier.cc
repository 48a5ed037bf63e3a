#include "cachestore/disk/rocksdb_disk_tier.h"

#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/metadata.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/disk/extent_files.h"
#include "cachestore/disk/log_order.h"
#include "cachestore/disk/rocksdb_backup.h"
#include "cachestore/disk/rocksdb_layout1.h"
#include "cachestore/disk/rocksdb_options.h"
#include "cachestore/disk/write_ledger.h"
#include "cachestore/format/placement.h"

#if defined(__SANITIZE_THREAD__)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace quire {
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

using namespace rocksdb_internal;  // NOLINT: the settings of this very tier
using record::Part;
using record::ValueName;
using ::rocksdb::Slice;

enum Cf : std::size_t { kDefaultCf = 0, kCatalogCf, kJobsCf, kMetaCf, kExtentsCf, kNumCfs };
constexpr std::array<const char*, kNumCfs> kCfNames = {"default", "catalog", "jobs", "meta",
                                                       "extents"};
constexpr std::array<Cf, 4> kRecordCfs = {kCatalogCf, kJobsCf, kMetaCf, kExtentsCf};

Cf family_cf(Family f) {
  return f == Family::kCatalog ? kCatalogCf : f == Family::kJobs ? kJobsCf : kMetaCf;
}
constexpr int kNumFamilies = 3;
Slice slice(std::string_view s) { return {s.data(), s.size()}; }
std::string_view view(const Slice& s) { return {s.data(), s.size()}; }

std::int64_t system_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

/// Returns whether a folder has files of a database besides CURRENT.
bool holds_record(const std::string& db) {
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(db, ec)) {
    const std::string name = e.path().filename().string();
    if (name.starts_with("MANIFEST-") || name.ends_with(".sst") || name.ends_with(".log"))
      return true;
  }
  return false;
}

/// Key of a placement: the segment, big-endian.
std::string placement_key(SegmentId id) {
  std::string key;
  for (int i = 7; i >= 0; --i) key += static_cast<char>(id >> (8 * i));
  return key;
}
std::optional<SegmentId> segment_of(std::string_view key) {
  if (key.size() != 8) return std::nullopt;
  SegmentId id = 0;
  for (const char c : key) id = (id << 8) | static_cast<unsigned char>(c);
  return id;
}

/// Returns the number in a slot of a family, as WriteLedger::SlotReader does.
std::uint64_t slot_number(::rocksdb::DB& db, ::rocksdb::ColumnFamilyHandle* handle,
                          std::size_t slot) {
  std::string value;
  const auto s = db.Get(::rocksdb::ReadOptions(), handle, WriteLedger::slot_key(slot), &value);
  return s.ok() ? WriteLedger::slot_number(value) : s.IsNotFound() ? 0 : WriteLedger::kUnreadable;
}

/// Values are read with one call while they are at most this far apart and this long in all.
constexpr std::uint64_t kGapBytes = 4 << 10, kRunBytes = 512 << 10;
static_assert(kRunBytes < ExtentFiles::kWriteBytes);

/// Writes one value as ValueSlots lays it out.
Status write_slot(ExtentFiles::Writer& writer, const ValueBuffer& value) {
  const auto stored = value.stored();
  QUIRE_RETURN_IF_ERROR(writer.write_zeros(ValueSlots::kLead));
  QUIRE_RETURN_IF_ERROR(writer.write(stored));
  return writer.write_zeros(ValueSlots::slot_bytes(value.payload().size()) - ValueSlots::kLead -
                            stored.size());
}

/// Remembers the size of the records' files, which costs a look at each of them, until RocksDB
/// adds or removes one.
class RecordFiles final : public ::rocksdb::EventListener {
 public:
  void OnFlushCompleted(::rocksdb::DB*, const ::rocksdb::FlushJobInfo&) override { ++changes_; }
  void OnCompactionCompleted(::rocksdb::DB*, const ::rocksdb::CompactionJobInfo&) override {
    ++changes_;
  }
  void OnTableFileCreated(const ::rocksdb::TableFileCreationInfo&) override { ++changes_; }
  void OnTableFileDeleted(const ::rocksdb::TableFileDeletionInfo&) override { ++changes_; }
  void OnMemTableSealed(const ::rocksdb::MemTableInfo&) override { ++changes_; }
  /// RocksDB itself would look for free space every five seconds, and refuse Resume() meanwhile.
  void OnErrorRecoveryBegin(::rocksdb::BackgroundErrorReason, ::rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
    failed_ = true;
  }
  /// Returns whether RocksDB has stopped writing since the last call.
  bool take_failure() { return failed_.exchange(false); }

  void add_written(std::uint64_t bytes) { written_ += bytes; }
  /// Returns what `measure` returned last, with what the log has grown since.
  template <class Measure>
  DiskUsage get(Measure&& measure) {
    std::lock_guard lock(mu_);
    const std::uint64_t changes = changes_, written = written_;
    if (changes != seen_ || written - measured_at_ > kStale) {
      last_ = measure();
      seen_ = changes;
      measured_at_ = written;
    }
    DiskUsage usage = last_;
    // The log grows by whole blocks.
    usage.catalog_bytes += written - measured_at_ + 4096;
    return usage;
  }

 private:
  static constexpr std::uint64_t kStale = 1u << 20;  // bytes
  std::atomic<std::uint64_t> changes_{1}, written_{0};
  std::atomic<bool> failed_{false};
  std::mutex mu_;
  DiskUsage last_;                            // guarded by mu_
  std::uint64_t seen_ = 0, measured_at_ = 0;  // guarded by mu_
};

class RocksDbTier final : public DiskTier {
 public:
  RocksDbTier(StoreFolder folder, const RocksDbTierOptions& options)
      : folder_(std::move(folder)),
        options_(options),
        sizes_(rocksdb_internal::sizing_bytes(options)),
        files_(std::make_shared<RecordFiles>()) {}
  ~RocksDbTier() override {
    if (!db_) return;
    layout1_.reset();
    // The destructor ignores failures
    for (auto* h : handles_) (void)db_->DestroyColumnFamilyHandle(h);
    (void)db_->Close();  // everything acknowledged is already synced
    db_.reset();
    if (!options_.read_only) folder_.seal();
  }

  Status open();

  Status write(std::span<const RecordWrite> writes, Sync sync) override;
  Result<std::string> get(Family family, std::string_view key) override;
  Status scan(Family family, std::string_view begin, std::string_view end, bool descending,
              const ScanFn& fn) override;
  Result<std::uint64_t> write_segment(SegmentId id, std::span<const Value> values) override;
  Result<std::shared_ptr<ValueBuffer>> read(const ValueName& name) override;
  std::vector<Result<std::shared_ptr<ValueBuffer>>> read_some(
      std::span<const ValueName> names) override;
  Status delete_segment(SegmentId id) override;
  Result<std::vector<StoredSegment>> list_segments() override;
  std::vector<SegmentId> segments_to_move(std::size_t at_most) override;
  Result<std::uint64_t> move_segment(const SegmentInfo& info) override;
  Result<BackupReport> backup(const std::string& folder, std::uint32_t keep) override {
    return add_backup(*db_, folder, keep);
  }
  LostWrites lost_writes() const override { return lost_; }
  DiskUsage usage() override;
  std::uint64_t free_bytes() override { return folder_.free_bytes(); }
  Status flush_records() override;
  Status compact_records() override;

 private:
  Status open_database();
  bool only_the_end_is_torn(::rocksdb::DBOptions options,
                            const std::vector<::rocksdb::ColumnFamilyDescriptor>& families);
  Status drop_layout1();
  Status check_ledger();
  Status forget_placements(const ::rocksdb::Status& why, std::vector<std::string>* bad);
  Status read_placements();
  void resume_after_failure();
  Status check_written(const ::rocksdb::Status& status, std::string_view what);
  Status put_placement(SegmentId id, const Placement& placement, Sync sync);
  std::optional<std::pair<ExtentRange, ValueSlots::Slot>> place_of(const ValueName& name) const;
  bool is_at(SegmentId id, const ExtentRange& range) const;
  void add_resident(SegmentId id, std::uint32_t extent);  // places_mu_ held
  void remove_resident(std::uint32_t extent);             // places_mu_ held
  Result<Placement> copy_from_layout1(const SegmentInfo& info);
  std::vector<::rocksdb::ColumnFamilyHandle*> record_handles() const;

  StoreFolder folder_;  // holds the lock: outlives db_
  const RocksDbTierOptions options_;
  const RecordSizes sizes_;
  std::shared_ptr<RecordFiles> files_;
  std::unique_ptr<::rocksdb::DB> db_;
  /// By Cf; then those of layout 1. A store opened read-only may lack kExtentsCf (null).
  std::vector<::rocksdb::ColumnFamilyHandle*> handles_;
  std::unique_ptr<Layout1Segments> layout1_;  // null: the store has none
  std::unique_ptr<ExtentFiles> extents_;
  mutable std::shared_mutex places_mu_;
  std::unordered_map<SegmentId, Placement> places_;  // guarded by places_mu_
  /// The segments of one extent: those that were put there, and how many of them still are.
  struct Residents {
    std::vector<SegmentId> ids;
    std::size_t live = 0;
  };
  std::unordered_map<std::uint32_t, Residents> residents_;  // guarded by places_mu_
  WriteLedger ledger_;                                      // not used by a store opened read-only
  LostWrites lost_;
  std::uint64_t torn_writes_ = 0;    // in a part of the log that was left out
  std::atomic<bool> failed_{false};  // a write failed: RocksDB may reject more until resumed
};

Status RocksDbTier::open() {
  QUIRE_RETURN_IF_ERROR(open_database());
  if (!options_.read_only) QUIRE_RETURN_IF_ERROR(check_ledger());
  if (layout1_ && layout1_->empty() && !options_.read_only) QUIRE_RETURN_IF_ERROR(drop_layout1());
  return read_placements();
}

Status RocksDbTier::open_database() {
  ::rocksdb::DBOptions db_opts = db_options(options_);
  db_opts.listeners.push_back(files_);
  std::vector<std::string> present;
  const bool there = std::filesystem::exists(folder_.db() + "/CURRENT");
  // RocksDB would begin a new record and delete what is left of the old one.
  if (!there && holds_record(folder_.db()))
    return Status(Code::kCorruption,
                  "the record in '" + folder_.db() + "' has lost CURRENT, which names its manifest",
                  "disk.path");
  if (const auto logs = misplaced_logs(folder_.db()); !logs.empty())
    return Status(Code::kCorruption,
                  "the log " + logs.front() + " of the record in '" + folder_.db() +
                      "' has the content of another one",
                  "disk.path");
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
    if (options_.read_only && name == kCfNames[kExtentsCf] && !has(name)) continue;
    families.emplace_back(name, record_options(options_, cache));
  }
  const bool both = has(kLayout1Families[0]) && has(kLayout1Families[1]),
             one = has(kLayout1Families[0]) || has(kLayout1Families[1]);
  const bool layout1 = both || (one && !options_.read_only);
  if (layout1) {
    families.emplace_back(kLayout1Families[0], layout1_options(folder_.values()));
    families.emplace_back(kLayout1Families[1], layout1_options(folder_.sketches()));
  }
  for (;;) {
    ::rocksdb::DB* db = nullptr;
    const auto status = options_.read_only
                            ? ::rocksdb::DB::OpenForReadOnly(db_opts, folder_.db(), families,
                                                             &handles_, &db)
                            : ::rocksdb::DB::Open(db_opts, folder_.db(), families, &handles_, &db);
    db_.reset(db);
    if (status.ok()) break;
    handles_.clear();
    bool again = layout1 && (status.IsCorruption() || status.IsPathNotFound()) &&
                 drop_damaged_files(folder_, options_, status.ToString(), db_opts, families);
    if (!again && status.IsCorruption() &&
        db_opts.wal_recovery_mode != ::rocksdb::WALRecoveryMode::kPointInTimeRecovery &&
        only_the_end_is_torn(db_opts, families)) {
      db_opts.wal_recovery_mode = ::rocksdb::WALRecoveryMode::kPointInTimeRecovery;
      again = true;
    }
    if (!again)
      return open_status(status, "open the store in '" + folder_.root() + "'")
          .with_field("disk.path");
  }
  if (families.size() < kNumCfs || families[kExtentsCf].name != kCfNames[kExtentsCf])
    handles_.insert(handles_.begin() + kExtentsCf, nullptr);
  if (layout1)
    layout1_ = std::make_unique<Layout1Segments>(
        *db_, std::array{handles_[kNumCfs], handles_[kNumCfs + 1]});
  return {};
}

/// Returns whether the log can be read up to a place, and everything that is known to be
/// acknowledged lies before it: a power failure tore the end. Notes what may be missing. A store
/// that was closed has a seal, so that this is one that was not.
bool RocksDbTier::only_the_end_is_torn(
    ::rocksdb::DBOptions options, const std::vector<::rocksdb::ColumnFamilyDescriptor>& families) {
  options.wal_recovery_mode = ::rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  std::vector<::rocksdb::ColumnFamilyHandle*> handles;
  ::rocksdb::DB* opened = nullptr;
  const auto status = ::rocksdb::DB::OpenForReadOnly(options, folder_.db(), families, &handles,
                                                     &opened);
  const std::unique_ptr<::rocksdb::DB> db(opened);
  if (!status.ok()) return false;
  const auto read = [&](int family, std::size_t slot) {
    return slot_number(*db, handles[family_cf(Family(family))], slot);
  };
  WriteLedger ledger;
  const bool whole = ledger.open(folder_.ledger()).ok() &&
                     ledger.compare(kNumFamilies, read).count == 0;
  const std::uint64_t last = WriteLedger::last_present(kNumFamilies, read);
  for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
  if (!whole) return false;
  std::uint64_t seen = last;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(folder_.db(), ec)) {
    if (e.path().extension() != ".log") continue;
    std::ifstream in(e.path(), std::ios::binary);
    const std::string log{std::istreambuf_iterator<char>(in), {}};
    seen = std::max(seen, WriteLedger::last_in_log(log, last));
  }
  torn_writes_ = seen - last;
  log_warning("the end of the log is torn and left out, as after a power failure",
              {{"path", folder_.db()}, {"writes", std::to_string(torn_writes_)}});
  return true;
}

/// Says how many acknowledged writes the log has lost, if any.
Status RocksDbTier::check_ledger() {
  QUIRE_RETURN_IF_ERROR(ledger_.open(folder_.ledger()));
  QUIRE_ASSIGN_OR_RETURN(lost_, ledger_.check(kNumFamilies, [this](int family, std::size_t slot) {
    return slot_number(*db_, handles_[family_cf(Family(family))], slot);
  }));
  if (lost_.count == 0) {
    lost_.count = torn_writes_;  // when they were is not known
    return {};
  }
  log_error(
      "acknowledged writes are lost: the log of the store was cut, emptied, deleted or replaced by "
      "an older one; documents written, changed or deleted in this time are as they were before",
      {{"path", folder_.db()},
       {"writes", (lost_.at_least ? "at least " : "") + std::to_string(lost_.count)},
       {"first_unix_ms", std::to_string(lost_.first_ms)},
       {"last_unix_ms", std::to_string(lost_.last_ms)}});
  return {};
}

/// Removes the families of layout 1 once nothing is in them.
Status RocksDbTier::drop_layout1() {
  layout1_.reset();
  while (handles_.size() > kNumCfs) {
    QUIRE_RETURN_IF_ERROR(
        to_status(db_->DropColumnFamily(handles_.back()), "remove the old layout"));
    (void)db_->DestroyColumnFamilyHandle(handles_.back());
    handles_.pop_back();
  }
  folder_.remove_layout1();
  return {};
}

/// Begins with no segments, because the list of their places is damaged: KV is only cache.
Status RocksDbTier::forget_placements(const ::rocksdb::Status& why, std::vector<std::string>* bad) {
  log_error("the list of extents is damaged: all contexts will be computed again",
            {{"path", folder_.db()}, {"reason", why.ToString()}});
  places_.clear();
  bad->clear();
  if (options_.read_only) return {};
  auto*& handle = handles_[kExtentsCf];
  QUIRE_RETURN_IF_ERROR(to_status(db_->DropColumnFamily(handle), "drop the list of extents"));
  (void)db_->DestroyColumnFamilyHandle(handle);
  return to_status(db_->CreateColumnFamily(record_options(options_, record_cache()),
                                           kCfNames[kExtentsCf], &handle),
                   "begin the list of extents anew");
}

Status RocksDbTier::read_placements() {
  std::vector<std::string> bad;
  if (handles_[kExtentsCf]) {
    const std::unique_ptr<::rocksdb::Iterator> it(
        db_->NewIterator(::rocksdb::ReadOptions(), handles_[kExtentsCf]));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      const auto id = segment_of(view(it->key()));
      auto placement = record::decode_placement(view(it->value()));
      if (id && placement.ok()) {
        places_.emplace(*id, std::move(*placement));
      } else {
        bad.push_back(it->key().ToString());
      }
    }
    if (!it->status().ok()) QUIRE_RETURN_IF_ERROR(forget_placements(it->status(), &bad));
  }
  std::vector<ExtentRange> live;
  live.reserve(places_.size());
  for (const auto& [id, placement] : places_) live.push_back(placement.range);
  ExtentOptions extent_options;
  extent_options.direct_io = options_.direct_io;
  extent_options.read_only = options_.read_only;
  extent_options.punch_holes = options_.punch_holes;
  extent_options.extent_bytes = options_.extent_bytes;
  QUIRE_ASSIGN_OR_RETURN(extents_, ExtentFiles::open(folder_.extents(), extent_options, live));
  std::uint64_t lost = 0;
  for (auto it = places_.begin(); it != places_.end();) {
    if (extents_->contains(it->second.range)) {
      ++it;
      continue;
    }
    ++lost;
    bad.push_back(placement_key(it->first));
    it = places_.erase(it);
  }
  for (const auto& [id, placement] : places_) add_resident(id, placement.range.extent);
  if (lost > 0 && places_.empty())
    log_warning("no KV of this store is there, as after a restore: contexts will be computed again",
                {{"path", folder_.extents()}, {"segments", std::to_string(lost)}});
  else if (lost > 0)
    log_error("extents are missing or too short: the contexts in them will be computed again",
              {{"path", folder_.extents()}, {"segments", std::to_string(lost)}});
  if (options_.read_only || bad.empty()) return {};
  ::rocksdb::WriteBatch batch;
  for (const auto& key : bad) {
    QUIRE_RETURN_IF_ERROR(to_status(batch.Delete(handles_[kExtentsCf], key), "prepare a write"));
  }
  return to_status(db_->Write(::rocksdb::WriteOptions(), &batch), "forget lost segments");
}

void RocksDbTier::resume_after_failure() {
  const bool stopped = files_->take_failure();
  if (!failed_.exchange(false) && !stopped) return;
  if (!db_->Resume().ok()) failed_ = true;
}

Status RocksDbTier::check_written(const ::rocksdb::Status& status, std::string_view what) {
  if (!status.ok()) failed_ = true;
  return to_status(status, what);
}

Status RocksDbTier::write(std::span<const RecordWrite> writes, Sync sync) {
  resume_after_failure();
  // Segments whose records follow must be durable before them.
  if (sync == Sync::kYes) QUIRE_RETURN_IF_ERROR(extents_->sync());
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
  ledger_.add(number, families, system_ms());
  return {};
}

Result<std::string> RocksDbTier::get(Family family, std::string_view key) {
  std::string value;
  const auto s = db_->Get(::rocksdb::ReadOptions(), handles_[family_cf(family)], slice(key),
                          &value);
  if (s.IsNotFound()) return Status::not_found("no such record");
  QUIRE_RETURN_IF_ERROR(to_status(s, "read a record"));
  return value;
}

Status RocksDbTier::scan(Family family, std::string_view begin, std::string_view end,
                         bool descending, const ScanFn& fn) {
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

Status RocksDbTier::put_placement(SegmentId id, const Placement& placement, Sync sync) {
  const std::string key = placement_key(id), value = record::encode_placement(placement);
  files_->add_written(key.size() + value.size() + 64);
  ::rocksdb::WriteOptions o;
  o.sync = sync == Sync::kYes;
  const ForeignSection foreign;
  return check_written(db_->Put(o, handles_[kExtentsCf], key, value), "add a segment to the store");
}

/// The values are in the file first, then the placement is in the log. The record that makes the
/// segment survive a restart follows in the same log and with a synchronized write, so it is never
/// there without them.
Result<std::uint64_t> RocksDbTier::write_segment(SegmentId id, std::span<const Value> values) {
  resume_after_failure();
  Placement p;
  for (const Value& v : values) {
    if (v.name.part == Part::kValue) {
      p.num_blocks = std::max(p.num_blocks, v.name.block + 1);
      p.values_per_block = std::max(p.values_per_block, v.name.group + 1);
    } else {
      ++p.num_sketches;
    }
    p.slots.add(static_cast<std::uint32_t>(v.buffer->payload().size()));
  }
  QUIRE_ASSIGN_OR_RETURN(auto writer, extents_->begin(p.slots.bytes()));
  for (const Value& v : values) {
    QUIRE_RETURN_IF_ERROR(write_slot(writer, *v.buffer));
  }
  QUIRE_ASSIGN_OR_RETURN(p.range, writer.finish());
  if (Status s = put_placement(id, p, Sync::kNo); !s.ok()) {
    extents_->free(p.range);
    return s;
  }
  const std::uint64_t bytes = p.range.bytes;
  std::unique_lock lock(places_mu_);
  add_resident(id, p.range.extent);
  places_.emplace(id, std::move(p));
  return bytes;
}

void RocksDbTier::add_resident(SegmentId id, std::uint32_t extent) {
  Residents& residents = residents_[extent];
  residents.ids.push_back(id);
  ++residents.live;
}

void RocksDbTier::remove_resident(std::uint32_t extent) {
  const auto it = residents_.find(extent);
  if (it != residents_.end() && --it->second.live == 0) residents_.erase(it);
}

std::optional<std::pair<ExtentRange, ValueSlots::Slot>> RocksDbTier::place_of(
    const ValueName& name) const {
  std::shared_lock lock(places_mu_);
  const auto it = places_.find(name.segment);
  if (it == places_.end()) return std::nullopt;
  const auto slot = it->second.find(name);
  if (!slot) return std::nullopt;
  return std::pair(it->second.range, *slot);
}

bool RocksDbTier::is_at(SegmentId id, const ExtentRange& range) const {
  std::shared_lock lock(places_mu_);
  const auto it = places_.find(id);
  return it != places_.end() && it->second.range == range;
}

Result<std::shared_ptr<ValueBuffer>> RocksDbTier::read(const ValueName& name) {
  for (;;) {
    const auto place = place_of(name);
    if (!place) {
      const auto missing = [&] {
        return Status::not_found("value missing in segment " + std::to_string(name.segment));
      };
      if (!layout1_ || !layout1_->contains(name.segment)) {
        // It may have moved between the two looks.
        if (place_of(name)) continue;
        return missing();
      }
      auto read = layout1_->read(name);
      if (read.ok() || !place_of(name)) return read;
      continue;
    }
    auto read = extents_->read(place->first, place->second.header, place->second.payload_bytes);
    // While it was read the segment may have moved and its old place may have been freed.
    if (is_at(name.segment, place->first)) return read;
    if (!place_of(name)) return Status::not_found("the segment was deleted");
  }
}

std::vector<Result<std::shared_ptr<ValueBuffer>>> RocksDbTier::read_some(
    std::span<const ValueName> names) {
  struct Found {
    std::size_t index = 0;
    ExtentRange range;
    ExtentFiles::ValuePlace place;
    std::uint64_t end() const {
      return place.header + record::kValueHeaderBytes + place.payload_bytes;
    }
  };
  std::vector<Found> found;
  found.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (const auto place = place_of(names[i])) {
      found.push_back({i,
                       place->first,
                       {place->first.offset + place->second.header, place->second.payload_bytes}});
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tie(a.range.extent, a.place.header) < std::tie(b.range.extent, b.place.header);
  });
  std::vector<std::optional<Result<std::shared_ptr<ValueBuffer>>>> results(names.size());
  for (std::size_t first = 0; first < found.size();) {
    // Values side by side, or so near that the pages between them cost less than another call.
    std::size_t last = first + 1;
    while (last < found.size() && found[last].range.extent == found[first].range.extent &&
           found[last].place.header <= found[last - 1].end() + kGapBytes &&
           found[last].end() - found[first].place.header <= kRunBytes)
      ++last;
    if (last - first > 1) {
      std::vector<ExtentFiles::ValuePlace> places;
      for (std::size_t i = first; i < last; ++i) places.push_back(found[i].place);
      if (auto run = extents_->read_run(found[first].range.extent, places); run.ok()) {
        for (std::size_t i = first; i < last; ++i) {
          // A segment that moved meanwhile is read again below.
          if (is_at(names[found[i].index].segment, found[i].range))
            results[found[i].index] = std::move((*run)[i - first]);
        }
      }
    }
    first = last;
  }
  std::vector<Result<std::shared_ptr<ValueBuffer>>> out;
  out.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    out.push_back(results[i] ? std::move(*results[i]) : read(names[i]));
  return out;
}

Status RocksDbTier::delete_segment(SegmentId id) {
  std::optional<ExtentRange> range;
  {
    std::unique_lock lock(places_mu_);
    if (const auto it = places_.find(id); it != places_.end()) {
      range = it->second.range;
      places_.erase(it);
      remove_resident(range->extent);
    }
  }
  Status status;
  if (range) {
    files_->add_written(64);
    const ForeignSection foreign;
    status = check_written(
        db_->Delete(::rocksdb::WriteOptions(), handles_[kExtentsCf], placement_key(id)),
        "free segment " + std::to_string(id));
    extents_->free(*range);
  }
  if (layout1_ && layout1_->contains(id))
    if (Status s = layout1_->erase(id); !s.ok()) status = s;
  return status;
}

Result<std::vector<StoredSegment>> RocksDbTier::list_segments() {
  std::vector<StoredSegment> out;
  std::shared_lock lock(places_mu_);
  out.reserve(places_.size());
  for (const auto& [id, p] : places_)
    out.push_back({id, p.num_blocks > 0, p.num_sketches > 0, p.range.bytes});
  if (layout1_) {
    for (const auto& segment : layout1_->list()) {
      if (!places_.contains(segment.id)) out.push_back(segment);
    }
  }
  return out;
}

// ---- moving ----

std::vector<SegmentId> RocksDbTier::segments_to_move(std::size_t at_most) {
  if (layout1_) {
    if (auto ids = layout1_->some(at_most); !ids.empty()) return ids;
  }
  const ExtentUsage usage = extents_->usage();
  // With holes an empty extent costs a file, without them it costs its bytes.
  constexpr std::uint64_t kSpareFiles = 16;
  if (usage.punches_holes &&
      usage.num_files <= kSpareFiles + 2 * (usage.live_bytes / extents_->extent_bytes()))
    return {};
  const auto sparse = extents_->sparse(usage.punches_holes ? 0.25 : 0.9);
  std::vector<SegmentId> ids;
  std::shared_lock lock(places_mu_);
  for (const std::uint32_t extent :
       std::span(sparse).first(std::min<std::size_t>(4, sparse.size()))) {
    const auto residents = residents_.find(extent);
    if (residents == residents_.end()) continue;
    for (const SegmentId id : residents->second.ids) {
      if (ids.size() >= at_most) return ids;
      const auto place = places_.find(id);
      if (place != places_.end() && place->second.range.extent == extent) ids.push_back(id);
    }
  }
  return ids;
}

Result<Placement> RocksDbTier::copy_from_layout1(const SegmentInfo& info) {
  const SegmentLayout& layout = info.layout;
  Placement p;
  p.num_blocks = layout.num_blocks;
  p.values_per_block = layout.values_per_block;
  p.num_sketches = layout.num_sketches;
  const std::uint64_t num_values = std::uint64_t{layout.num_blocks} * layout.values_per_block,
                      num = num_values + layout.num_sketches;
  QUIRE_ASSIGN_OR_RETURN(auto writer,
                         extents_->begin(info.value_bytes + info.sketch_bytes + num * 128));
  for (std::uint64_t i = 0; i < num; ++i) {
    const auto v = static_cast<std::uint32_t>(i < num_values ? i : i - num_values);
    const ValueName name = i < num_values
                               ? ValueName{info.id, Part::kValue, v / layout.values_per_block,
                                           v % layout.values_per_block}
                               : ValueName{info.id, Part::kSketch, v, 0};
    QUIRE_ASSIGN_OR_RETURN(const auto value, layout1_->read(name));
    QUIRE_RETURN_IF_ERROR(record::check_value(name, value->stored()));
    p.slots.add(static_cast<std::uint32_t>(value->payload().size()));
    QUIRE_RETURN_IF_ERROR(write_slot(writer, *value));
  }
  QUIRE_ASSIGN_OR_RETURN(p.range, writer.finish());
  return p;
}

/// Both places hold the segment until the new one is durable, so a crash at any moment leaves one.
Result<std::uint64_t> RocksDbTier::move_segment(const SegmentInfo& info) {
  resume_after_failure();
  Placement next;
  std::optional<ExtentRange> from;
  {
    std::shared_lock lock(places_mu_);
    if (const auto it = places_.find(info.id); it != places_.end()) {
      next = it->second;
      from = next.range;
    }
  }
  const bool in_layout1 = layout1_ && layout1_->contains(info.id);
  if (from && !in_layout1) {
    QUIRE_ASSIGN_OR_RETURN(next.range, extents_->copy(*from));
  } else if (!from) {
    if (!in_layout1) return Status::not_found("the segment is not on disk");
    QUIRE_ASSIGN_OR_RETURN(next, copy_from_layout1(info));
  }
  const std::uint64_t bytes = next.range.bytes;
  if (!from || !in_layout1) {  // else a crash left only the old place to be freed
    Status s = extents_->sync();
    if (s.ok()) s = put_placement(info.id, next, Sync::kYes);
    if (!s.ok()) {
      extents_->free(next.range);
      return s;
    }
    std::unique_lock lock(places_mu_);
    if (from) remove_resident(from->extent);
    add_resident(info.id, next.range.extent);
    places_[info.id] = std::move(next);
  }
  if (in_layout1) {
    QUIRE_RETURN_IF_ERROR(layout1_->erase(info.id));
  } else {
    extents_->free(*from);
  }
  return bytes;
}

DiskUsage RocksDbTier::usage() {
  DiskUsage u = files_->get([this] {
    DiskUsage measured;
    measured.catalog_bytes = folder_.catalog_bytes();
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
  const ExtentUsage extents = extents_->usage();
  u.segment_bytes = extents.allocated_bytes;
  if (!extents.punches_holes) {
    u.segment_bytes = std::min(extents.allocated_bytes, extents.live_bytes);
    u.pending_delete_bytes = extents.allocated_bytes - u.segment_bytes;
    u.headroom_bytes += extents_->extent_bytes();  // what is in use of the extent rewritten next
  }
  if (layout1_) u.segment_bytes += layout1_->disk_bytes();
  return u;
}

std::vector<::rocksdb::ColumnFamilyHandle*> RocksDbTier::record_handles() const {
  std::vector<::rocksdb::ColumnFamilyHandle*> out;
  for (const Cf cf : kRecordCfs) {
    if (handles_[cf]) out.push_back(handles_[cf]);
  }
  return out;
}

Status RocksDbTier::flush_records() {
  return check_written(db_->Flush(::rocksdb::FlushOptions(), record_handles()),
                       "flush the catalog");
}

Status RocksDbTier::compact_records() {
  ::rocksdb::CompactRangeOptions o;
  o.bottommost_level_compaction = ::rocksdb::BottommostLevelCompaction::kForceOptimized;
  for (auto* handle : record_handles()) {
    QUIRE_RETURN_IF_ERROR(
        check_written(db_->CompactRange(o, handle, nullptr, nullptr), "compact the catalog"));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DiskTier>> open_rocksdb_tier(StoreFolder folder,
                                                    const RocksDbTierOptions& options) {
  RocksDbTierOptions sized = options;
  if (sized.disk_bytes == 0) sized.disk_bytes = folder.disk_bytes();
  auto tier = std::make_unique<RocksDbTier>(std::move(folder), sized);
  QUIRE_RETURN_IF_ERROR(tier->open());
  return std::unique_ptr<DiskTier>(std::move(tier));
}

}  // namespace quire
