/// This file declares views of paged KV and functions that move rows into pages.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/rows/rope.h"

namespace quire {

/// The number of rows per page of the working cache.
inline constexpr std::int32_t kPageTokens = 16;

/// A read-only view of one layer of a paged KV cache in any layout. Row r is in page r /
/// kPageTokens, slot r % kPageTokens. Element (row, kv, head, c) is at pages[page] + kv * kv_stride
/// + head * head_stride + slot * token_stride + c * dtype size. kv is 0 for keys (post-RoPE) and 1
/// for values; strides are in bytes. Elements of one head row are contiguous. positions[row] is the
/// token's position; rows have no particular order unless `sorted`.
class KvTable;
struct KvView {
  const void* const* pages;       ///< [ceil(num_rows / kPageTokens)]
  const std::int32_t* positions;  ///< [num_rows]
  std::int64_t num_rows;
  std::int32_t num_kv_heads, head_dim;
  DType dtype;  ///< f32, f16, bf16 or f8
  std::int64_t kv_stride, head_stride, token_stride;
  bool sorted;  ///< positions ascend strictly, so kernels may skip and split ranges
  /// What a device keeps of pages and positions (engine/cache/kv_table.h), or null. Kernels do not
  /// use it.
  KvTable* table = nullptr;
};

/// A writable KvView without positions.
struct MutableKvView {
  void* const* pages;
  std::int64_t num_rows;
  std::int32_t num_kv_heads, head_dim;
  DType dtype;
  std::int64_t kv_stride, head_stride, token_stride;
};

/// A view of raw (unrotated) KV rows of one layer in contiguous memory. Element (head, kv, row, c)
/// is at data + head * head_stride + kv * kv_stride + row * row_stride + c * dtype size; strides
/// are in bytes. A stored block is [num_kv_heads][2][tokens][head_dim].
struct RawKvView {
  const void* data;
  std::int64_t num_rows;
  DType dtype;
  std::int64_t head_stride, kv_stride, row_stride;
};

/// Places raw rows into pages. K is converted to f32, rotated to positions[i] by `table` and
/// rounded to dst.dtype; V is only converted. Source row i goes to destination row dst_rows[i]
/// (null: first_dst_row + i). Allocates nothing. Errors: kInvalidArgument (row or position out of
/// range, shapes differ).
struct KvPlaceArgs {
  RawKvView src;
  MutableKvView dst;
  const std::int32_t* positions;  ///< [src.num_rows]
  const std::int32_t* dst_rows;   ///< [src.num_rows] or null
  std::int64_t first_dst_row;
};
Status kv_place(const RopeTable& table, const KvPlaceArgs& args);
Status kv_place_reference(const RopeTable& table, const KvPlaceArgs& args);

/// Rounds f32 rows to a raw KV record. k and v are [rows, num_kv_heads * head_dim] f32 with row
/// strides ldk and ldv in elements. out is [num_kv_heads][2][rows][head_dim] of `dtype`.
struct KvPackArgs {
  const float* k;
  const float* v;
  std::int64_t rows, ldk, ldv;
  std::int32_t num_kv_heads, head_dim;
  DType dtype;
  void* out;
};
Status kv_pack(const KvPackArgs& args);
Status kv_pack_reference(const KvPackArgs& args);

}  // namespace quire
