#include "engine/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace quire {
namespace {

constexpr PageFormat kFormat{.num_kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};
constexpr std::int32_t kLayers = 3;

class PrefixCacheTest : public ::testing::Test {
 protected:
  PrefixCacheTest() : pool_(kFormat, 0), rope_(make_rope()) {}
  static RopeTable make_rope() {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kFormat.head_dim;
    return *RopeTable::build(config, 500);
  }
  static std::int64_t column_bytes() { return kFormat.page_bytes() * kLayers; }
  static Digest seed(const std::string& name = "tenant") { return sha256(std::string_view(name)); }
  static std::vector<std::int32_t> ids(std::int32_t from, std::int32_t n) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(n));
    std::iota(out.begin(), out.end(), from);
    return out;
  }
  /// Returns a cache with rows from..from+n-1. Each element encodes its layer and position.
  WorkingCache computed(std::int32_t n, std::int32_t from = 0) {
    WorkingCache cache(pool_, kLayers);
    fill(cache, from, n);
    return cache;
  }
  void fill(WorkingCache& cache, std::int32_t from, std::int32_t n) {
    const auto positions = ids(from, n);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const auto first = cache.add_rows(layer, positions);
      ASSERT_TRUE(first.ok());
      std::vector<float> raw(
          static_cast<std::size_t>(2 * kFormat.num_kv_heads * n * kFormat.head_dim));
      for (std::int32_t r = 0; r < n; ++r) {
        for (int part = 0; part < 2 * kFormat.num_kv_heads; ++part) {
          for (int c = 0; c < kFormat.head_dim; ++c)
            raw[static_cast<std::size_t>((part * n + r) * kFormat.head_dim + c)] = mark(layer,
                                                                                        from + r);
        }
      }
      const std::int64_t row = kFormat.head_dim * 4;
      ASSERT_TRUE(cache
                      .place(layer, rope_,
                             {.data = raw.data(),
                              .num_rows = n,
                              .dtype = DType::kF32,
                              .head_stride = 2 * n * row,
                              .kv_stride = n * row,
                              .row_stride = row},
                             *first)
                      .ok());
    }
  }
  static float mark(std::int32_t layer, std::int32_t position) {
    return static_cast<float>(1000 * layer + position);
  }
  /// Returns V of the row, which no rotation changes.
  static float value(const WorkingCache& cache, std::int32_t layer, std::int64_t row) {
    const KvView v = cache.view(layer);
    float x;
    std::memcpy(&x,
                static_cast<const char*>(v.pages[row / kPageTokens]) + v.kv_stride +
                    (row % kPageTokens) * v.token_stride,
                sizeof x);
    return x;
  }

  PagePool pool_;
  RopeTable rope_;
};

TEST_F(PrefixCacheTest, SharesWholePagesWithoutNewMemory) {
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  WorkingCache first = computed(40);
  prefixes.add(seed(), ids(500, 40), first);
  EXPECT_EQ(prefixes.bytes(), 2 * column_bytes());
  const std::int64_t before = pool_.bytes_in_use();
  WorkingCache second(pool_, kLayers);
  EXPECT_EQ(prefixes.take(seed(), ids(500, 60), 60, second), 32);
  EXPECT_EQ(pool_.bytes_in_use(), before);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_EQ(second.num_rows(layer), 32);
    for (std::int32_t row = 0; row < 32; ++row) {
      EXPECT_EQ(second.positions(layer)[static_cast<std::size_t>(row)], row);
      EXPECT_EQ(value(second, layer, row), mark(layer, row));
    }
  }
}

TEST_F(PrefixCacheTest, TheEndOfABeginningIsKeptWhereItIsWanted) {
  using Ending = PrefixCache::Ending;
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  WorkingCache first = computed(30);
  const auto taken = [&](std::int32_t tokens) {
    WorkingCache cache(pool_, kLayers);
    return prefixes.take(seed(), ids(500, tokens), tokens, cache);
  };
  prefixes.add(seed(), ids(500, 21), first, false, Ending::kDrop);
  EXPECT_EQ(taken(21), 16);
  prefixes.add(seed(), ids(500, 21), first, false, Ending::kKeep);
  EXPECT_EQ(prefixes.bytes(), 2 * column_bytes());
  EXPECT_EQ(taken(21), 21);
  EXPECT_EQ(taken(20), 16) << "another end";
  EXPECT_EQ(taken(32), 16) << "a whole page is another page";
  EXPECT_EQ(taken(40), 16);
}

TEST_F(PrefixCacheTest, RowsBehindAKeptEndGoToACopy) {
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  WorkingCache first = computed(21);
  fill(first, 300, 4);  // rows of another prompt's document behind the beginning
  prefixes.add(seed(), ids(500, 21), first, false, PrefixCache::Ending::kKeep);
  WorkingCache second(pool_, kLayers), third(pool_, kLayers);
  ASSERT_EQ(prefixes.take(seed(), ids(500, 21), 21, second), 21);
  fill(second, 100, 6);
  fill(first, 400, 2);
  ASSERT_EQ(prefixes.take(seed(), ids(500, 21), 21, third), 21);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_EQ(third.num_rows(layer), 21);
    for (const WorkingCache* cache : {&first, &second, &third})
      EXPECT_EQ(value(*cache, layer, 20), mark(layer, 20));
    EXPECT_EQ(value(first, layer, 21), mark(layer, 300));
    EXPECT_EQ(value(first, layer, 25), mark(layer, 400));
    EXPECT_EQ(value(second, layer, 21), mark(layer, 100));
    EXPECT_EQ(value(second, layer, 26), mark(layer, 105));
  }
}

TEST_F(PrefixCacheTest, AKeptEndIsNotSaved) {
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  prefixes.save_to(4);
  WorkingCache first = computed(21);
  prefixes.add(seed(), ids(500, 21), first, true, PrefixCache::Ending::kKeep);
  const auto page = prefixes.next_unsaved();
  ASSERT_TRUE(page);
  EXPECT_EQ(page->token_ids.size(), 16u);
  EXPECT_FALSE(prefixes.next_unsaved());
}

TEST_F(PrefixCacheTest, PagesLiveWhileAnybodyHoldsThem) {
  WorkingCache second(pool_, kLayers);
  {
    PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
    {
      WorkingCache first = computed(20);
      prefixes.add(seed(), ids(500, 20), first);
    }
    EXPECT_EQ(pool_.bytes_in_use(), column_bytes()) << "the rest of the first cache is gone";
    EXPECT_EQ(prefixes.take(seed(), ids(500, 20), 20, second), 16);
  }
  EXPECT_EQ(pool_.bytes_in_use(), column_bytes());
  EXPECT_EQ(value(second, 2, 7), mark(2, 7));
  second.truncate_all(0);
  EXPECT_EQ(pool_.bytes_in_use(), 0);
}

TEST_F(PrefixCacheTest, OtherTokensOtherSeedsAndShortPromptsFindNothing) {
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  WorkingCache first = computed(48);
  prefixes.add(seed(), ids(500, 48), first);
  const auto taken = [&](const Digest& s, const std::vector<std::int32_t>& tokens,
                         std::int64_t most) {
    WorkingCache cache(pool_, kLayers);
    return prefixes.take(s, tokens, most, cache);
  };
  EXPECT_EQ(taken(seed("other"), ids(500, 48), 48), 0);
  EXPECT_EQ(taken(seed(), ids(501, 48), 48), 0);
  EXPECT_EQ(taken(seed(), ids(500, 15), 15), 0);
  EXPECT_EQ(taken(seed(), ids(500, 48), 47), 32);
  EXPECT_EQ(taken(seed(), ids(500, 48), 0), 0);
  auto differs = ids(500, 48);
  differs[20] = 9;
  EXPECT_EQ(taken(seed(), differs, 48), 16);
}

TEST_F(PrefixCacheTest, WritingToASharedRowTakesACopy) {
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  WorkingCache first = computed(32);
  prefixes.add(seed(), ids(500, 32), first);
  WorkingCache second(pool_, kLayers);
  ASSERT_EQ(prefixes.take(seed(), ids(500, 32), 32, second), 32);
  // Drop half a page and compute other rows there.
  second.truncate_all(24);
  fill(second, 100, 4);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(value(second, layer, 23), mark(layer, 23));
    EXPECT_EQ(value(second, layer, 24), mark(layer, 100));
    EXPECT_EQ(value(first, layer, 24), mark(layer, 24));
  }
  EXPECT_EQ(pool_.bytes_in_use(), 3 * column_bytes());
  // The owner may also write to rows that it shares with others.
  const std::vector<float> raw(
      static_cast<std::size_t>(2 * kFormat.num_kv_heads * kFormat.head_dim), -1.0f);
  const std::int64_t row = kFormat.head_dim * 4;
  const std::int32_t target = 3;
  ASSERT_TRUE(first
                  .place_rows(1, rope_,
                              {.data = raw.data(),
                               .num_rows = 1,
                               .dtype = DType::kF32,
                               .head_stride = 2 * row,
                               .kv_stride = row,
                               .row_stride = row},
                              std::span(&target, 1))
                  .ok());
  EXPECT_EQ(value(first, 1, 3), -1.0f);
  EXPECT_EQ(value(first, 1, 4), mark(1, 4));
  EXPECT_EQ(value(second, 1, 3), mark(1, 3));
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoFirstAndNoneBeforeItsContinuation) {
  PrefixCache prefixes(pool_, kLayers, 4 * column_bytes());
  WorkingCache a = computed(48), b = computed(32);
  prefixes.add(seed(), ids(500, 48), a);  // takes three pages
  // Two more pages: one of the first three must be evicted, and it is the last of them.
  prefixes.add(seed(), ids(2000, 32), b);
  EXPECT_EQ(prefixes.bytes(), 4 * column_bytes());
  const auto taken = [&](std::int32_t from) {
    WorkingCache cache(pool_, kLayers);
    return prefixes.take(seed(), ids(from, 48), 48, cache);
  };
  EXPECT_EQ(taken(500), 32);
  EXPECT_EQ(taken(2000), 32);
  EXPECT_EQ(taken(500), 32);  // is now the most recently used
  prefixes.shrink(2 * column_bytes());
  EXPECT_EQ(taken(500), 32);
  EXPECT_EQ(taken(2000), 0);
  prefixes.shrink(column_bytes());
  EXPECT_EQ(taken(500), 16);
}

TEST_F(PrefixCacheTest, RowsAtOtherPositionsAreNotKept) {
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  WorkingCache shifted = computed(32, 1);
  prefixes.add(seed(), ids(500, 32), shifted);
  EXPECT_EQ(prefixes.bytes(), 0);
  WorkingCache half = computed(16);
  fill(half, 40, 16);
  prefixes.add(seed(), ids(500, 32), half);
  EXPECT_EQ(prefixes.bytes(), column_bytes());
}

TEST_F(PrefixCacheTest, NothingIsKeptWithoutABudget) {
  PrefixCache prefixes(pool_, kLayers, 0);
  WorkingCache first = computed(32);
  prefixes.add(seed(), ids(500, 32), first);
  EXPECT_EQ(prefixes.bytes(), 0);
}

TEST_F(PrefixCacheTest, ACacheMovedOutAndInHoldsTheSameRows) {
  PrefixCache prefixes(pool_, kLayers, 100 * column_bytes());
  WorkingCache first = computed(37);
  prefixes.add(seed(), ids(500, 37), first);
  ASSERT_TRUE(first.move_out().ok());
  EXPECT_EQ(first.bytes_out(), 3 * column_bytes());
  EXPECT_EQ(pool_.bytes_in_use(), 2 * column_bytes()) << "what others hold stays";
  ASSERT_TRUE(first.move_in().ok());
  EXPECT_EQ(first.bytes_out(), 0);
  EXPECT_EQ(pool_.bytes_in_use(), 5 * column_bytes());
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (std::int32_t row = 0; row < 37; ++row)
      EXPECT_EQ(value(first, layer, row), mark(layer, row));
  }
  fill(first, 37, 20);
  EXPECT_EQ(value(first, 0, 40), mark(0, 40));
}

TEST_F(PrefixCacheTest, MovingInWithoutRoomChangesNothing) {
  PagePool small(kFormat, 6 * kFormat.page_bytes());
  WorkingCache cache(small, 2);
  for (std::int32_t layer = 0; layer < 2; ++layer)
    ASSERT_TRUE(cache.add_rows(layer, ids(0, 48)).ok());
  ASSERT_TRUE(cache.move_out().ok());
  EXPECT_EQ(small.bytes_in_use(), 0);
  WorkingCache other(small, 1);
  ASSERT_TRUE(other.add_rows(0, ids(0, 16)).ok());
  EXPECT_EQ(cache.move_in().code(), Code::kResourceExhausted);
  EXPECT_EQ(small.bytes_in_use(), small.format().page_bytes());
  other.truncate_all(0);
  EXPECT_TRUE(cache.move_in().ok());
  EXPECT_EQ(small.bytes_in_use(), 6 * small.format().page_bytes());
}

}  // namespace
}  // namespace quire
