#include "engine/device/stored_rows_feed.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Copies the rows of `piece` to rows [first, ...) of a contiguous [head][2][total][head_dim].
void pack(const RawKvView& piece, std::int64_t heads, std::int64_t row_bytes, std::int64_t total,
          std::int64_t first, std::byte* out) {
  const auto* data = static_cast<const std::byte*>(piece.data);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t kv = 0; kv < 2; ++kv) {
      const std::byte* from = data + h * piece.head_stride + kv * piece.kv_stride;
      std::byte* to = out + ((h * 2 + kv) * total + first) * row_bytes;
      if (piece.row_stride == row_bytes) {
        std::memcpy(to, from, to_size(piece.num_rows * row_bytes));
        continue;
      }
      for (std::int64_t r = 0; r < piece.num_rows; ++r)
        std::memcpy(to + r * row_bytes, from + r * piece.row_stride, to_size(row_bytes));
    }
  }
}

/// Packs all rows but those that are read in place, on all cores that are free: pieces are blocks
/// or single rows.
void pack_all(std::span<const RawKvView> rows, std::span<const std::uint8_t> in_place,
              std::int64_t heads, std::int64_t row_bytes, std::int64_t total,
              std::span<const std::int64_t> first, std::byte* out) {
  parallel_tasks(count_of(rows), [&](std::int64_t i) {
    if (in_place.empty() || in_place[at(i)] == 0)
      pack(rows[at(i)], heads, row_bytes, total, first[at(i)], out);
  });
}

/// Returns whether a copy of the piece's bytes is a contiguous [head][2][num_rows][head_dim].
bool is_contiguous(const RawKvView& piece, std::int64_t row_bytes) {
  return piece.row_stride == row_bytes && piece.kv_stride == piece.num_rows * row_bytes &&
         piece.head_stride == 2 * piece.kv_stride;
}

/// Returns the bytes from the first element of the piece to its last one.
std::int64_t extent(const RawKvView& piece, std::int64_t heads, std::int64_t row_bytes) {
  return (heads - 1) * piece.head_stride + piece.kv_stride +
         (piece.num_rows - 1) * piece.row_stride + row_bytes;
}

constexpr std::int64_t kGatherUnit = 16;  // bytes; see kv_gather.h
/// The bytes from which a contiguous piece in place comes by a copy of its own: copies leave the
/// multiprocessors to the kernels of the computing stream, but each costs the host a call.
constexpr std::int64_t kLeastCopy = 32 << 10;

bool is_gatherable(const RawKvView& piece) {
  return (static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(piece.data)) |
          piece.head_stride | piece.kv_stride | piece.row_stride) %
             kGatherUnit ==
         0;
}

std::int64_t pages_of(std::int64_t rows) { return (rows + kPageTokens - 1) / kPageTokens; }

}  // namespace

struct StoredRowsFeed::Gather {
  std::int64_t head_stride, kv_stride, row_stride;
  std::vector<const void*> pages;
  std::vector<KvMove> moves;
  std::int32_t most_rows = 0;

  bool takes(const RawKvView& piece) const {
    return piece.head_stride == head_stride && piece.kv_stride == kv_stride &&
           piece.row_stride == row_stride;
  }
  void add(const RawKvView& piece, std::int64_t heads, std::int64_t first) {
    const auto from = static_cast<std::int32_t>(count_of(pages) * kPageTokens),
               rows = static_cast<std::int32_t>(piece.num_rows);
    for (std::int64_t page = 0; page < pages_of(rows); ++page)
      pages.push_back(static_cast<const std::byte*>(piece.data) + page * kPageTokens * row_stride);
    for (std::int64_t h = 0; h < heads; ++h)
      moves.push_back({static_cast<std::int32_t>(h), from, static_cast<std::int32_t>(first), rows});
    most_rows = std::max(most_rows, rows);
  }
};

StoredRowsFeed::~StoredRowsFeed() {
  for (Slot& slot : slots_) {
    // A lost device reads nothing any more.
    if (!slot.held.empty()) (void)memory_->run(cuda::WaitEventArgs{slot.arrived.number()});
  }
}

Result<StoredRowsFeed::Packing> StoredRowsFeed::packing_of(std::span<const RawKvView> rows,
                                                           std::int32_t num_kv_heads,
                                                           std::int32_t head_dim) {
  Packing out;
  out.dtype = rows.front().dtype;
  for (const RawKvView& piece : rows) {
    if (piece.dtype != out.dtype)
      return Status::invalid("rows", "stored rows of one call have one dtype");
    out.first.push_back(out.total);
    out.total += piece.num_rows;
  }
  out.heads = num_kv_heads;
  out.row_bytes = head_dim * static_cast<std::int64_t>(dtype_bytes(out.dtype));
  out.bytes = 2 * out.heads * out.total * out.row_bytes;
  return out;
}

/// Holds the pieces that the device can read where they lie.
void StoredRowsFeed::hold_in_place(Slot& slot, std::span<const RawKvView> rows,
                                   const Packing& packing) const {
  slot.in_place.clear();
  if (memory_->values() == nullptr || packing.row_bytes % kGatherUnit != 0) return;
  std::vector<PinnedValues::Range> ranges;
  for (const RawKvView& piece : rows) {
    if (piece.num_rows > 0 && is_gatherable(piece))
      ranges.push_back({piece.data, extent(piece, packing.heads, packing.row_bytes)});
    else
      ranges.push_back({nullptr, 0});
  }
  slot.in_place = PinnedValues::hold(memory_->values(), ranges, slot.held);
  if (std::ranges::count(slot.in_place, 1) == 0) slot.in_place.clear();
}

/// Waits for the copy of what the slot holds, as it is about to be overwritten, and makes room for
/// what is to be packed.
Status StoredRowsFeed::make_room(Slot& slot, std::span<const RawKvView> rows,
                                 const Packing& packing) {
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::WaitEventArgs{slot.arrived.number()}));
  slot.held.end();
  hold_in_place(slot, rows, packing);
  if (std::ranges::count(slot.in_place, 1) < count_of(rows))
    QUIRE_RETURN_IF_ERROR(slot.pinned.reserve(packing.bytes));
  return slot.device.reserve(packing.bytes);
}

bool StoredRowsFeed::is_packed(std::span<const RawKvView> rows) const {
  return std::ranges::equal(rows, packed_, [](const RawKvView& a, const RawKvView& b) {
    return a.data == b.data && a.num_rows == b.num_rows && a.dtype == b.dtype &&
           a.head_stride == b.head_stride && a.kv_stride == b.kv_stride &&
           a.row_stride == b.row_stride;
  });
}

Status StoredRowsFeed::pack_ahead(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                                  std::int32_t head_dim) {
  end_packing();
  QUIRE_ASSIGN_OR_RETURN(Packing packing, packing_of(rows, num_kv_heads, head_dim));
  Slot& slot = slots_[next_];
  QUIRE_RETURN_IF_ERROR(make_room(slot, rows, packing));
  packed_.assign(rows.begin(), rows.end());
  if (std::ranges::count(slot.in_place, 1) == count_of(rows)) return {};
  packer_.run([rows = packed_, in_place = slot.in_place, packing = std::move(packing),
               to = slot.pinned.data()] {
    pack_all(rows, in_place, packing.heads, packing.row_bytes, packing.total, packing.first, to);
  });
  return {};
}

Result<RawKvView> StoredRowsFeed::upload(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                                         std::int32_t head_dim) {
  QUIRE_ASSIGN_OR_RETURN(const Packing packing, packing_of(rows, num_kv_heads, head_dim));
  Slot& slot = slots_[next_];
  packer_.wait();
  const bool packed = is_packed(rows);
  end_packing();
  if (!packed) {
    QUIRE_RETURN_IF_ERROR(make_room(slot, rows, packing));
    if (std::ranges::count(slot.in_place, 1) < count_of(rows))
      pack_all(rows, slot.in_place, packing.heads, packing.row_bytes, packing.total, packing.first,
               slot.pinned.data());
  }
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{slot.used.number(), cuda::Lane::kCopies}));
  const Status copied = copy(slot, rows, packing);
  // Also after an error, as a part of the copies may be under way.
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::RecordEventArgs{slot.arrived.number(), cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(copied);
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{slot.arrived.number(), cuda::Lane::kCompute}));
  return RawKvView{.data = slot.device.data(),
                   .num_rows = packing.total,
                   .dtype = packing.dtype,
                   .head_stride = 2 * packing.total * packing.row_bytes,
                   .kv_stride = packing.total * packing.row_bytes,
                   .row_stride = packing.row_bytes};
}

Status StoredRowsFeed::copy(Slot& slot, std::span<const RawKvView> rows, const Packing& packing) {
  const void* from = slot.pinned.data();
  if (!slot.in_place.empty()) {
    if (rows.size() > 1 || !is_contiguous(rows.front(), packing.row_bytes))
      return gather(slot, rows, packing);
    from = rows.front().data;
  }
  return memory_->run(
      cuda::CopyAsyncArgs{slot.device.data(), from, packing.bytes, cuda::Lane::kCopies});
}

/// Gathers every piece from where it lies, where it was packed, or where its copy arrived, to its
/// rows of the slot. The lists come by the copy stream, too, as the computing one may be far
/// behind.
Status StoredRowsFeed::gather(Slot& slot, std::span<const RawKvView> rows, const Packing& packing) {
  const auto there = [&](std::byte* data) {
    return RawKvView{.data = data,
                     .num_rows = packing.total,
                     .dtype = packing.dtype,
                     .head_stride = 2 * packing.total * packing.row_bytes,
                     .kv_stride = packing.total * packing.row_bytes,
                     .row_stride = packing.row_bytes};
  };
  const auto is_copied = [&](std::size_t i) {
    return slot.in_place[i] != 0 && is_contiguous(rows[i], packing.row_bytes) &&
           packing.bytes_of(rows[i]) >= kLeastCopy;
  };
  std::int64_t arriving = 0;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (is_copied(i)) arriving += packing.bytes_of(rows[i]);
  QUIRE_RETURN_IF_ERROR(copies_.reserve(arriving));
  std::vector<cuda::CopyAsyncArgs> copies;
  std::vector<Gather> gathers;
  std::int64_t copied = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RawKvView piece = rows[i];
    if (piece.num_rows == 0) continue;
    if (slot.in_place[i] == 0) {
      piece = there(slot.pinned.data() + packing.first[i] * packing.row_bytes);
      piece.num_rows = rows[i].num_rows;
    } else if (is_copied(i)) {
      std::byte* const at = copies_.data() + copied;
      copies.push_back({at, piece.data, packing.bytes_of(piece), cuda::Lane::kCopies});
      copied += copies.back().bytes;
      piece.data = at;
    }
    auto to = std::ranges::find_if(gathers, [&](const Gather& g) { return g.takes(piece); });
    if (to == gathers.end())
      to = gathers.insert(to, {piece.head_stride, piece.kv_stride, piece.row_stride, {}, {}});
    to->add(piece, packing.heads, packing.first[i]);
  }
  std::vector<void*> targets;
  for (std::int64_t page = 0; page < pages_of(packing.total); ++page)
    targets.push_back(slot.device.data() + page * kPageTokens * packing.row_bytes);

  constexpr std::int64_t kAlignment = 64;
  const auto rounded = [](std::int64_t n) {
    return (n + kAlignment - 1) / kAlignment * kAlignment;
  };
  const auto bytes_of = [&](const auto& list) {
    return rounded(static_cast<std::int64_t>(std::as_bytes(std::span(list)).size()));
  };
  std::int64_t bytes = bytes_of(targets);
  for (const Gather& g : gathers) bytes += bytes_of(g.pages) + bytes_of(g.moves);
  const auto room = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
  QUIRE_RETURN_IF_ERROR(slot.pinned_lists.reserve(room));
  QUIRE_RETURN_IF_ERROR(slot.lists.reserve(room));
  std::int64_t end = 0;
  const auto put = [&]<class T>(const std::vector<T>& list) {
    const std::int64_t begin = std::exchange(end, end + bytes_of(list));
    std::memcpy(slot.pinned_lists.data() + begin, list.data(), list.size() * sizeof(T));
    return reinterpret_cast<const T*>(slot.lists.data() + begin);
  };
  const RawKvView to = there(slot.device.data());
  KvGatherArgs args{};
  args.src.num_kv_heads = args.dst.num_kv_heads = static_cast<std::int32_t>(packing.heads);
  args.src.head_dim = args.dst.head_dim = static_cast<std::int32_t>(
      packing.row_bytes / static_cast<std::int64_t>(dtype_bytes(packing.dtype)));
  args.src.dtype = args.dst.dtype = packing.dtype;
  args.dst.pages = put(targets);
  args.dst.num_rows = packing.total;
  args.dst.kv_stride = to.kv_stride;
  args.dst.head_stride = to.head_stride;
  args.dst.token_stride = to.row_stride;
  std::vector<cuda::GatherRowsArgs> all;
  for (const Gather& g : gathers) {
    args.src.pages = put(g.pages);
    args.src.num_rows = count_of(g.pages) * kPageTokens;
    args.src.kv_stride = g.kv_stride;
    args.src.head_stride = g.head_stride;
    args.src.token_stride = g.row_stride;
    args.moves = put(g.moves);
    args.num_moves = count_of(g.moves);
    args.most_rows = g.most_rows;
    all.push_back({args, cuda::Lane::kCopies});
  }
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::CopyAsyncArgs{
      slot.lists.data(), slot.pinned_lists.data(), bytes, cuda::Lane::kCopies}));
  for (const cuda::CopyAsyncArgs& one : copies) QUIRE_RETURN_IF_ERROR(memory_->run(one));
  for (const cuda::GatherRowsArgs& gather : all) QUIRE_RETURN_IF_ERROR(memory_->run(gather));
  return {};
}

Status StoredRowsFeed::placed() {
  const std::int32_t used = slots_[next_].used.number();
  next_ = (next_ + 1) % slots_.size();
  return memory_->run(cuda::RecordEventArgs{used, cuda::Lane::kCompute});
}

}  // namespace quire
