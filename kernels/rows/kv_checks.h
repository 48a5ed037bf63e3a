/// This file declares argument checks that kernels with KV views share.
#pragma once

#include <string>

#include "kernels/rows/kv.h"

namespace quire::internal {

/// Returns whether KV is stored in the dtype.
inline bool is_raw_kv_dtype(DType t) {
  return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16;
}
/// Returns whether pages may hold the dtype.
inline bool is_kv_dtype(DType t) { return is_raw_kv_dtype(t) || t == DType::kF8; }

inline Status check_head_shape(std::int32_t num_kv_heads, std::int32_t head_dim) {
  if (num_kv_heads <= 0) return Status::invalid("num_kv_heads", "must be at least 1");
  if (head_dim < 8 || head_dim > 256 || head_dim % 8 != 0) {
    return Status::invalid("head_dim",
                           "must be a multiple of 8 in 8..256, is " + std::to_string(head_dim));
  }
  return {};
}

/// Checks that rows are whole pieces of 16 bytes, in which devices read KV.
inline Status check_kv_pieces(DType dtype, std::int32_t head_dim) {
  if (dtype != DType::kF8 || head_dim % 16 == 0) return {};
  return Status::invalid(
      "head_dim", "KV in f8 needs a multiple of 16 channels, not " + std::to_string(head_dim));
}

/// Checks that the table has head_dim and a row for each of positions[0..n).
inline Status check_table(const RopeTable& table, std::int32_t head_dim,
                          const std::int32_t* positions, std::int64_t n) {
  if (table.config().head_dim != head_dim) {
    return Status::invalid("table", "RoPE table is for head_dim " +
                                        std::to_string(table.config().head_dim) + ", not " +
                                        std::to_string(head_dim));
  }
  if (n > 0 && positions == nullptr) return Status::invalid("positions", "must not be null");
  for (std::int64_t i = 0; i < n; ++i) {
    if (positions[i] < 0 || positions[i] >= table.max_positions()) {
      return Status::invalid("positions", "position " + std::to_string(positions[i]) +
                                              " is outside the RoPE table of " +
                                              std::to_string(table.max_positions()) + " positions");
    }
  }
  return {};
}

}  // namespace quire::internal
