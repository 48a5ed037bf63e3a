#include "cachestore/disk/rocksdb_disk_tier.h"

#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/ldb_tool.h>
#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/utilities/ldb_cmd.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/disk/rocksdb_options.h"
#include "cachestore/disk/rocksdb_segment_files.h"
#include "cachestore/disk/rocksdb_value_locator.h"

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

enum Cf : std::size_t {
  kDefaultCf = 0,
  kCatalogCf,
  kJobsCf,
  kMetaCf,
  kBlocksCf,
  kSketchesCf,
  kNumCfs
};
constexpr std::array<const char*, kNumCfs> kCfNames = {"default", "catalog",     "jobs",
                                                       "meta",    kBlocksFamily, kSketchesFamily};

Cf family_cf(Family f) {
  return f == Family::kCatalog ? kCatalogCf : f == Family::kJobs ? kJobsCf : kMetaCf;
}
Cf part_cf(Part p) { return p == Part::kValue ? kBlocksCf : kSketchesCf; }
Slice slice(std::string_view s) { return {s.data(), s.size()}; }
std::string_view view(const Slice& s) { return {s.data(), s.size()}; }

void put_be(char* out, std::uint64_t v, int bytes) {
  for (int i = 0; i < bytes; ++i) out[i] = static_cast<char>(v >> (8 * (bytes - 1 - i)));
}
std::uint64_t get_be64(std::string_view s) {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < 8; ++i) v = (v << 8) | static_cast<unsigned char>(s[i]);
  return v;
}
/// Big-endian segment, block (or sketch index), group. One segment's keys form one range, hence one
/// file.
struct ValueKey {
  std::array<char, 16> bytes;
  explicit ValueKey(const ValueName& n) {
    put_be(bytes.data(), n.segment, 8);
    put_be(bytes.data() + 8, n.block, 4);
    put_be(bytes.data() + 12, n.group, 4);
  }
  Slice slice() const { return {bytes.data(), bytes.size()}; }
};

/// Returns whether a file has its properties. Readers drop damaged ones with a warning, but the
/// database rejects them. File checksums cover everything but the sequence number, which is always
/// zero here.
bool has_properties(const ::rocksdb::SstFileReader& reader) {
  const auto p = reader.GetTableProperties();
  if (!p || p->num_entries == 0 ||
      !p->user_collected_properties.contains("rocksdb.external_sst_file.version"))
    return false;
  const auto number = p->user_collected_properties.find("rocksdb.external_sst_file.global_seqno");
  return number != p->user_collected_properties.end() && number->second == std::string(8, '\0');
}

class RocksDbTier final : public DiskTier {
 public:
  RocksDbTier(StoreFolder folder, const RocksDbTierOptions& options)
      : folder_(std::move(folder)), options_(options), files_(std::make_shared<SegmentFiles>()) {}
  ~RocksDbTier() override {
    if (!db_) return;
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
  Result<Written> write_segment(SegmentId id, std::span<const Value> values) override;
  Result<std::shared_ptr<ValueBuffer>> read(const ValueName& name, std::string_view locator,
                                            std::size_t position) override;
  Status delete_segment(SegmentId id) override;
  Result<std::vector<StoredSegment>> list_segments() override { return files_->list(); }
  DiskUsage usage() override;
  bool wait_for_deletes(std::chrono::milliseconds at_most) override {
    return files_->wait(at_most);
  }
  std::uint64_t free_bytes() override { return folder_.free_bytes(); }
  Status flush_records() override;
  Status compact_records() override;

 private:
  std::vector<std::string> damaged_segment_files(const std::string& failure) const;
  bool forget_file(std::uint64_t number, const ::rocksdb::DBOptions& db_opts,
                   const std::vector<::rocksdb::ColumnFamilyDescriptor>& families) const;
  void find_files();
  void resume_after_failure();
  Status check_written(const ::rocksdb::Status& status, std::string_view what);
  Result<std::string> write_file(SegmentId id, Part part, std::span<const Value> values,
                                 std::string* locator);
  std::string staging_path(SegmentId id, Part part) const {
    return folder_.staging() + "/" + std::to_string(id) +
           (part == Part::kValue ? ".values" : ".sketches");
  }

  StoreFolder folder_;  // holds the lock: outlives db_
  const RocksDbTierOptions options_;
  std::shared_ptr<SegmentFiles> files_;
  std::unique_ptr<::rocksdb::DB> db_;
  std::vector<::rocksdb::ColumnFamilyHandle*> handles_;  // by Cf
  std::atomic<bool> failed_{false};  // a write failed: RocksDB may reject more until resumed
};

Status RocksDbTier::open() {
  ::rocksdb::DBOptions db_opts = db_options(options_);
  db_opts.listeners.push_back(files_);
  std::vector<::rocksdb::ColumnFamilyDescriptor> families;
  const auto cache = record_cache();
  for (std::size_t i = 0; i < kNumCfs; ++i) {
    const bool segments = i == kBlocksCf || i == kSketchesCf;
    const auto cf = segments
                        ? segment_options(i == kBlocksCf ? folder_.values() : folder_.sketches())
                        : record_options(cache);
    families.emplace_back(kCfNames[i], cf);
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
    // RocksDB opens some files immediately and fails on the first bad one. KV is only cache, so
    // that segment is dropped.
    std::vector<std::string> bad;
    if (!options_.read_only && (status.IsCorruption() || status.IsPathNotFound()))
      bad = damaged_segment_files(status.ToString());
    bool dropped = false;
    for (const auto& path : bad) {
      // A file that no manifest names can be deleted.
      const bool forgotten = forget_file(file_number(path), db_opts, families),
                 removed = ::unlink(path.c_str()) == 0;
      if (!forgotten && !removed) continue;
      dropped = true;
      log_error("a segment file is damaged and was dropped: its context will be computed again",
                {{"file", path}, {"reason", '"' + status.ToString() + '"'}});
    }
    if (!dropped)
      return to_status(status, "open the store in '" + folder_.root() + "'")
          .with_field("disk.path");
  }
  find_files();
  return {};
}

/// Returns the segment file that a failure names, or else all that cannot be opened.
std::vector<std::string> RocksDbTier::damaged_segment_files(const std::string& failure) const {
  std::vector<std::string> bad;
  for (const std::string& folder : {folder_.values(), folder_.sketches()}) {
    if (const auto at = failure.find(folder + "/"); at != std::string::npos) {
      return {failure.substr(at, failure.find(".sst", at) - at + 4)};
    }
    std::error_code ignored;
    for (const auto& e : std::filesystem::directory_iterator(folder, ignored)) {
      const std::string path = e.path().string();
      if (!path.ends_with(".sst")) continue;
      ::rocksdb::SstFileReader reader(sst_options(options_));
      if (!reader.Open(path).ok() || !has_properties(reader)) bad.push_back(path);
    }
  }
  return bad;
}

/// Removes a file from the manifest of the closed database, with RocksDB's own tool.
bool RocksDbTier::forget_file(
    std::uint64_t number, const ::rocksdb::DBOptions& db_opts,
    const std::vector<::rocksdb::ColumnFamilyDescriptor>& families) const {
  const std::string db_arg = "--db=" + folder_.db(), number_arg = std::to_string(number);
  const char* argv[] = {"store", db_arg.c_str(), "--ignore_unknown_options",
                        "unsafe_remove_sst_file", number_arg.c_str()};
  ::rocksdb::Options o(db_opts, ::rocksdb::ColumnFamilyOptions());
  o.listeners.clear();
  return ::rocksdb::LDBCommandRunner::RunCommand(5, argv, o, ::rocksdb::LDBOptions(), &families) ==
         0;
}

void RocksDbTier::find_files() {
  std::vector<::rocksdb::LiveFileMetaData> live;
  db_->GetLiveFilesMetaData(&live);
  for (const auto& f : live) {
    const bool values = f.column_family_name == kCfNames[kBlocksCf];
    if (!values && f.column_family_name != kCfNames[kSketchesCf]) continue;
    if (f.smallestkey.size() < 8) continue;
    const std::string path = (f.directory.empty() ? f.db_path : f.directory) + "/" +
                             f.relative_filename;
    const std::uint64_t bytes = allocated_bytes(path);
    files_->add(f.file_number, get_be64(f.smallestkey), values ? Part::kValue : Part::kSketch,
                bytes ? bytes : f.size);
  }
}

void RocksDbTier::resume_after_failure() {
  if (!failed_.exchange(false)) return;
  if (!db_->Resume().ok()) failed_ = true;
}

Status RocksDbTier::check_written(const ::rocksdb::Status& status, std::string_view what) {
  if (!status.ok()) failed_ = true;
  return to_status(status, what);
}

Status RocksDbTier::write(std::span<const RecordWrite> writes, Sync sync) {
  resume_after_failure();
  ::rocksdb::WriteBatch batch;
  for (const auto& w : writes) {
    auto* cf = handles_[family_cf(w.family)];
    const auto s = w.value ? batch.Put(cf, slice(w.key), slice(*w.value))
                           : batch.Delete(cf, slice(w.key));
    QUIRE_RETURN_IF_ERROR(to_status(s, "prepare a write"));
  }
  ::rocksdb::WriteOptions o;
  o.sync = sync == Sync::kYes;
  const ForeignSection foreign;
  return check_written(db_->Write(o, &batch), "write to the store");
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
    if (!fn(view(it->key()), view(it->value()))) break;
  }
  return to_status(it->status(), "read the catalog");
}

Result<std::string> RocksDbTier::write_file(SegmentId id, Part part, std::span<const Value> values,
                                            std::string* locator) {
  const std::string path = staging_path(id, part);
  ::rocksdb::EnvOptions env;
  env.use_direct_writes = options_.direct_io;
  env.allow_fallocate = false;
  ::rocksdb::SstFileWriter writer(env, sst_options(options_));
  ValuePlacer placer(sizeof(ValueKey));
  auto s = writer.Open(path);
  for (std::size_t i = 0; s.ok() && i < values.size(); ++i) {
    const auto stored = values[i].buffer->stored();
    const std::size_t filler = part == Part::kValue ? placer.add(stored.size()) : 0;
    write_filler(stored.data() - filler, filler);
    s = writer.Put(
        ValueKey(values[i].name).slice(),
        Slice(reinterpret_cast<const char*>(stored.data()) - filler, stored.size() + filler));
  }
  if (s.ok()) s = writer.Finish();
  if (!s.ok()) {
    ::unlink(path.c_str());
    return to_status(s, "write a segment");
  }
  // Each position follows from the one before: if the last header is correct, all are.
  *locator = placer.locator();
  if (!locator->empty()) {
    std::array<std::byte, record::kValueHeaderBytes> header{};
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const bool right = fd >= 0 &&
                       ::pread(fd, header.data(), header.size(),
                               static_cast<off_t>(placer.last_header_offset())) ==
                           ssize_t{header.size()} &&
                       std::memcmp(header.data(), values.back().buffer->stored().data(),
                                   header.size()) == 0;
    if (fd >= 0) ::close(fd);
    if (!right) locator->clear();
  }
  return path;
}

Result<DiskTier::Written> RocksDbTier::write_segment(SegmentId id, std::span<const Value> values) {
  resume_after_failure();
  const auto split = std::find_if(values.begin(), values.end(),
                                  [](const Value& v) { return v.name.part == Part::kSketch; });
  const auto num_values = to_size(split - values.begin());
  std::vector<::rocksdb::IngestExternalFileArg> args;
  Status failure;
  Written written;
  std::string no_locator;
  for (Part part : {Part::kValue, Part::kSketch}) {
    const auto of_part = part == Part::kValue ? values.first(num_values)
                                              : values.subspan(num_values);
    if (of_part.empty()) continue;
    auto path = write_file(id, part, of_part,
                           part == Part::kValue ? &written.locator : &no_locator);
    if (!path.ok()) {
      failure = path.status();
      break;
    }
    ::rocksdb::IngestExternalFileArg arg;
    arg.column_family = handles_[part_cf(part)];
    arg.external_files = {*path};
    arg.options.move_files = true;
    arg.options.write_global_seqno = false;
    arg.options.allow_blocking_flush = false;
    args.push_back(std::move(arg));
  }
  if (failure.ok()) {
    const ForeignSection foreign;
    failure = check_written(db_->IngestExternalFiles(args), "add a segment to the store");
  }
  // RocksDB removes its source links on success; after a failure this code removes them.
  for (Part part : {Part::kValue, Part::kSketch}) ::unlink(staging_path(id, part).c_str());
  if (!failure.ok()) return failure;
  written.disk_bytes = files_->segment_bytes(id);
  return written;
}

Result<std::shared_ptr<ValueBuffer>> RocksDbTier::read(const ValueName& name,
                                                       std::string_view locator,
                                                       std::size_t position) {
  if (!locator.empty()) {
    const std::uint64_t number = files_->value_file(name.segment);
    if (number == 0) return Status::not_found("no file");
    char base[32];
    std::snprintf(base, sizeof base, "/%06llu.sst", static_cast<unsigned long long>(number));
    return read_located(folder_.values() + base, locator, position, options_.direct_io);
  }
  // The slice is reused, because allocating memory for each value costs more than reading it. It is
  // reset before returning, so it never outlives the database.
  thread_local ::rocksdb::PinnableSlice value;
  ::rocksdb::ReadOptions o;
  o.verify_checksums = true;  // checked before RocksDB trusts a block's own lengths
  o.fill_cache = false;
  ::rocksdb::Status s;
  try {
    s = db_->Get(o, handles_[part_cf(name.part)], ValueKey(name).slice(), &value);
  } catch (const std::exception&) {  // a damaged index requests impossible sizes
    value.Reset();
    return Status::corruption("the index of segment " + std::to_string(name.segment) +
                              " is damaged");
  }
  if (!s.ok()) {
    value.Reset();
    if (s.IsNotFound())
      return Status::not_found("value missing in segment " + std::to_string(name.segment));
    return to_status(s, "read segment " + std::to_string(name.segment));
  }
  const auto stored = skip_filler(std::as_bytes(std::span(value.data(), value.size())));
  if (stored.size() < record::kValueHeaderBytes ||
      stored.size() > record::kValueHeaderBytes + record::kMaxValueBytes) {
    value.Reset();
    return Status::corruption("a value of segment " + std::to_string(name.segment) +
                              " has an impossible size");
  }
  auto out = std::make_shared<ValueBuffer>(stored.size() - record::kValueHeaderBytes);
  std::memcpy(out->stored().data(), stored.data(), stored.size());
  value.Reset();
  return out;
}

Status RocksDbTier::delete_segment(SegmentId id) {
  const ValueKey begin({id, Part::kValue, 0, 0}), end({id, Part::kValue, UINT32_MAX, UINT32_MAX});
  const Slice first = begin.slice(), last = end.slice();
  files_->begin_delete(id);
  for (Cf cf : {kBlocksCf, kSketchesCf}) {
    const auto s = ::rocksdb::DeleteFilesInRange(db_.get(), handles_[cf], &first, &last, true);
    if (!s.ok()) {
      files_->cancel_delete(id);
      return check_written(s, "free segment " + std::to_string(id));
    }
  }
  return {};
}

DiskUsage RocksDbTier::usage() {
  DiskUsage u;
  files_->fill(&u);
  u.catalog_bytes = folder_.catalog_bytes();
  std::uint64_t rewrite = kCompactionBytes;
  for (Cf cf : {kCatalogCf, kJobsCf, kMetaCf}) {
    ::rocksdb::ColumnFamilyMetaData meta;
    db_->GetColumnFamilyMetaData(handles_[cf], &meta);
    std::uint64_t young = 0;  // rewriting level 0 into level 1 takes both at once
    for (const auto& level : meta.levels) young += level.level <= 1 ? level.size : 0;
    rewrite = std::max(rewrite, young);
  }
  u.headroom_bytes = rewrite + 2 * kMaxWalBytes + manifest_limit(options_);
  return u;
}

Status RocksDbTier::flush_records() {
  return check_written(db_->Flush(::rocksdb::FlushOptions(),
                                  {handles_[kCatalogCf], handles_[kJobsCf], handles_[kMetaCf]}),
                       "flush the catalog");
}

Status RocksDbTier::compact_records() {
  ::rocksdb::CompactRangeOptions o;
  o.bottommost_level_compaction = ::rocksdb::BottommostLevelCompaction::kForceOptimized;
  for (Cf cf : {kCatalogCf, kJobsCf, kMetaCf}) {
    QUIRE_RETURN_IF_ERROR(
        check_written(db_->CompactRange(o, handles_[cf], nullptr, nullptr), "compact the catalog"));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DiskTier>> open_rocksdb_tier(StoreFolder folder,
                                                    const RocksDbTierOptions& options) {
  auto tier = std::make_unique<RocksDbTier>(std::move(folder), options);
  QUIRE_RETURN_IF_ERROR(tier->open());
  return std::unique_ptr<DiskTier>(std::move(tier));
}

}  // namespace quire
