/// Seeded data, paged KV and comparisons for the kernel tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/rope.h"
#include "tests/support/status_matchers.h"

namespace quire {

inline std::vector<float> random_floats(std::int64_t n, std::uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

/// Returns the values rounded to a dtype.
inline std::vector<float> rounded(std::vector<float> x, DType t) {
  std::byte one[4];
  for (float& v : x) {
    store_f32(one, t, 0, v);
    v = load_f32(one, t, 0);
  }
  return x;
}

inline std::vector<std::byte> to_bytes(const std::vector<float>& x, DType t) {
  std::vector<std::byte> out(x.size() * dtype_bytes(t));
  for (std::size_t i = 0; i < x.size(); ++i)
    store_f32(out.data(), t, static_cast<std::int64_t>(i), x[i]);
  return out;
}

/// Returns half a unit in the last place, relative.
inline double epsilon_of(DType t) {
  return t == DType::kF32   ? 6.0e-8
         : t == DType::kF16 ? 4.9e-4
         : t == DType::kF8  ? 6.25e-2
                            : 3.91e-3;
}

/// Returns the dtype to which devices round what they multiply with KV of a dtype.
inline DType multiplied_with(DType kv) { return kv == DType::kF8 ? DType::kF16 : kv; }

/// How far some values lie from those expected, and which lie too far.
struct Distance {
  double absolute = 0, relative = 0;  ///< the largest, of values that are no NaN
  std::int64_t nans = 0, outside = 0;
  std::int64_t first = -1;  ///< index of the first value outside; -1: none
};

/// Counts as outside what does not fulfil |actual - expected| <= absolute + relative * |expected|.
/// A NaN where none is expected is outside.
inline Distance distance(const std::vector<float>& actual, const std::vector<float>& expected,
                         double absolute, double relative) {
  Distance d;
  for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    if (actual[i] == expected[i]) continue;  // also equal infinities
    const double apart = std::abs(double{actual[i]} - expected[i]),
                 size = std::abs(double{expected[i]});
    d.nans += std::isnan(actual[i]) ? 1 : 0;
    if (!std::isnan(apart)) {
      d.absolute = std::max(d.absolute, apart);
      d.relative = std::max(d.relative, apart / std::max(size, 1e-30));
    }
    if (apart <= absolute + relative * size) continue;
    if (d.outside++ == 0) d.first = static_cast<std::int64_t>(i);
  }
  return d;
}

/// Expects |actual - expected| <= absolute + relative * |expected| everywhere. An unexpected NaN
/// fails. The distance is written down with the test's result.
inline void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                         double absolute, double relative, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const Distance d = distance(actual, expected, absolute, relative);
  const auto record = [](const char* key, double value) {
    std::ostringstream text;
    text << value;
    ::testing::Test::RecordProperty(key, text.str());
  };
  record("max_absolute_error", d.absolute);
  record("max_relative_error", d.relative);
  record("nans", static_cast<double>(d.nans));
  if (d.outside == 0) return;
  record("first_bad_index", static_cast<double>(d.first));
  const auto i = static_cast<std::size_t>(d.first);
  FAIL() << what << ": [" << i << "] is " << actual[i] << ", expected " << expected[i] << "; "
         << d.outside << " of " << actual.size() << " are too far, at most " << d.absolute << ", "
         << d.nans << " are NaN";
}

enum class TestLayout {
  kTokenMajor,  ///< [2][rows][heads] (NHD)
  kHeadMajor,   ///< [2][heads][rows]: keys separate from values
  kHeadPages,   ///< [heads][2][rows] (HND), the layout of working caches
  kGranules,    ///< [heads][rows][2]: K and V of a row adjacent
};

/// A paged KV cache with pages in shuffled memory order.
class PagedKv {
 public:
  PagedKv(std::int64_t rows, std::int32_t heads, std::int32_t dim, DType dtype, TestLayout layout,
          std::uint32_t seed)
      : rows_(rows), heads_(heads), dim_(dim), dtype_(dtype) {
    const auto e = static_cast<std::int64_t>(dtype_bytes(dtype));
    const std::int64_t page_bytes = 2 * kPageTokens * heads * dim * e;
    const std::int64_t row_bytes = dim * e;
    kv_stride_ = layout == TestLayout::kHeadPages  ? kPageTokens * row_bytes
                 : layout == TestLayout::kGranules ? row_bytes
                                                   : page_bytes / 2;
    token_stride_ = layout == TestLayout::kTokenMajor ? heads * row_bytes
                    : layout == TestLayout::kGranules ? 2 * row_bytes
                                                      : row_bytes;
    head_stride_ = layout == TestLayout::kTokenMajor  ? row_bytes
                   : layout == TestLayout::kHeadMajor ? kPageTokens * row_bytes
                                                      : 2 * kPageTokens * row_bytes;
    const std::int64_t num_pages = (rows + kPageTokens - 1) / kPageTokens;
    // Slots past the last row hold NaN, because nothing may read them.
    memory_.assign(static_cast<std::size_t>(num_pages * page_bytes + 64), std::byte{0xff});
    for (std::int64_t p = 0; p < num_pages; ++p) pages_.push_back(memory_.data() + p * page_bytes);
    std::mt19937 rng(seed);
    std::shuffle(pages_.begin(), pages_.end(), rng);
    for (std::int64_t r = 0; r < rows; ++r) {
      positions_.push_back(static_cast<std::int32_t>(r));
      for (int kv = 0; kv < 2; ++kv) {
        for (std::int32_t h = 0; h < heads; ++h) {
          const auto x = random_floats(
              dim, seed + 7919u * static_cast<std::uint32_t>((r * 2 + kv) * heads + h));
          for (std::int32_t c = 0; c < dim; ++c) store_f32(row(r, kv, h), dtype, c, x[c]);
        }
      }
    }
  }

  std::byte* row(std::int64_t r, int kv, std::int32_t h) {
    return static_cast<std::byte*>(pages_[r / kPageTokens]) + kv * kv_stride_ + h * head_stride_ +
           r % kPageTokens * token_stride_;
  }
  std::vector<std::int32_t>& positions() { return positions_; }
  KvView view(std::int64_t rows, bool sorted) const {
    return KvView{pages_.data(), positions_.data(), rows,         heads_,        dim_,
                  dtype_,        kv_stride_,        head_stride_, token_stride_, sorted};
  }
  KvView view(bool sorted) const { return view(rows_, sorted); }
  MutableKvView mutable_view() {
    return MutableKvView{pages_.data(), rows_,      heads_,       dim_,
                         dtype_,        kv_stride_, head_stride_, token_stride_};
  }
  const std::vector<std::byte>& memory() const { return memory_; }

 private:
  std::int64_t rows_;
  std::int32_t heads_, dim_;
  DType dtype_;
  std::int64_t kv_stride_, head_stride_, token_stride_;
  std::vector<std::byte> memory_;
  std::vector<void*> pages_;
  std::vector<std::int32_t> positions_;
};

}  // namespace quire
