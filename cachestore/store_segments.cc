// This file implements the segment half of StoreImpl: writing, finding, reading.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

constexpr std::uint64_t kMaxValues = 1u << 24;
/// The most that a segment takes on disk besides its payloads. Per value: its header and filling up
/// to the next slot. Per segment: rounding to whole blocks, its records, and what the file system
/// itself needs for a longer file.
constexpr std::uint64_t kBytesPerValue = 128, kBytesPerSegment = 24u << 10;

using record::Part;
using record::ValueName;

Status check_layout(const SegmentLayout& l) {
  if (l.num_blocks < 1 || l.num_blocks > (1u << 24))
    return Status::invalid("num_blocks", "must be 1 to 16777216");
  if (l.values_per_block < 1 || l.values_per_block > 4096)
    return Status::invalid("values_per_block", "must be 1 to 4096");
  if (l.num_sketches > (1u << 20))
    return Status::invalid("num_sketches", "must be at most 1048576");
  if (std::uint64_t{l.num_blocks} * l.values_per_block > kMaxValues)
    return Status::invalid("num_blocks", "the segment has more than 16777216 values");
  return {};
}

class Writer final : public SegmentWriter {
 public:
  Writer(StoreImpl& store, StoreImpl::Reservation room, SegmentInfo info,
         std::uint64_t expected_bytes)
      : store_(store),
        room_(std::move(room)),
        info_(std::move(info)),
        bytes_left_(expected_bytes),
        values_(std::size_t{info_.layout.num_blocks} * info_.layout.values_per_block),
        sketches_(info_.layout.num_sketches) {}
  ~Writer() override {
    if (open_) store_.abandon(info_.key);
  }
  const SegmentLayout& layout() const override { return info_.layout; }

  Status put_value(std::uint32_t block, std::uint32_t group,
                   std::span<const std::byte> bytes) override {
    QUIRE_RETURN_IF_ERROR(check_place(block, group));
    QUIRE_RETURN_IF_ERROR(
        put(values_[std::size_t{block} * info_.layout.values_per_block + group], bytes));
    info_.value_bytes += bytes.size();
    return {};
  }
  Status take_value(std::uint32_t block, std::uint32_t group,
                    std::shared_ptr<ValueBuffer> value) override {
    if (!value) return Status::invalid("value", "must not be null");
    QUIRE_RETURN_IF_ERROR(check_place(block, group));
    const std::size_t size = value->payload().size();
    QUIRE_RETURN_IF_ERROR(take(values_[std::size_t{block} * info_.layout.values_per_block + group],
                               size, [&] { return std::move(value); }));
    info_.value_bytes += size;
    return {};
  }
  Status put_sketch(std::uint32_t index, std::span<const std::byte> bytes) override {
    if (index >= info_.layout.num_sketches)
      return Status::invalid("index", "is " + std::to_string(index) + " of " +
                                          std::to_string(info_.layout.num_sketches));
    QUIRE_RETURN_IF_ERROR(put(sketches_[index], bytes));
    info_.sketch_bytes += bytes.size();
    return {};
  }

  Result<SegmentHandle> finish() override {
    if (!open_) return Status::precondition("the writer is finished already");
    std::vector<DiskTier::Value> values;
    values.reserve(values_.size() + sketches_.size());
    const std::uint32_t per_block = info_.layout.values_per_block;
    for (std::size_t i = 0; i < values_.size() + sketches_.size(); ++i) {
      const bool is_value = i < values_.size();
      const auto v = static_cast<std::uint32_t>(is_value ? i : i - values_.size());
      const auto& buffer = is_value ? values_[v] : sketches_[v];
      if (!buffer) {
        return Status::precondition(is_value ? "the value of block " +
                                                   std::to_string(v / per_block) + ", group " +
                                                   std::to_string(v % per_block) + " was never put"
                                             : "sketch " + std::to_string(v) + " was never put");
      }
      const ValueName name = is_value
                                 ? ValueName{info_.id, Part::kValue, v / per_block, v % per_block}
                                 : ValueName{info_.id, Part::kSketch, v, 0};
      record::write_value_header(name, buffer->payload(), buffer->stored().data());
      values.push_back({name, buffer});
    }
    auto handle = store_.publish(info_, values);
    if (handle.ok()) open_ = false;
    values_.clear();
    sketches_.clear();
    room_ = {};
    if (open_) store_.abandon(info_.key);
    open_ = false;
    return handle;
  }

 private:
  Status check_place(std::uint32_t block, std::uint32_t group) const {
    if (block >= info_.layout.num_blocks)
      return Status::invalid("block", "is " + std::to_string(block) + " of " +
                                          std::to_string(info_.layout.num_blocks));
    if (group >= info_.layout.values_per_block) {
      return Status::invalid("group", "is " + std::to_string(group) + " of " +
                                          std::to_string(info_.layout.values_per_block));
    }
    return {};
  }
  /// Fills `slot` with the result of `make`, if `size` payload bytes are allowed there.
  template <class Make>
  Status take(std::shared_ptr<ValueBuffer>& slot, std::size_t size, Make&& make) {
    if (!open_) return Status::precondition("the writer is finished already");
    if (slot) return Status::invalid("value", "was put already");
    if (size == 0 || size > record::kMaxValueBytes)
      return Status::invalid("value", "must have 1 byte to 64 MiB");
    if (size > bytes_left_)
      return Status::exhausted("the segment has more bytes than were reserved for it");
    slot = make();
    bytes_left_ -= size;
    return {};
  }
  Status put(std::shared_ptr<ValueBuffer>& slot, std::span<const std::byte> bytes) {
    return take(slot, bytes.size(), [&] {
      auto buffer = std::make_shared<ValueBuffer>(bytes.size());
      std::memcpy(buffer->payload().data(), bytes.data(), bytes.size());
      return buffer;
    });
  }

  StoreImpl& store_;
  StoreImpl::Reservation room_;
  SegmentInfo info_;
  std::uint64_t bytes_left_;
  std::vector<std::shared_ptr<ValueBuffer>> values_, sketches_;
  bool open_ = true;
};

/// A task of fetch_async reads at most this many values, together at most about this many bytes.
constexpr std::size_t kMostReadsAtOnce = 16;
constexpr std::uint64_t kBytesAtOnce = 256u << 10;

ValueName name_of(const ReadRequest& r) {
  return {r.segment->id, r.kind == ReadKind::kSketch ? Part::kSketch : Part::kValue, r.block,
          r.group};
}

/// Returns the mean size of the segment's values of this kind.
std::uint64_t mean_bytes(const ReadRequest& r) {
  const SegmentInfo& s = r.segment.info();
  if (r.kind == ReadKind::kSketch) return s.sketch_bytes / s.layout.num_sketches;
  return s.value_bytes / (std::uint64_t{s.layout.num_blocks} * s.layout.values_per_block);
}

Status no_memory() { return Status::exhausted("not enough memory to read a value"); }

}  // namespace

std::optional<SegmentHandle> StoreImpl::find_segment(const ContextKey& key) {
  auto handle = segments_->find(key, now_ms());
  ++(handle ? segment_hits_ : segment_misses_);
  return handle;
}

std::optional<SegmentHandle> StoreImpl::peek_segment(const ContextKey& key) {
  return segments_->find(key, std::nullopt);
}

Result<std::unique_ptr<SegmentWriter>> StoreImpl::begin_segment(const ContextKey& key,
                                                                const SegmentLayout& layout,
                                                                std::uint64_t expected_bytes,
                                                                std::string_view tenant,
                                                                std::string_view fingerprint) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  QUIRE_RETURN_IF_ERROR(check_layout(layout));
  if (key.is_zero()) return Status::invalid("key", "must not be zero");
  if (tenant.size() > kMaxIdBytes)
    return Status::invalid("tenant", "is longer than " + std::to_string(kMaxIdBytes) + " bytes");
  if (fingerprint.size() > kMaxTitleBytes) return Status::invalid("fingerprint", "is too long");
  if (expected_bytes > UINT64_MAX / 4) return Status::invalid("expected_bytes", "is too large");
  SegmentInfo info;
  const std::uint64_t num_values = std::uint64_t{layout.num_blocks} * layout.values_per_block +
                                   layout.num_sketches;
  const std::uint64_t bytes = expected_bytes + num_values * kBytesPerValue + kBytesPerSegment;
  QUIRE_ASSIGN_OR_RETURN(info.id, segments_->begin(key, tenant, bytes));
  auto room = reserve(bytes, "a context's KV");
  if (!room.ok()) {
    segments_->abandon(key);
    return room.status();
  }
  info.key = key;
  info.layout = layout;
  info.created_ms = now_ms();
  info.tenant = tenant;
  info.fingerprint = fingerprint;
  return std::unique_ptr<SegmentWriter>(
      std::make_unique<Writer>(*this, std::move(*room), std::move(info), expected_bytes));
}

Result<SegmentHandle> StoreImpl::publish(SegmentInfo info,
                                         std::span<const DiskTier::Value> values) {
  auto written = write_clock_.time([&] { return disk_->write_segment(info.id, values); });
  if (!written.ok()) {
    if (written.code() != Code::kResourceExhausted) ++write_errors_;
    return written.status();
  }
  info.disk_bytes = *written;
  disk_written_bytes_ += info.disk_bytes;
  SegmentHandle handle = segments_->publish(std::move(info));
  for (const auto& v : values) dram_->insert(v.name, v.buffer, handle->tenant);
  return handle;
}

Result<std::uint64_t> StoreImpl::commit_segments(std::span<const SegmentHandle> segments) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  std::uint64_t kept = 0;
  std::vector<ContextKey> keys;
  for (const auto& s : segments) {
    if (!s || !segments_->is_referenced(s->key)) continue;
    ++kept;
    keys.push_back(s->key);
  }
  const auto fresh = segments_->uncommitted(keys);
  if (fresh.empty()) return kept;
  std::vector<RecordWrite> batch;
  for (const auto& info : fresh)
    batch.push_back(
        {Family::kCatalog, segment_record_key(info->id), record::encode_segment(*info)});
  QUIRE_RETURN_IF_ERROR(write_with_room(batch, "segment records"));
  for (const auto& info : fresh) segments_->set_committed(info->id);
  share(keys);
  return kept;
}

Status StoreImpl::discard_segment(const SegmentHandle& segment) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  if (!segment) return Status::invalid("segment", "the handle is empty");
  segments_->discard(segment->id);
  if (remote_) remote_->remove(segment.info());
  return {};
}

Result<PinnedBytes> StoreImpl::read_value(const SegmentHandle& segment, std::uint32_t block,
                                          std::uint32_t group, Tier* tier) {
  if (!segment) return Status::invalid("segment", "the handle is empty");
  if (block >= segment->layout.num_blocks || group >= segment->layout.values_per_block) {
    return Status::invalid("block", "block " + std::to_string(block) + ", group " +
                                        std::to_string(group) + " is outside the segment");
  }
  return read_named(segment, {segment->id, Part::kValue, block, group}, tier);
}

Result<PinnedBytes> StoreImpl::read_sketch(const SegmentHandle& segment, std::uint32_t index,
                                           Tier* tier) {
  if (!segment) return Status::invalid("segment", "the handle is empty");
  if (index >= segment->layout.num_sketches)
    return Status::invalid("index", "sketch " + std::to_string(index) + " is outside the segment");
  return read_named(segment, {segment->id, Part::kSketch, index, 0}, tier);
}

Result<PinnedBytes> StoreImpl::read_named(const SegmentHandle& segment, const ValueName& name,
                                          Tier* tier) {
  if (auto buffer = dram_->find(name)) {
    if (tier) *tier = Tier::kDram;
    const auto bytes = buffer->payload();
    return PinnedBytes(std::move(buffer), bytes);
  }
  auto bytes = take_read(segment, name, read_clock_.time([&] { return read_checked(name); }));
  if (tier) *tier = bytes.ok() ? Tier::kDisk : Tier::kNone;
  return bytes;
}

Result<PinnedBytes> StoreImpl::take_read(const SegmentHandle& segment, const ValueName& name,
                                         Result<std::shared_ptr<ValueBuffer>> read) {
  const Status s = read.status();
  if (s.code() == Code::kNotFound || s.code() == Code::kCorruption) {
    quarantine(segment, s);
    return Status::corruption(s.message());
  }
  if (!s.ok()) {
    ++read_errors_;
    return s;
  }
  std::shared_ptr<const ValueBuffer> buffer = std::move(*read);
  ++disk_reads_;
  disk_read_bytes_ += buffer->payload().size();
  if (auto kept = dram_->keep(name, buffer, segment->tenant))
    buffer = std::move(kept);
  else
    unpooled_bytes_ += buffer->payload().size();
  const auto bytes = buffer->payload();
  return PinnedBytes(std::move(buffer), bytes);
}

Result<PinnedBytes> StoreImpl::peek_value(const ReadRequest& r) {
  const bool sketch = r.kind == ReadKind::kSketch;
  if (!r.segment) return Status::invalid("segment", "the handle is empty");
  if (sketch ? r.block >= r.segment->layout.num_sketches || r.group != 0
             : r.block >= r.segment->layout.num_blocks ||
                   r.group >= r.segment->layout.values_per_block)
    return Status::invalid("block", "block " + std::to_string(r.block) + ", group " +
                                        std::to_string(r.group) + " is outside the segment");
  const ValueName name{r.segment->id, sketch ? Part::kSketch : Part::kValue, r.block, r.group};
  std::shared_ptr<const ValueBuffer> buffer = dram_->peek(name);
  if (!buffer) {
    auto read = read_checked(name);
    if (read.code() == Code::kNotFound || read.code() == Code::kCorruption) {
      quarantine(r.segment, read.status());
      return Status::corruption(read.status().message());
    }
    QUIRE_RETURN_IF_ERROR(read.status());
    buffer = std::move(*read);
  }
  const auto bytes = buffer->payload();
  return PinnedBytes(std::move(buffer), bytes);
}

Result<std::shared_ptr<ValueBuffer>> StoreImpl::read_checked(const ValueName& name) {
  Result<std::shared_ptr<ValueBuffer>> read = no_memory();
  try {
    read = disk_->read(name);
  } catch (const std::bad_alloc&) {  // it says so itself
  }
  QUIRE_RETURN_IF_ERROR(read.status());
  QUIRE_RETURN_IF_ERROR(record::check_value(name, (*read)->stored()));
  return read;
}

void StoreImpl::quarantine(const SegmentHandle& segment, const Status& why) {
  ++integrity_failures_;
  if (options_.read_only || !segments_->quarantine(segment->id)) return;
  ++quarantined_;
  log_error("bad KV in the store: its context will be computed again",
            {{"segment", std::to_string(segment->id)}, {"reason", why.to_string()}});
}

struct StoreImpl::Fetch {
  std::vector<ReadRequest> requests;
  FetchDone done;
  std::stop_token stop;
  std::vector<std::size_t> missing;  // requests that DRAM has not answered, in order
};

Status StoreImpl::fetch_async(std::vector<ReadRequest> requests, FetchDone done,
                              std::stop_token stop) {
  for (const auto& r : requests) {
    const bool inside = r.segment && (r.kind == ReadKind::kSketch
                                          ? r.block < r.segment->layout.num_sketches && r.group == 0
                                          : r.block < r.segment->layout.num_blocks &&
                                                r.group < r.segment->layout.values_per_block);
    if (!inside) return Status::invalid("requests", "a read is outside its segment");
  }
  auto fetch = std::make_shared<Fetch>(
      Fetch{std::move(requests), std::move(done), std::move(stop), {}});
  std::vector<std::pair<std::size_t, std::shared_ptr<const ValueBuffer>>> hits;
  for (std::size_t i = 0; i < fetch->requests.size(); ++i) {
    if (auto buffer = dram_->find(name_of(fetch->requests[i]))) {
      hits.emplace_back(i, std::move(buffer));
    } else {
      fetch->missing.push_back(i);
    }
  }
  // One task reads several small values. Few values are spread over all threads first.
  const std::size_t most = std::clamp<std::size_t>(
      fetch->missing.size() / (8 * to_size(options_.io_threads)), 1, kMostReadsAtOnce);
  std::vector<IoPool::Task> tasks;
  for (std::size_t first = 0; first < fetch->missing.size();) {
    std::size_t last = first;
    std::uint64_t bytes = 0;
    do {
      bytes += mean_bytes(fetch->requests[fetch->missing[last++]]);
    } while (last < fetch->missing.size() && last - first < most &&
             bytes + mean_bytes(fetch->requests[fetch->missing[last]]) <= kBytesAtOnce);
    tasks.push_back({[this, fetch, first, last] { answer(*fetch, first, last); }, last - first});
    first = last;
  }
  if (!tasks.empty()) QUIRE_RETURN_IF_ERROR(pool_->post_all(std::move(tasks)));
  for (auto& [i, buffer] : hits) {
    const auto bytes = buffer->payload();
    fetch->done(i, PinnedBytes(std::move(buffer), bytes), Tier::kDram);
  }
  return {};
}

void StoreImpl::answer(Fetch& fetch, std::size_t first, std::size_t last) {
  const std::span<const std::size_t> places(fetch.missing.data() + first, last - first);
  if (fetch.stop.stop_requested()) {
    for (const std::size_t i : places) {
      fetch.requests[i] = {};
      fetch.done(i, Status::cancelled("the read was cancelled"), Tier::kNone);
    }
    return;
  }
  std::vector<ValueName> names;
  for (const std::size_t i : places) names.push_back(name_of(fetch.requests[i]));
  std::vector<Result<std::shared_ptr<ValueBuffer>>> reads;
  read_slots_.acquire();
  try {
    reads = read_clock_.time([&] { return disk_->read_some(names); });
  } catch (const std::bad_alloc&) {
    reads.assign(names.size(), no_memory());
  }
  read_slots_.release();  // other reads go to the disk while these values are checked
  for (std::size_t k = 0; k < places.size(); ++k) {
    // The handle is released when its own read is answered, not after the last read.
    const ReadRequest request = std::exchange(fetch.requests[places[k]], {});
    if (reads[k].ok()) {
      if (Status s = record::check_value(names[k], (*reads[k])->stored()); !s.ok())
        reads[k] = std::move(s);
    }
    auto bytes = take_read(request.segment, names[k], std::move(reads[k]));
    const Tier tier = bytes.ok() ? Tier::kDisk : Tier::kNone;
    fetch.done(places[k], std::move(bytes), tier);
  }
}

Tier StoreImpl::tier_of(const SegmentHandle& segment, std::uint32_t block, std::uint32_t group) {
  if (!segment || block >= segment->layout.num_blocks || group >= segment->layout.values_per_block)
    return Tier::kNone;
  return dram_->contains({segment->id, Part::kValue, block, group}) ? Tier::kDram : Tier::kDisk;
}

}  // namespace quire
