#include "engine/cache/working_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace quire {
namespace {

constexpr PageFormat kFormat{.num_kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};

class WorkingCacheTest : public ::testing::Test {
 protected:
  WorkingCacheTest() : pool_(kFormat, 0) {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kFormat.head_dim;
    rope_ = *RopeTable::build(config, 500);
  }
  /// Returns raw KV [heads][2][rows][dim] in which every element has a different value.
  std::vector<float> raw(std::int64_t rows, std::uint32_t seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> u(-1, 1);
    std::vector<float> out(
        static_cast<std::size_t>(2 * kFormat.num_kv_heads * rows * kFormat.head_dim));
    for (float& x : out) x = u(rng);
    return out;
  }
  RawKvView view_of(const std::vector<float>& data, std::int64_t rows) {
    const std::int64_t row = kFormat.head_dim * 4;
    return {.data = data.data(),
            .num_rows = rows,
            .dtype = DType::kF32,
            .head_stride = 2 * rows * row,
            .kv_stride = rows * row,
            .row_stride = row};
  }
  /// Returns an element as attention reads it.
  static float read(const KvView& v, std::int64_t row, int kv, int head, int c) {
    const auto* page = static_cast<const char*>(v.pages[row / kPageTokens]);
    return *reinterpret_cast<const float*>(page + kv * v.kv_stride + head * v.head_stride +
                                           (row % kPageTokens) * v.token_stride + c * 4);
  }
  static std::vector<std::int32_t> range(std::int32_t from, std::int32_t n) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(n));
    std::iota(out.begin(), out.end(), from);
    return out;
  }
  /// Expects that the row holds raw row `i` of `data`, with K rotated to `position`.
  void expect_row(const WorkingCache& cache, int layer, std::int64_t row,
                  const std::vector<float>& data, std::int64_t rows, std::int64_t i,
                  std::int32_t position) {
    const KvView v = cache.view(layer);
    const int d = kFormat.head_dim;
    for (int head = 0; head < kFormat.num_kv_heads; ++head) {
      const float* k = data.data() + (head * 2 * rows + i) * d;
      const float* value = data.data() + (head * 2 * rows + rows + i) * d;
      std::vector<float> rotated(static_cast<std::size_t>(d));
      ASSERT_TRUE(rope_rotate_reference(rope_, {.x = k,
                                                .out = rotated.data(),
                                                .positions = &position,
                                                .rows = 1,
                                                .num_heads = 1,
                                                .ldx = d,
                                                .ldo = d})
                      .ok());
      for (int c = 0; c < d; ++c) {
        EXPECT_NEAR(read(v, row, 0, head, c), rotated[static_cast<std::size_t>(c)], 1e-6);
        EXPECT_EQ(read(v, row, 1, head, c), value[c]);
      }
    }
  }

  PagePool pool_;
  RopeTable rope_;
};

TEST_F(WorkingCacheTest, PlacesAndRotatesRows) {
  WorkingCache cache(pool_, 3);
  const auto data = raw(21, 1);
  ASSERT_EQ(*cache.add_rows(1, range(5, 21)), 0);
  ASSERT_TRUE(cache.place(1, rope_, view_of(data, 21), 0).ok());
  for (std::int64_t i = 0; i < 21; ++i)
    expect_row(cache, 1, i, data, 21, i, static_cast<std::int32_t>(5 + i));
  EXPECT_EQ(cache.num_rows(0), 0);
  EXPECT_EQ(cache.bytes(), 2 * kFormat.page_bytes());
  EXPECT_TRUE(cache.view(1).sorted);

  const auto more = raw(3, 2);
  const std::vector<std::int32_t> rows = {20, 0, 7};
  ASSERT_TRUE(cache.place_rows(1, rope_, view_of(more, 3), rows).ok());
  for (std::int64_t i = 0; i < 3; ++i)
    expect_row(cache, 1, rows[static_cast<std::size_t>(i)], more, 3, i,
               5 + rows[static_cast<std::size_t>(i)]);
  expect_row(cache, 1, 6, data, 21, 6, 11);
}

TEST_F(WorkingCacheTest, OutOfRangePlacesAreRefused) {
  WorkingCache cache(pool_, 1);
  const auto data = raw(4, 3);
  ASSERT_TRUE(cache.add_rows(0, range(0, 6)).ok());
  EXPECT_EQ(cache.place(0, rope_, view_of(data, 4), 3).code(), Code::kInvalidArgument);
  EXPECT_EQ(cache.place(0, rope_, view_of(data, 4), -1).code(), Code::kInvalidArgument);
  EXPECT_EQ(cache.place_rows(0, rope_, view_of(data, 4), std::vector<std::int32_t>{0, 1, 2}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(
      cache.place_rows(0, rope_, view_of(data, 4), std::vector<std::int32_t>{0, 1, 2, 6}).code(),
      Code::kInvalidArgument);
}

TEST_F(WorkingCacheTest, FindsRowsSortedOrNot) {
  WorkingCache cache(pool_, 1);
  ASSERT_TRUE(cache.add_rows(0, std::vector<std::int32_t>{2, 4, 9}).ok());
  EXPECT_EQ(cache.find_row(0, 9), 2);
  EXPECT_EQ(cache.find_row(0, 3), -1);
  ASSERT_EQ(*cache.add_rows(0, std::vector<std::int32_t>{1, 30}), 3);
  EXPECT_FALSE(cache.view(0).sorted);
  EXPECT_EQ(cache.find_row(0, 1), 3);
  EXPECT_EQ(cache.find_row(0, 30), 4);
  EXPECT_EQ(cache.find_row(0, 5), -1);
  cache.truncate(0, 3);
  EXPECT_TRUE(cache.view(0).sorted);
  ASSERT_TRUE(cache.add_rows(0, std::vector<std::int32_t>{9}).ok());
  EXPECT_FALSE(cache.view(0).sorted) << "a position twice is not strictly ascending";
}

TEST_F(WorkingCacheTest, TruncateReturnsPages) {
  WorkingCache cache(pool_, 2);
  ASSERT_TRUE(cache.add_rows(0, range(0, 40)).ok());
  ASSERT_TRUE(cache.add_rows(1, range(0, 16)).ok());
  EXPECT_EQ(pool_.bytes_in_use(), 4 * kFormat.page_bytes());
  cache.truncate(0, 100);
  EXPECT_EQ(cache.num_rows(0), 40);
  cache.truncate(0, 32);
  EXPECT_EQ(pool_.bytes_in_use(), 3 * kFormat.page_bytes());
  cache.truncate_all(1);
  EXPECT_EQ(pool_.bytes_in_use(), 2 * kFormat.page_bytes());
  EXPECT_EQ(cache.num_rows(1), 1);
}

TEST_F(WorkingCacheTest, ExhaustionChangesNothing) {
  PagePool small(kFormat, 3 * kFormat.page_bytes());
  {
    WorkingCache cache(small, 2);
    ASSERT_TRUE(cache.add_rows(0, range(0, 20)).ok());
    const auto failed = cache.add_rows(1, range(0, 33));
    EXPECT_EQ(failed.code(), Code::kResourceExhausted);
    EXPECT_EQ(cache.num_rows(1), 0);
    EXPECT_EQ(small.bytes_in_use(), 2 * kFormat.page_bytes());
    ASSERT_TRUE(cache.add_rows(1, range(0, 16)).ok());
    EXPECT_EQ(cache.add_rows(0, range(20, 13)).code(), Code::kResourceExhausted);
    EXPECT_EQ(cache.num_rows(0), 20);
    EXPECT_TRUE(cache.add_rows(0, range(20, 12)).ok()) << "the last page still has room";
  }
  EXPECT_EQ(small.bytes_in_use(), 0);
}

TEST_F(WorkingCacheTest, MovedFromHoldsNothing) {
  WorkingCache a(pool_, 1);
  ASSERT_TRUE(a.add_rows(0, range(0, 5)).ok());
  WorkingCache b(std::move(a));
  EXPECT_EQ(b.num_rows(0), 5);
  EXPECT_EQ(pool_.bytes_in_use(), kFormat.page_bytes());
}

TEST_F(WorkingCacheTest, KeepingRowsMovesEachHeadsTogetherAndReturnsPages) {
  WorkingCache cache(pool_, 1);
  const auto data = raw(50, 3);
  ASSERT_TRUE(cache.add_rows(0, range(10, 50)).ok());
  ASSERT_TRUE(cache.place(0, rope_, view_of(data, 50), 0).ok());
  const KvView before = cache.view(0);
  const std::vector<std::vector<std::int32_t>> kept = {{0, 7, 20, 49}, {3, 7, 33, 48}};
  std::vector<float> expected;
  for (int head : {0, 1}) {
    for (const std::int32_t row : kept[static_cast<std::size_t>(head)]) {
      for (int c = 0; c < kFormat.head_dim; ++c)
        expected.insert(expected.end(),
                        {read(before, row, 0, head, c), read(before, row, 1, head, c)});
    }
  }
  ASSERT_TRUE(cache.keep_rows(0, kept).ok());
  EXPECT_EQ(cache.num_rows(0), 4);
  EXPECT_FALSE(cache.ragged(0));
  EXPECT_EQ(cache.bytes(), kFormat.page_bytes());
  const auto positions = cache.positions(0);
  EXPECT_EQ(std::vector<std::int32_t>(positions.begin(), positions.end()),
            (std::vector<std::int32_t>{13, 17, 43, 59}));
  const KvView after = cache.view(0);
  EXPECT_TRUE(after.sorted);
  std::vector<float> actual;
  for (int head : {0, 1}) {
    for (int row = 0; row < 4; ++row) {
      for (int c = 0; c < kFormat.head_dim; ++c)
        actual.insert(actual.end(), {read(after, row, 0, head, c), read(after, row, 1, head, c)});
    }
  }
  EXPECT_EQ(actual, expected);
}

TEST_F(WorkingCacheTest, RaggedHeadsHoldTheirOwnRowsAndAllThatComesLater) {
  WorkingCache cache(pool_, 2);
  const auto data = raw(20, 4);
  for (int layer : {0, 1}) {
    ASSERT_TRUE(cache.add_rows(layer, range(0, 20)).ok());
    ASSERT_TRUE(cache.place(layer, rope_, view_of(data, 20), 0).ok());
  }
  ASSERT_TRUE(cache.keep_rows(0, std::vector<std::vector<std::int32_t>>{{4}, {2, 9, 19}}).ok());
  ASSERT_TRUE(cache.add_rows(0, range(20, 2)).ok());
  std::vector<std::int32_t> rows;
  cache.head_rows(0, 0, rows);
  EXPECT_EQ(rows, (std::vector<std::int32_t>{0, 3, 4}));
  cache.head_rows(0, 1, rows);
  EXPECT_EQ(rows, range(0, 5));
  ASSERT_TRUE(cache.move_out().ok());
  ASSERT_TRUE(cache.move_in().ok());
  EXPECT_TRUE(cache.ragged(0));
  cache.truncate(0, 2);
  cache.head_rows(0, 1, rows);
  EXPECT_EQ(rows, range(0, 2));
  EXPECT_FALSE(cache.ragged(1));
  cache.head_rows(1, 1, rows);
  EXPECT_EQ(rows, range(0, 20));
}

TEST_F(WorkingCacheTest, KeepingRowsLeavesPagesThatOthersHoldAsTheyAre) {
  WorkingCache owner(pool_, 1), other(pool_, 1);
  const auto data = raw(32, 5);
  ASSERT_TRUE(owner.add_rows(0, range(0, 32)).ok());
  ASSERT_TRUE(owner.place(0, rope_, view_of(data, 32), 0).ok());
  for (int page : {0, 1}) {
    const auto pages = owner.share_page(page);
    other.append_shared(pages, range(16 * page, 16));
    for (void* p : pages) pool_.release(p);
  }
  ASSERT_TRUE(other.keep_rows(0, std::vector<std::vector<std::int32_t>>{{1, 30}, {1, 31}}).ok());
  for (int row : {0, 1, 17, 31}) expect_row(owner, 0, row, data, 32, row, row);
}

TEST_F(WorkingCacheTest, KeepingRowsRefusesListsThatAreNone) {
  WorkingCache cache(pool_, 1);
  ASSERT_TRUE(cache.add_rows(0, range(0, 20)).ok());
  const std::vector<std::vector<std::vector<std::int32_t>>> bad = {
      {{1}}, {{1}, {}}, {{1}, {2, 2}}, {{1}, {20}}, {{-1}, {3}}};
  for (const auto& lists : bad) EXPECT_EQ(cache.keep_rows(0, lists).code(), Code::kInvalidArgument);
  EXPECT_EQ(cache.num_rows(0), 20);
}

TEST_F(WorkingCacheTest, RemembersTheMostItHeld) {
  WorkingCache cache(pool_, 2);
  EXPECT_EQ(cache.most_bytes(), 0);
  ASSERT_TRUE(cache.add_rows(0, range(0, 3 * kPageTokens)).ok());
  ASSERT_TRUE(cache.add_rows(1, range(0, 1)).ok());
  cache.truncate(0, kPageTokens);
  ASSERT_TRUE(cache.add_rows(1, range(1, kPageTokens)).ok());
  EXPECT_EQ(cache.bytes(), 3 * kFormat.page_bytes());
  EXPECT_EQ(cache.most_bytes(), 4 * kFormat.page_bytes());
  const WorkingCache moved(std::move(cache));
  EXPECT_EQ(moved.most_bytes(), 4 * kFormat.page_bytes());
}

}  // namespace
}  // namespace quire
