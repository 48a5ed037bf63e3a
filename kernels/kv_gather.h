/// Copies of rows between paged caches of any two layouts: pages recalled from the host's cache to
/// slots of a device, single rows, whole layers that leave a device.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/kv.h"

namespace quire {

/// Rows [from, from + rows) of one KV head become rows [to, to + rows); one row at least.
struct KvMove {
  std::int32_t head, from, to, rows;
  bool operator==(const KvMove&) const = default;
};

/// K and V of the rows of every move, bit for bit. Both sides have the same dtype, KV heads and
/// head_dim; their layouts (strides) may differ: heads outermost (HND), tokens outermost (NHD), K
/// and V of a row side by side, K and V apart. Positions are not looked at. No row is written
/// twice, or read that is written. No allocation. Errors: kInvalidArgument (shapes differ, a row or
/// head out of range; nothing was copied).
struct KvGatherArgs {
  KvView src;
  MutableKvView dst;
  const KvMove* moves;  ///< [num_moves]
  std::int64_t num_moves;
  std::int32_t most_rows;  ///< of any move
};
Status kv_gather(const KvGatherArgs& args);
Status kv_gather_reference(const KvGatherArgs& args);

namespace internal {
/// All but the moves themselves, which a device has.
Status check_gather(const KvGatherArgs& args);
}  // namespace internal

}  // namespace quire
