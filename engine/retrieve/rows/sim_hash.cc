#include "engine/retrieve/rows/sim_hash.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/dtype.h"
#include "base/index.h"
#include "kernels/choice/row_products.h"

namespace quire {
namespace {

constexpr std::int64_t kRowsAtOnce = 256;

}  // namespace

SimHash::SimHash(std::int32_t head_dim, std::int32_t bits, std::int32_t num_tables)
    : head_dim_(head_dim), bits_(bits), num_tables_(num_tables) {
  // Sums of twelve uniform numbers are close enough to normal ones, and the same on every machine.
  std::mt19937 random(20241);
  directions_.resize(at(std::int64_t{num_tables} * bits * head_dim));
  for (float& x : directions_) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random()) / 4294967296.0;
    x = static_cast<float>(sum);
  }
}

double SimHash::collision_chance(double cosine) const {
  const double same_sign = 1 - std::acos(std::clamp(cosine, -1.0, 1.0)) / M_PI,
               same_code = std::pow(same_sign, bits_), tables = num_tables_;
  return 1 - std::pow(1 - same_code, tables - 1) * (tables * same_code + 1 - same_code);
}

Result<HashedKeys> HashedKeys::build(const SimHash& hash, const KvView& kv, std::int32_t kv_head,
                                     RowRange rows) {
  HashedKeys keys;
  keys.hash_ = &hash;
  keys.rows_ = rows;
  const std::int64_t n = rows.end - rows.begin;
  keys.mean_.resize(at(hash.head_dim()));
  keys.lengths_.resize(at(n));
  const auto key_at = [&](std::int64_t row) {
    return static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + kv_head * kv.head_stride +
           row % kPageTokens * kv.token_stride;
  };
  std::vector<double> sum(keys.mean_.size(), 0.0);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::size_t c = 0; c < sum.size(); ++c)
      sum[c] += load_f32(key_at(row), kv.dtype, static_cast<std::int64_t>(c));
  }
  for (std::size_t c = 0; c < sum.size(); ++c)
    keys.mean_[c] = static_cast<float>(sum[c] / static_cast<double>(std::max<std::int64_t>(1, n)));
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    double square = 0;
    for (std::size_t c = 0; c < sum.size(); ++c) {
      const double x = double{load_f32(key_at(row), kv.dtype, static_cast<std::int64_t>(c))} -
                       keys.mean_[c];
      square += x * x;
    }
    keys.lengths_[at(row - rows.begin)] = static_cast<float>(std::sqrt(square));
  }
  std::vector<std::uint16_t> codes;
  QUIRE_RETURN_IF_ERROR(keys.add_codes(kv, kv_head, codes));
  keys.sort_into_tables(codes);
  return keys;
}

/// Adds codes [num_tables][rows] of the centred keys: the sign of r . k - r . mean for each
/// direction r.
Status HashedKeys::add_codes(const KvView& kv, std::int32_t kv_head,
                             std::vector<std::uint16_t>& codes) {
  const std::int64_t n = rows_.end - rows_.begin, dim = hash_->head_dim(), bits = hash_->bits(),
                     directions = std::int64_t{hash_->num_tables()} * bits;
  const float* r = hash_->directions().data();
  std::vector<float> products(at(directions * kRowsAtOnce)), of_mean(at(directions), 0.0f);
  for (std::int64_t i = 0; i < directions; ++i) {
    for (std::int64_t c = 0; c < dim; ++c) of_mean[at(i)] += r[i * dim + c] * mean_[at(c)];
  }
  codes.assign(at(hash_->num_tables() * n), 0);
  for (std::int64_t row = 0; row < n; row += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, n - row);
    QUIRE_RETURN_IF_ERROR(row_scores_by_row({r,
                                             directions,
                                             dim,
                                             1.0f,
                                             {kv, kv_head, nullptr, rows_.begin + row, count},
                                             products.data(),
                                             directions}));
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t i = 0; i < directions; ++i) {
        std::uint16_t& code = codes[at(i / bits * n + row + j)];
        if (products[at(j * directions + i)] > of_mean[at(i)])
          code = static_cast<std::uint16_t>(code | 1u << (i % bits));
      }
    }
  }
  return {};
}

void HashedKeys::sort_into_tables(const std::vector<std::uint16_t>& codes) {
  const std::int64_t n = rows_.end - rows_.begin, buckets = (std::int64_t{1} << hash_->bits()) + 1;
  bucket_begin_.assign(at(hash_->num_tables() * buckets), 0);
  bucket_rows_.resize(codes.size());
  std::vector<std::int32_t> next;
  for (std::int64_t table = 0; table < hash_->num_tables(); ++table) {
    const std::uint16_t* code = codes.data() + table * n;
    std::int32_t* begin = bucket_begin_.data() + table * buckets;
    for (std::int64_t j = 0; j < n; ++j) ++begin[code[j] + 1];
    for (std::int64_t b = 1; b < buckets; ++b) begin[b] += begin[b - 1];
    next.assign(begin, begin + buckets);
    for (std::int64_t j = 0; j < n; ++j)
      bucket_rows_[at(table * n + next[code[j]]++)] = static_cast<std::int32_t>(rows_.begin + j);
  }
}

Status HashedKeys::sample(const float* query, std::vector<std::int32_t>& rows) const {
  const std::int64_t n = rows_.end - rows_.begin, dim = hash_->head_dim(), bits = hash_->bits(),
                     buckets = (std::int64_t{1} << bits) + 1;
  rows.clear();
  // One collision marks a row, and a second one selects it.
  std::vector<std::uint64_t> once(at((n + 63) / 64), 0), twice = once;
  for (std::int64_t table = 0; table < hash_->num_tables(); ++table) {
    std::int64_t code = 0;
    for (std::int64_t b = 0; b < bits; ++b) {
      const float* r = hash_->directions().data() + (table * bits + b) * dim;
      float product = 0;
      for (std::int64_t c = 0; c < dim; ++c) product += r[c] * query[c];
      if (product > 0) code |= std::int64_t{1} << b;
    }
    const std::int32_t* begin = bucket_begin_.data() + table * buckets + code;
    for (std::int32_t i = begin[0]; i < begin[1]; ++i) {
      const std::int64_t j = bucket_rows_[at(table * n + i)] - rows_.begin;
      const std::uint64_t bit = std::uint64_t{1} << (j % 64);
      twice[at(j / 64)] |= once[at(j / 64)] & bit;
      once[at(j / 64)] |= bit;
    }
  }
  for (std::int64_t j = 0; j < n; ++j) {
    if ((twice[at(j / 64)] >> (j % 64) & 1) != 0)
      rows.push_back(static_cast<std::int32_t>(rows_.begin + j));
  }
  return {};
}

double HashedKeys::cosine(std::int32_t row, double product, double query_dot_mean,
                          double query_length) const {
  const double length = query_length * lengths_[at(row - rows_.begin)];
  return length > 0 ? (product - query_dot_mean) / length : 0.0;
}

}  // namespace quire
