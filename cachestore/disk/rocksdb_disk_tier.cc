#include "cachestore/disk/rocksdb_disk_tier.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/disk/extents/extent_files.h"
#include "cachestore/disk/rocksdb_copy.h"
#include "cachestore/disk/rocksdb_layout1.h"
#include "cachestore/disk/rocksdb_records.h"
#include "cachestore/format/placement.h"

namespace quire {
namespace {

using namespace rocksdb_internal;  // NOLINT: the parts of this very tier
using record::Part;
using record::ValueName;

/// Values are read with one call while they are at most this far apart and this long in all.
constexpr std::uint64_t kGapBytes = 4 << 10, kRunBytes = 512 << 10;
constexpr std::int64_t kMendMs = 1000;  // between two attempts to mend the list of places
static_assert(kRunBytes < ExtentFiles::kWriteBytes);

/// Writes one value as ValueSlots lays it out.
Status write_slot(ExtentFiles::Writer& writer, const ValueBuffer& value) {
  const auto stored = value.stored();
  QUIRE_RETURN_IF_ERROR(writer.write_zeros(ValueSlots::kLead));
  QUIRE_RETURN_IF_ERROR(writer.write(stored));
  return writer.write_zeros(ValueSlots::slot_bytes(value.payload().size()) - ValueSlots::kLead -
                            stored.size());
}

class RocksDbTier final : public DiskTier {
 public:
  RocksDbTier(StoreFolder folder, const RocksDbTierOptions& options)
      : folder_(std::move(folder)), options_(options) {}
  ~RocksDbTier() override {
    if (!records_.is_open()) return;
    layout1_.reset();
    if (copy_) copy_->close(records_);
    records_.close();
    if (!options_.read_only) folder_.seal();
  }

  Status open();

  Status write(std::span<const RecordWrite> writes, Sync sync) override;
  Result<std::string> get(Family family, std::string_view key) override;
  Status scan(Family family, std::string_view begin, std::string_view end, bool descending,
              const ScanFn& fn) override {
    return records_.scan(family, begin, end, descending, fn);
  }
  Result<std::uint64_t> write_segment(SegmentId id, std::span<const Value> values) override;
  Result<std::shared_ptr<ValueBuffer>> read(const ValueName& name) override;
  std::vector<Result<std::shared_ptr<ValueBuffer>>> read_some(
      std::span<const ValueName> names) override;
  Status delete_segment(SegmentId id) override;
  Result<std::vector<StoredSegment>> list_segments() override;
  std::vector<SegmentId> segments_to_move(std::size_t at_most) override;
  Result<std::uint64_t> move_segment(const SegmentInfo& info) override;
  Result<BackupReport> backup(const std::string& folder, std::uint32_t keep) override {
    return records_.backup(folder, keep);
  }
  LostWrites lost_writes() const override { return records_.lost_writes(); }
  void lost_writes_told() override {
    if (!options_.read_only) records_.lost_writes_told();
  }
  RecordCopyState record_copy() const override {
    return copy_
               ? RecordCopyState{true, copy_->behind(), copy_->read_whole(), copy_->brought_back()}
               : RecordCopyState();
  }
  Status recover() override { return resume(/*certain=*/true); }
  DiskUsage usage() override;
  std::uint64_t free_bytes() override { return folder_.free_bytes(); }
  Status flush_records() override { return records_.flush(); }
  Status compact_records() override { return records_.compact(); }

 private:
  Status open_copy();
  Status resume(bool certain = false);
  Status mend_placements();
  Status forget_placements(const Status& why, std::vector<std::string>* bad);
  Status read_placements();
  std::optional<std::pair<ExtentRange, ValueSlots::Slot>> place_of(const ValueName& name) const;
  bool is_at(SegmentId id, const ExtentRange& range) const;
  void add_resident(SegmentId id, std::uint32_t extent);  // places_mu_ held
  void remove_resident(std::uint32_t extent);             // places_mu_ held
  Result<Placement> copy_from_layout1(const SegmentInfo& info);

  StoreFolder folder_;  // holds the lock: outlives records_
  const RocksDbTierOptions options_;
  RecordDatabase records_{folder_, options_};
  std::unique_ptr<RecordCopy> copy_;          // null: none is kept
  std::unique_ptr<Layout1Segments> layout1_;  // null: the store has none
  std::unique_ptr<ExtentFiles> extents_;
  std::atomic<bool> mend_placements_{false};   // the records may list other places
  std::atomic<std::int64_t> next_mend_ms_{0};  // of the steady clock, after one that failed
  /// Shared while a place changes in the records and in places_, exclusive while both are compared.
  std::shared_mutex placing_mu_;
  mutable std::shared_mutex places_mu_;
  std::unordered_map<SegmentId, Placement> places_;  // guarded by places_mu_
  /// The segments of one extent: those that were put there, and how many of them still are.
  struct Residents {
    std::vector<SegmentId> ids;
    std::size_t live = 0;
  };
  std::unordered_map<std::uint32_t, Residents> residents_;  // guarded by places_mu_
};

Status RocksDbTier::open() {
  QUIRE_RETURN_IF_ERROR(records_.open());
  if (const auto handles = records_.layout1_handles())
    layout1_ = std::make_unique<Layout1Segments>(records_.db(), *handles);
  if (layout1_ && layout1_->empty() && !options_.read_only) {
    layout1_.reset();
    QUIRE_RETURN_IF_ERROR(records_.drop_layout1());
    folder_.remove_layout1();
  }
  if (!options_.read_only) QUIRE_RETURN_IF_ERROR(open_copy());
  return read_placements();
}

Status RocksDbTier::open_copy() {
  if (options_.copy_path.empty()) return RecordCopy::leave(records_, folder_);
  copy_ = std::make_unique<RecordCopy>(options_);
  return copy_->open(records_, folder_);
}

/// Begins with no segments, because the list of their places is damaged: KV is only cache.
Status RocksDbTier::forget_placements(const Status& why, std::vector<std::string>* bad) {
  log_error("the list of extents is damaged: all contexts will be computed again",
            {{"path", folder_.db()}, {"reason", why.message()}});
  places_.clear();
  bad->clear();
  return options_.read_only ? Status() : records_.drop_placements();
}

Status RocksDbTier::read_placements() {
  std::vector<std::string> bad;
  const auto add = [&](std::string_view key, std::optional<SegmentId> id, std::string_view value) {
    auto placement = record::decode_placement(value);
    if (id && placement.ok()) {
      places_.emplace(*id, std::move(*placement));
    } else {
      bad.emplace_back(key);
    }
  };
  if (const Status s = records_.scan_placements(add); !s.ok())
    QUIRE_RETURN_IF_ERROR(forget_placements(s, &bad));
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
  return options_.read_only || bad.empty() ? Status() : records_.erase_placements(bad);
}

/// Goes on after a write that failed. `certain`: waits for other threads that do so, and returns an
/// error if it is not possible yet.
Status RocksDbTier::resume(bool certain) {
  using namespace std::chrono;
  bool reopened = false;
  Status status;
  if (certain)
    status = records_.recover(&reopened);
  else
    reopened = records_.resume_after_failure();
  if (reopened) {
    mend_placements_ = true;
    if (copy_) copy_->must_compare();
  }
  if (!mend_placements_) return status;
  const auto now = duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
  if (now < next_mend_ms_ || !mend_placements_.exchange(false)) return status;
  const Status s = mend_placements();
  if (s.ok()) return status;
  next_mend_ms_ = now + kMendMs;
  mend_placements_ = true;
  log_warning("the list of the places of KV could not be compared; it is tried again",
              {{"path", folder_.db()}, {"reason", s.to_string()}});
  return status;
}

/// Makes the list of places in the records that of this process. Opened again, the records may have
/// a change that failed, and lack one that was not synchronized.
Status RocksDbTier::mend_placements() {
  const std::unique_lock placing(placing_mu_);
  std::unordered_set<SegmentId> right;
  std::vector<std::string> wrong;
  QUIRE_RETURN_IF_ERROR(records_.scan_placements(
      [&](std::string_view key, std::optional<SegmentId> id, std::string_view value) {
        const std::shared_lock lock(places_mu_);
        const auto it = id ? places_.find(*id) : places_.end();
        if (it == places_.end())
          wrong.emplace_back(key);
        else if (record::encode_placement(it->second) == value)
          right.insert(*id);
      }));
  std::vector<std::pair<SegmentId, Placement>> missing;
  {
    const std::shared_lock lock(places_mu_);
    for (const auto& place : places_)
      if (!right.contains(place.first)) missing.push_back(place);
  }
  if (wrong.empty() && missing.empty()) return {};
  if (!wrong.empty()) QUIRE_RETURN_IF_ERROR(records_.erase_placements(wrong));
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const Sync sync = i + 1 < missing.size() ? Sync::kNo : Sync::kYes;
    QUIRE_RETURN_IF_ERROR(records_.put_placement(missing[i].first, missing[i].second, sync));
  }
  log_info("the list of the places of KV is as it was before an error of the disk",
           {{"path", folder_.db()},
            {"written", std::to_string(missing.size())},
            {"removed", std::to_string(wrong.size())}});
  return {};
}

Status RocksDbTier::write(std::span<const RecordWrite> writes, Sync sync) {
  (void)resume();
  // Segments whose records follow must be durable before them.
  if (sync == Sync::kYes) QUIRE_RETURN_IF_ERROR(extents_->sync());
  std::uint64_t number = 0;
  QUIRE_RETURN_IF_ERROR(records_.write(writes, sync, &number));
  if (copy_) copy_->write(records_, writes, sync, number);
  return {};
}

Result<std::string> RocksDbTier::get(Family family, std::string_view key) {
  auto value = records_.get(family, key);
  if (value.code() != Code::kCorruption || !copy_) return value;
  auto copied = copy_->get(family, key);
  if (!copied.ok()) return value;
  log_error("a record is damaged and was read from the copy; 'quire store repair' makes it anew",
            {{"path", folder_.db()}, {"reason", value.status().message()}});
  return copied;
}

/// The values are in the file first, then the placement is in the log. The record that makes the
/// segment survive a restart follows in the same log and with a synchronized write, so it is never
/// there without them.
Result<std::uint64_t> RocksDbTier::write_segment(SegmentId id, std::span<const Value> values) {
  (void)resume();
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
  const std::shared_lock placing(placing_mu_);
  if (Status s = records_.put_placement(id, p, Sync::kNo); !s.ok()) {
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
  const std::shared_lock placing(placing_mu_);
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
    status = records_.erase_placement(id);
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
  (void)resume();
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
    const std::shared_lock placing(placing_mu_);
    if (s.ok()) s = records_.put_placement(info.id, next, Sync::kYes);
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
  DiskUsage u = records_.usage();
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
