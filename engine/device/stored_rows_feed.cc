#include "engine/device/stored_rows_feed.h"

#include <algorithm>
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

/// Packs all rows, on all cores that are free: pieces are blocks or single rows.
void pack_all(std::span<const RawKvView> rows, std::int64_t heads, std::int64_t row_bytes,
              std::int64_t total, std::span<const std::int64_t> first, std::byte* out) {
  parallel_tasks(count_of(rows), [&](std::int64_t i) {
    pack(rows[at(i)], heads, row_bytes, total, first[at(i)], out);
  });
}

}  // namespace

Result<StoredRowsFeed::Packing> StoredRowsFeed::packing_of(std::span<const RawKvView> rows,
                                                           std::int32_t num_kv_heads,
                                                           std::int32_t head_dim) {
  Packing out;
  const DType dtype = rows.front().dtype;
  for (const RawKvView& piece : rows) {
    if (piece.dtype != dtype)
      return Status::invalid("rows", "stored rows of one call have one dtype");
    out.first.push_back(out.total);
    out.total += piece.num_rows;
  }
  out.heads = num_kv_heads;
  out.row_bytes = head_dim * static_cast<std::int64_t>(dtype_bytes(dtype));
  out.bytes = 2 * num_kv_heads * out.total * out.row_bytes;
  return out;
}

/// Waits for the copy of what the slot holds, as it is about to be overwritten.
Status StoredRowsFeed::make_room(Slot& slot, const Packing& packing) {
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::WaitEventArgs{slot.arrived.number()}));
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
  QUIRE_RETURN_IF_ERROR(make_room(slot, packing));
  packed_.assign(rows.begin(), rows.end());
  packer_.run([rows = packed_, packing = std::move(packing), to = slot.pinned.data()] {
    pack_all(rows, packing.heads, packing.row_bytes, packing.total, packing.first, to);
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
    QUIRE_RETURN_IF_ERROR(make_room(slot, packing));
    pack_all(rows, packing.heads, packing.row_bytes, packing.total, packing.first,
             slot.pinned.data());
  }
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{slot.used.number(), cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::CopyAsyncArgs{slot.device.data(), slot.pinned.data(), packing.bytes}));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::RecordEventArgs{slot.arrived.number(), cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{slot.arrived.number(), cuda::Lane::kCompute}));
  return RawKvView{.data = slot.device.data(),
                   .num_rows = packing.total,
                   .dtype = rows.front().dtype,
                   .head_stride = 2 * packing.total * packing.row_bytes,
                   .kv_stride = packing.total * packing.row_bytes,
                   .row_stride = packing.row_bytes};
}

Status StoredRowsFeed::placed() {
  const std::int32_t used = slots_[next_].used.number();
  next_ = (next_ + 1) % slots_.size();
  return memory_->run(cuda::RecordEventArgs{used, cuda::Lane::kCompute});
}

}  // namespace quire
