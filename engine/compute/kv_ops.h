/// KvOps are the operations of a Compute that write, place, pack and copy rows of KV.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/kv_gather.h"
#include "kernels/rows/rope.h"

namespace quire {

/// WriteRowsArgs describes new rows of KV. Each row is rounded to raw_dtype, as a store round trip
/// would, and placed in `dst` with K rotated to its position.
struct WriteRowsArgs {
  const float *k, *v;  ///< raw rows, row stride ld
  std::int64_t ld;
  std::span<const std::int32_t> from;  ///< rows of k and v, ascending
  std::span<const std::int32_t> positions,
      dst_rows;  ///< same length as `from`; each destination once
  DType raw_dtype;
  MutableKvView dst;
};

/// StoredRows are rows of raw KV as the store holds them, in ordinary memory, or in pinned memory
/// that the device of the Compute gave to the store (engine/device/pinned_values.h).
struct StoredRows {
  RawKvView raw;
  std::span<const std::int32_t> positions, dst_rows;  ///< [raw.num_rows]; each destination once
};

/// BlendStoredArgs describes the fusion of recomputed rows with stored ones, in place (SamKV, Eq.
/// 4; kernels/rows/fusion.h). Each new K (raw) and V becomes its blend with the stored one.
struct BlendStoredArgs {
  float *k, *v;  ///< raw rows, as many as `stored` has, row stride ld
  std::int64_t ld;
  std::span<const RawKvView> stored;  ///< in order, of one dtype, in memory as StoredRows
  std::int32_t num_kv_heads, head_dim;
};

/// BlockMeansArgs describes means of consecutive blocks of raw rows with K rotated
/// (kernels/rows/block_summary.h). Block b has rows [b * block_tokens, (b + 1) * block_tokens); the
/// last one has the rest.
struct BlockMeansArgs {
  RawKvView raw;  ///< in the Compute's memory
  std::int32_t num_kv_heads, head_dim;
  std::int64_t block_tokens;
  std::int64_t first_position;  ///< position of the first row
  float* means;                 ///< [num_blocks, num_kv_heads, head_dim]
};

/// Memory, order, threads and errors: as Compute. Rows of k and v, queries, packed rows, means and
/// pages of KV lie in its memory; the lists of pages, positions, destinations and moves, and stored
/// rows, lie in ordinary host memory and are read before a call returns. Stored rows that lie in
/// pinned memory of the device may be read later, but the caller may free them when a call returns,
/// as it holds their memory. Tables are registered ones.
class KvOps {
 public:
  virtual ~KvOps() = default;
  virtual Status write_rows(const RopeTable& table, const WriteRowsArgs& args) = 0;
  /// Rotates queries as AttentionOps::rotate() does, and writes rows: on a device in one launch.
  /// Neither part reads what the other writes. Either may have no rows.
  virtual Status rotate_and_write(const RopeTable& table, const RopeRotateArgs& queries,
                                  const WriteRowsArgs& args) = 0;
  /// Places stored rows of one layer in `dst` and rotates K to its positions. A device uploads the
  /// rows on another stream, in buffers used in turn, while earlier calls compute; later calls see
  /// them.
  virtual Status place(const RopeTable& table, const MutableKvView& dst,
                       std::span<const StoredRows> rows) = 0;
  /// Begins to pack, on another thread, the rows that the next place() will get; a hint, as other
  /// rows are packed by that call. These must not change before it or end_packing(), which joins
  /// the thread and forgets what it packed. Does nothing where rows are not packed.
  virtual Status pack_ahead(std::span<const RawKvView> /*rows*/, std::int32_t /*num_kv_heads*/,
                            std::int32_t /*head_dim*/) {
    return {};
  }
  virtual void end_packing() {}
  /// A device uploads the stored rows as place() does.
  virtual Status blend_stored(const BlendStoredArgs& args) = 0;
  virtual Status pack(const KvPackArgs& args) = 0;
  virtual Status block_means(const RopeTable& table, const BlockMeansArgs& args) = 0;
  /// Copies rows between caches, on a device also from and to pinned memory.
  virtual Status gather(const KvGatherArgs& args) = 0;
  /// Runs gather() on another stream, after everything enqueued before and asynchronously to what
  /// follows. It returns the copy's number for wait_for(). The host runs it at once.
  virtual Result<std::int64_t> gather_async(const KvGatherArgs& args) = 0;
  /// Makes everything enqueued from now on wait for that copy.
  virtual Status wait_for(std::int64_t copy) = 0;
};

}  // namespace quire
