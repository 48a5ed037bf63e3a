/// How attention is cut into pieces, and what an instruction set has to provide for it.
///
/// A unit is one KV head and a few query rows with all their G query heads: its *lanes*. Keys are
/// taken in chunks of kChunkKeys rows from row 0 on, whatever the thread count or path; every chunk
/// gives a partial result of its own and partials are merged in chunk order. So a lane's bits
/// depend on its query and the visible keys alone.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/attention.h"
#include "kernels/attention_listed.h"

namespace quire::cpu {

inline constexpr std::int64_t kTileKeys = 64;
inline constexpr std::int64_t kChunkKeys = 512;
static_assert(kTileKeys % kPageTokens == 0 && kChunkKeys % kTileKeys == 0);

struct AttentionUnit {
  std::int64_t kv_head;
  std::int64_t first_row, num_rows;  ///< query rows
  /// num_rows * G; lane i is row first_row + i / G, head kv_head * G + i % G
  std::int64_t num_lanes;
  std::int32_t min_position, max_position;  ///< of its query rows
};

/// What is the same for all units of a call.
struct AttentionCall {
  const AttentionArgs* args;
  std::int64_t group;            ///< G
  std::int64_t max_lanes;        ///< largest num_lanes, rounded up to 16
  const std::int32_t* tile_min;  ///< smallest and largest position in each tile of kTileKeys rows
  const std::int32_t* tile_max;
  /// Where the rows of `args` lie in its pages, and of which KV head; none: as they come. For
  /// backends with reads_listed() alone
  ListedRows listed;
};

/// Buffers are opaque to the driver, 64-byte aligned and uninitialised. Methods are pure; any
/// thread may call them.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  virtual std::int64_t query_bytes(const AttentionCall&) const = 0;
  virtual std::int64_t partial_bytes(const AttentionCall&) const = 0;
  virtual std::int64_t work_bytes(const AttentionCall&) const = 0;
  /// Whether chunk() reads rows that are listed, in units of so many lanes.
  virtual bool reads_listed(std::int64_t /*num_lanes*/) const { return false; }
  /// Lays out a unit's queries.
  virtual void pack(const AttentionCall&, const AttentionUnit&, void* query) const = 0;
  /// Attention of a unit to the rows [begin, end) alone, begin a multiple of kTileKeys.
  virtual void chunk(const AttentionCall&, const AttentionUnit&, const void* query,
                     std::int64_t begin, std::int64_t end, void* work, void* partial) const = 0;
  /// into <- into merged with from. The empty partial is the identity.
  virtual void merge(const AttentionCall&, const AttentionUnit&, void* into,
                     const void* from) const = 0;
  /// Writes out and lse.
  virtual void finish(const AttentionCall&, const AttentionUnit&, const void* partial) const = 0;
};

/// Highway: f32 products on any CPU and any KV dtype.
const AttentionBackend& attention_simd();
/// AMX: bf16 KV with head_dim a multiple of 32, on CPUs that have it.
const AttentionBackend& attention_amx();
/// The same on AVX512-BF16.
const AttentionBackend& attention_dot();

}  // namespace quire::cpu
