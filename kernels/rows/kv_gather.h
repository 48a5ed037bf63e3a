/// This file declares copies of rows between paged caches of any two layouts. They copy pages from
/// the host's cache to device slots, single rows, and whole layers that leave a device.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"

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
/// Checks everything except the moves, which lie in device memory on a device.
Status check_gather(const KvGatherArgs& args);
}  // namespace internal

}  // namespace quire
