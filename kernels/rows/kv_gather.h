/// This file declares copies of rows between paged caches of any two layouts. They copy pages from
/// the host's cache to device slots, single rows, and whole layers that leave a device.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/kv_checks.h"

namespace quire {

/// Copies rows [from, from + rows) of one KV head to rows [to, to + rows); `rows` is at least 1.
/// Devices load a move as one word of 16 bytes.
struct alignas(16) KvMove {
  std::int32_t head, from, to, rows;
  bool operator==(const KvMove&) const = default;
};

/// Copies K and V of the rows of every move bit for bit. Both sides have the same dtype, KV heads
/// and head_dim. Their layouts (strides) may differ: heads outermost (HND), tokens outermost (NHD),
/// K and V of a row adjacent, K and V apart. Positions are ignored. No row may be written twice, or
/// both read and written. Allocates nothing. Errors: kInvalidArgument (shapes differ, a row or head
/// out of range); then nothing was copied.
struct KvGatherArgs {
  KvView src;
  MutableKvView dst;
  const KvMove* moves;  ///< [num_moves]
  std::int64_t num_moves;
  std::int32_t most_rows;  ///< largest `rows` of any move
};
Status kv_gather(const KvGatherArgs& args);
Status kv_gather_reference(const KvGatherArgs& args);

namespace internal {
/// Checks everything except the moves, which lie in device memory on a device. It is inline because
/// libquire_cuda.so, which links none of the host's kernels, checks too.
inline Status check_gather(const KvGatherArgs& a) {
  QUIRE_RETURN_IF_ERROR(check_head_shape(a.src.num_kv_heads, a.src.head_dim));
  if (a.src.num_kv_heads != a.dst.num_kv_heads || a.src.head_dim != a.dst.head_dim)
    return Status::invalid("dst", "both sides must have the same KV heads of the same size");
  if (!is_kv_dtype(a.src.dtype) || a.src.dtype != a.dst.dtype)
    return Status::invalid("dst.dtype", "both sides must be f32, f16, bf16 or f8, and the same");
  QUIRE_RETURN_IF_ERROR(check_kv_pieces(a.src.dtype, a.src.head_dim));
  if (a.num_moves < 0) return Status::invalid("num_moves", "must not be negative");
  if (a.num_moves > 0 && (a.moves == nullptr || a.src.pages == nullptr || a.dst.pages == nullptr))
    return Status::invalid("moves", "kv_gather needs moves and pages");
  if (a.num_moves > 0 && a.most_rows < 1) return Status::invalid("most_rows", "must be at least 1");
  for (const std::int64_t stride : {a.src.kv_stride, a.src.head_stride, a.src.token_stride,
                                    a.dst.kv_stride, a.dst.head_stride, a.dst.token_stride}) {
    if (stride % 16 != 0) return Status::invalid("strides", "strides are multiples of 16 bytes");
  }
  return {};
}
}  // namespace internal

}  // namespace quire
