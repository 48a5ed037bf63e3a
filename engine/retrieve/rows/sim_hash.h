/// Locality-sensitive hashing of the keys of one KV head by signs of random projections (SimHash),
/// with as many tables as one likes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/attention_mass.h"
#include "kernels/kv.h"

namespace quire {

/// The projections that all heads share: num_tables codes of `bits` bits, each the sign of a
/// product with a random direction. The same on every machine.
class SimHash {
 public:
  SimHash(std::int32_t head_dim, std::int32_t bits, std::int32_t num_tables);

  std::int32_t bits() const { return bits_; }
  std::int32_t num_tables() const { return num_tables_; }
  std::int32_t head_dim() const { return head_dim_; }
  /// [num_tables * bits, head_dim]
  std::span<const float> directions() const { return directions_; }
  /// Chance that a vector at this cosine shares at least two codes with the query: the tables'
  /// codes are independent.
  double collision_chance(double cosine) const;

 private:
  std::int32_t head_dim_, bits_, num_tables_;
  std::vector<float> directions_;
};

/// Keys of one KV head, less their mean, in the tables. Memory: (4 * num_tables + 4) bytes a row.
class HashedKeys {
 public:
  /// Rows of `rows` are hashed. `hash` must outlive it. Errors: kInvalidArgument.
  static Result<HashedKeys> build(const SimHash& hash, const KvView& kv, std::int32_t kv_head,
                                  KvStretch rows);

  /// Rows that share at least two codes with the query, ascending.
  Status sample(const float* query, std::vector<std::int32_t>& rows) const;
  /// Cosine of the query and the row's key less the mean, from their product; `query_dot_mean` and
  /// `query_length` are the query's own.
  double cosine(std::int32_t row, double product, double query_dot_mean, double query_length) const;
  std::span<const float> mean() const { return mean_; }

 private:
  HashedKeys() = default;
  Status add_codes(const KvView& kv, std::int32_t kv_head, std::vector<std::uint16_t>& codes);
  void sort_into_tables(const std::vector<std::uint16_t>& codes);

  const SimHash* hash_ = nullptr;
  KvStretch rows_{0, 0};
  std::vector<float> mean_, lengths_;       ///< [head_dim]; [rows], of keys less the mean
  std::vector<std::int32_t> bucket_begin_;  ///< [num_tables][2^bits + 1]
  std::vector<std::int32_t> bucket_rows_;   ///< [num_tables][rows], by code
};

}  // namespace quire
