/// SimHash and HashedKeys implement locality-sensitive hashing of one KV head's keys by signs of
/// random projections, with any number of tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/attention/attention_mass.h"
#include "kernels/rows/kv.h"

namespace quire {

/// SimHash holds the projections that all heads share: num_tables codes of `bits` bits, each the
/// sign of a product with a random direction. They are the same on every machine.
class SimHash {
 public:
  SimHash(std::int32_t head_dim, std::int32_t bits, std::int32_t num_tables);

  std::int32_t bits() const { return bits_; }
  std::int32_t num_tables() const { return num_tables_; }
  std::int32_t head_dim() const { return head_dim_; }
  /// [num_tables * bits, head_dim]
  std::span<const float> directions() const { return directions_; }
  /// Returns the probability that a vector at this cosine shares at least two codes with the query.
  /// The tables' codes are independent.
  double collision_chance(double cosine) const;

 private:
  std::int32_t head_dim_, bits_, num_tables_;
  std::vector<float> directions_;
};

/// HashedKeys holds the hash tables of one KV head's keys, from which their mean was subtracted.
/// Memory: (4 * num_tables + 4) bytes a row.
class HashedKeys {
 public:
  /// Hashes the row range `rows`. `hash` must outlive the result. Errors: kInvalidArgument.
  static Result<HashedKeys> build(const SimHash& hash, const KvView& kv, std::int32_t kv_head,
                                  RowRange rows);

  /// Samples the rows that share at least two codes with the query, ascending.
  Status sample(const float* query, std::vector<std::int32_t>& rows) const;
  /// Returns the cosine of the query and the row's centred key, from their product.
  /// `query_dot_mean` and `query_length` are the query's own.
  double cosine(std::int32_t row, double product, double query_dot_mean, double query_length) const;
  std::span<const float> mean() const { return mean_; }

 private:
  HashedKeys() = default;
  Status add_codes(const KvView& kv, std::int32_t kv_head, std::vector<std::uint16_t>& codes);
  void sort_into_tables(const std::vector<std::uint16_t>& codes);

  const SimHash* hash_ = nullptr;
  RowRange rows_{0, 0};
  std::vector<float> mean_, lengths_;       ///< [head_dim]; [rows], of centred keys
  std::vector<std::int32_t> bucket_begin_;  ///< [num_tables][2^bits + 1]
  std::vector<std::int32_t> bucket_rows_;   ///< [num_tables][rows], ordered by code
};

}  // namespace quire
