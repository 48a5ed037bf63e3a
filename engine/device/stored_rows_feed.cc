#include "engine/device/stored_rows_feed.h"

#include <cstring>
#include <string>
#include <vector>

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

}  // namespace

Result<RawKvView> StoredRowsFeed::upload(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                                         std::int32_t head_dim) {
  std::int64_t total = 0;
  std::vector<std::int64_t> first;
  const DType dtype = rows.front().dtype;
  for (const RawKvView& piece : rows) {
    if (piece.dtype != dtype)
      return Status::invalid("rows", "stored rows of one call have one dtype");
    first.push_back(total);
    total += piece.num_rows;
  }
  const std::int64_t row_bytes = head_dim * static_cast<std::int64_t>(dtype_bytes(dtype)),
                     bytes = 2 * num_kv_heads * total * row_bytes;
  Slot& slot = slots_[next_];
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::WaitEventArgs{slot.arrived.number()}));
  QUIRE_RETURN_IF_ERROR(slot.pinned.reserve(bytes));
  QUIRE_RETURN_IF_ERROR(slot.device.reserve(bytes));
  // Pieces are blocks or single rows.
  parallel_tasks(count_of(rows), [&](std::int64_t i) {
    pack(rows[at(i)], num_kv_heads, row_bytes, total, first[at(i)], slot.pinned.data());
  });
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{slot.used.number(), cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::CopyAsyncArgs{slot.device.data(), slot.pinned.data(), bytes}));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::RecordEventArgs{slot.arrived.number(), cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{slot.arrived.number(), cuda::Lane::kCompute}));
  return RawKvView{.data = slot.device.data(),
                   .num_rows = total,
                   .dtype = dtype,
                   .head_stride = 2 * total * row_bytes,
                   .kv_stride = total * row_bytes,
                   .row_stride = row_bytes};
}

Status StoredRowsFeed::placed() {
  const std::int32_t used = slots_[next_].used.number();
  next_ = (next_ + 1) % slots_.size();
  return memory_->run(cuda::RecordEventArgs{used, cuda::Lane::kCompute});
}

}  // namespace quire
