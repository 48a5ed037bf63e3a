#include "cachestore/disk/rocksdb_layout1.h"

#include <rocksdb/convenience.h>
#include <rocksdb/ldb_tool.h>
#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/ldb_cmd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/rocksdb_options.h"

namespace quire::rocksdb_internal {
namespace {

using record::Part;
using record::ValueName;
using ::rocksdb::Slice;

/// Returns the number in ".../000012.sst"; 0 if there is none.
std::uint64_t file_number(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return std::strtoull(path.c_str() + (slash == std::string::npos ? 0 : slash + 1), nullptr, 10);
}

void put_be(char* out, std::uint64_t v, int bytes) {
  for (int i = 0; i < bytes; ++i) out[i] = static_cast<char>(v >> (8 * (bytes - 1 - i)));
}

/// Big-endian segment, block (or sketch index), group.
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

/// Returns the segment file that a failure names, or else all that cannot be opened.
std::vector<std::string> damaged_files(const StoreFolder& folder, const std::string& failure) {
  std::vector<std::string> bad;
  for (const std::string& files : {folder.values(), folder.sketches()}) {
    if (const auto at = failure.find(files + "/"); at != std::string::npos)
      return {failure.substr(at, failure.find(".sst", at) - at + 4)};
    const auto there = files_in(files);
    if (!there.ok()) continue;  // the database cannot be opened then
    for (const auto& file : *there) {
      const std::string path = file.string();
      if (!path.ends_with(".sst")) continue;
      ::rocksdb::Options o(::rocksdb::DBOptions(), layout1_options("."));
      o.cf_paths.clear();
      ::rocksdb::SstFileReader reader(o);
      if (!reader.Open(path).ok() || !has_properties(reader)) bad.push_back(path);
    }
  }
  return bad;
}

/// Removes a file from the manifest of the closed database, with RocksDB's own tool.
bool forget_file(const StoreFolder& folder, std::uint64_t number,
                 const ::rocksdb::DBOptions& db_options,
                 const std::vector<::rocksdb::ColumnFamilyDescriptor>& families) {
  const std::string db_arg = "--db=" + folder.db(), number_arg = std::to_string(number);
  const char* argv[] = {"store", db_arg.c_str(), "--ignore_unknown_options",
                        "unsafe_remove_sst_file", number_arg.c_str()};
  ::rocksdb::Options o(db_options, ::rocksdb::ColumnFamilyOptions());
  o.listeners.clear();
  return ::rocksdb::LDBCommandRunner::RunCommand(5, argv, o, ::rocksdb::LDBOptions(), &families) ==
         0;
}

}  // namespace

::rocksdb::ColumnFamilyOptions layout1_options(const std::string& folder) {
  ::rocksdb::ColumnFamilyOptions o;
  o.disable_auto_compactions = true;
  o.compression = ::rocksdb::kNoCompression;
  o.write_buffer_size = 64u << 10;  // not used for writes
  o.cf_paths.emplace_back(folder, UINT64_MAX);
  ::rocksdb::BlockBasedTableOptions t;
  t.no_block_cache = true;
  t.checksum = ::rocksdb::kXXH3;
  t.format_version = 5;
  o.table_factory.reset(::rocksdb::NewBlockBasedTableFactory(t));
  return o;
}

std::span<const std::byte> skip_filler(std::span<const std::byte> entry) {
  if (entry.empty()) return {};
  const auto first = std::to_integer<std::size_t>(entry[0]);
  if (first >= 64) return entry;
  if (first == 0 || first > entry.size()) return {};
  return entry.subspan(first);
}

bool drop_damaged_files(const StoreFolder& folder, const RocksDbTierOptions& options,
                        const std::string& failure, const ::rocksdb::DBOptions& db_options,
                        const std::vector<::rocksdb::ColumnFamilyDescriptor>& families) {
  if (options.read_only) return false;
  bool dropped = false;
  for (const auto& path : damaged_files(folder, failure)) {
    // A file that no manifest names can be deleted.
    const bool forgotten = forget_file(folder, file_number(path), db_options, families),
               removed = ::unlink(path.c_str()) == 0;
    if (!forgotten && !removed) continue;
    dropped = true;
    log_error("a segment file is damaged and was dropped: its context will be computed again",
              {{"file", path}, {"reason", failure}});
  }
  return dropped;
}

Layout1Segments::Layout1Segments(::rocksdb::DB& db,
                                 std::array<::rocksdb::ColumnFamilyHandle*, 2> families)
    : db_(db), families_(families) {
  std::vector<::rocksdb::LiveFileMetaData> live;
  db_.GetLiveFilesMetaData(&live);
  for (const auto& f : live) {
    const bool values = f.column_family_name == kLayout1Families[0];
    if ((!values && f.column_family_name != kLayout1Families[1]) || f.smallestkey.size() < 8)
      continue;
    SegmentId id = 0;
    for (std::size_t i = 0; i < 8; ++i)
      id = (id << 8) | static_cast<unsigned char>(f.smallestkey[i]);
    const std::string path = (f.directory.empty() ? f.db_path : f.directory) + "/" +
                             f.relative_filename;
    const std::uint64_t allocated = allocated_bytes(path), bytes = allocated ? allocated : f.size;
    StoredSegment& segment = segments_[id];
    segment.id = id;
    (values ? segment.has_values : segment.has_sketches) = true;
    segment.disk_bytes += bytes;
    disk_bytes_ += bytes;
  }
}

bool Layout1Segments::empty() const {
  std::lock_guard lock(mu_);
  return segments_.empty();
}

bool Layout1Segments::contains(SegmentId id) const {
  std::lock_guard lock(mu_);
  return segments_.contains(id);
}

std::vector<StoredSegment> Layout1Segments::list() const {
  std::vector<StoredSegment> out;
  std::lock_guard lock(mu_);
  for (const auto& [id, segment] : segments_) out.push_back(segment);
  return out;
}

std::vector<SegmentId> Layout1Segments::some(std::size_t at_most) const {
  std::vector<SegmentId> out;
  std::lock_guard lock(mu_);
  for (auto it = segments_.begin(); it != segments_.end() && out.size() < at_most; ++it)
    out.push_back(it->first);
  return out;
}

std::uint64_t Layout1Segments::disk_bytes() const {
  std::lock_guard lock(mu_);
  return disk_bytes_;
}

Result<std::shared_ptr<ValueBuffer>> Layout1Segments::read(const ValueName& name) const {
  // The slice is reused, because allocating memory for each value costs more than reading it. It is
  // reset before returning, so it never outlives the database.
  thread_local ::rocksdb::PinnableSlice value;
  ::rocksdb::ReadOptions o;
  o.verify_checksums = true;  // checked before RocksDB trusts a block's own lengths
  o.fill_cache = false;
  auto* family = families_[name.part == Part::kValue ? 0 : 1];
  ::rocksdb::Status s;
  try {
    s = db_.Get(o, family, ValueKey(name).slice(), &value);
  } catch (const std::exception&) {  // a damaged index requests impossible sizes
    value.Reset();
    return Status::corruption("the index of segment " + std::to_string(name.segment) +
                              " is damaged");
  }
  if (!s.ok()) {
    value.Reset();
    return to_status(s, "read segment " + std::to_string(name.segment));
  }
  const auto stored = skip_filler(std::as_bytes(std::span(value.data(), value.size())));
  if (stored.size() <= record::kValueHeaderBytes ||
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

Status Layout1Segments::erase(SegmentId id) {
  const ValueKey begin({id, Part::kValue, 0, 0}), end({id, Part::kValue, UINT32_MAX, UINT32_MAX});
  const Slice first = begin.slice(), last = end.slice();
  for (auto* family : families_) {
    QUIRE_RETURN_IF_ERROR(
        to_status(::rocksdb::DeleteFilesInRange(&db_, family, &first, &last, true),
                  "free segment " + std::to_string(id)));
  }
  std::lock_guard lock(mu_);
  if (const auto it = segments_.find(id); it != segments_.end()) {
    disk_bytes_ -= it->second.disk_bytes;
    segments_.erase(it);
  }
  return {};
}

}  // namespace quire::rocksdb_internal
