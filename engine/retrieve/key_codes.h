/// KeyCodes holds 8-bit codes of one layer's keys for retrievers that score many rows to choose
/// few.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/cache/host_slab.h"
#include "kernels/choice/key_codes.h"

namespace quire {

/// KeyCodes lies on the host and takes half the bytes of bf16 keys. The ranges of the codes come
/// from the rows of the first extend(); later keys outside them are clamped. Threads: extend()
/// alone; several score() concurrently.
class KeyCodes {
 public:
  /// Returns whether choosing by codes is faster than by such keys.
  static bool pay(const KvView& kv) { return coded_keys_pay(kv); }
  /// Encodes rows [num_rows(), end). Errors: kInvalidArgument, kResourceExhausted (nothing
  /// changes).
  Status extend(const KvView& kv, std::int64_t end);
  /// Computes products of query [group, head_dim] with the keys of `rows`, below num_rows(), times
  /// scale: scores [group, rows.size()]. A constant() of each query is left out. Errors:
  /// kInvalidArgument.
  Status score(std::int32_t kv_head, const float* query, std::int32_t group, float scale,
               std::span<const std::int32_t> rows, float* scores) const;

  /// Computes score() of rows [0, num_rows()): scores [group, num_rows()].
  Status score_all(std::int32_t kv_head, const float* query, std::int32_t group, float scale,
                   float* scores) const;

  /// Returns the difference between a product of this query [head_dim] with any key and its score.
  float constant(std::int32_t kv_head, const float* query, float scale) const;

  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t bytes() const { return count_of(blocks_) * block_bytes(); }

 private:
  Status find_ranges(const KvView& kv, std::int64_t end);
  Status make_room(std::int64_t rows);
  std::int64_t block_bytes() const { return kCodeRows * num_kv_heads_ * std::int64_t{head_dim_}; }

  std::vector<HostSlab> memory_;
  std::vector<std::uint8_t*> blocks_;
  std::vector<float> lows_, steps_;  ///< [num_kv_heads][head_dim]
  std::int64_t num_rows_ = 0;
  std::int32_t num_kv_heads_ = 0, head_dim_ = 0;
};

}  // namespace quire
