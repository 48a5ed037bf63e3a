/// This file declares how attention is split into pieces and what an instruction set provides for
/// it.
///
/// A unit is one KV head and a few query rows with all their G query heads, which are its *lanes*.
/// Keys are split into chunks of kChunkKeys rows from row 0 on, for every thread count and path.
/// Each chunk gives a partial result, and partials are merged in chunk order. The bits of a lane
/// therefore depend only on its query and the visible keys.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_listed.h"

namespace quire::cpu {

inline constexpr std::int64_t kTileKeys = 64;
inline constexpr std::int64_t kChunkKeys = 512;
static_assert(kTileKeys % kPageTokens == 0 && kChunkKeys % kTileKeys == 0);

struct AttentionUnit {
  std::int64_t kv_head;
  std::int64_t first_row, num_rows;  ///< query rows
  /// num_rows * G; lane i is row first_row + i / G, head kv_head * G + i % G
  std::int64_t num_lanes;
  std::int32_t min_position, max_position;  ///< range over its query rows
};

/// Values that all units of a call share.
struct AttentionCall {
  const AttentionArgs* args;
  std::int64_t group;            ///< G
  std::int64_t max_lanes;        ///< largest num_lanes, rounded up to 16
  const std::int32_t* tile_min;  ///< smallest and largest position in each tile of kTileKeys rows
  const std::int32_t* tile_max;
  /// Positions of the rows of `args` in its pages, and their KV head; none: in order. Only for
  /// backends with reads_listed()
  ListedRows listed;
};

/// The arithmetic of an instruction set. Buffers are opaque to the driver, 64-byte aligned and
/// uninitialized. Threads: any; methods are pure.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  virtual std::int64_t query_bytes(const AttentionCall&) const = 0;
  virtual std::int64_t partial_bytes(const AttentionCall&) const = 0;
  virtual std::int64_t work_bytes(const AttentionCall&) const = 0;
  /// Returns whether chunk() reads listed rows in units of `num_lanes` lanes.
  virtual bool reads_listed(std::int64_t /*num_lanes*/) const { return false; }
  /// Lays out a unit's queries.
  virtual void pack(const AttentionCall&, const AttentionUnit&, void* query) const = 0;
  /// Computes attention of a unit over rows [begin, end); begin is a multiple of kTileKeys.
  virtual void chunk(const AttentionCall&, const AttentionUnit&, const void* query,
                     std::int64_t begin, std::int64_t end, void* work, void* partial) const = 0;
  /// Merges `from` into `into`. An empty partial changes nothing.
  virtual void merge(const AttentionCall&, const AttentionUnit&, void* into,
                     const void* from) const = 0;
  /// Writes out and lse of the unit.
  virtual void finish(const AttentionCall&, const AttentionUnit&, const void* partial) const = 0;
};

/// Returns the Highway backend: f32 products on any CPU and any KV dtype.
const AttentionBackend& attention_simd();
/// Returns the AMX backend: bf16 KV with head_dim a multiple of 32, on CPUs with AMX.
const AttentionBackend& attention_amx();
/// Returns the AVX512-BF16 backend for the KV that attention_amx() supports.
const AttentionBackend& attention_dot();

}  // namespace quire::cpu
