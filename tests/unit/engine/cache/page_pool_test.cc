#include "engine/cache/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

namespace quire {
namespace {

constexpr PageFormat kFormat{.num_kv_heads = 3, .head_dim = 40, .dtype = DType::kF16};

TEST(PagePoolTest, AccountsEveryPage) {
  PagePool pool(kFormat, 0);
  EXPECT_EQ(kFormat.page_bytes(), 2 * 3 * 16 * 40 * 2);
  std::set<void*> pages;
  for (int i = 0; i < 3000; ++i) {
    const auto page = pool.allocate();
    ASSERT_TRUE(page.ok());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*page) % 64, 0u);
    std::memset(*page, i, static_cast<std::size_t>(kFormat.page_bytes()));
    EXPECT_TRUE(pages.insert(*page).second);
  }
  EXPECT_EQ(pool.bytes_in_use(), 3000 * kFormat.page_bytes());
  // Pages do not overlap: ordered addresses are at least a page apart.
  for (auto it = pages.begin(); std::next(it) != pages.end(); ++it) {
    EXPECT_GE(static_cast<char*>(*std::next(it)) - static_cast<char*>(*it), kFormat.page_bytes());
  }
  for (void* page : pages) pool.release(page);
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_EQ(pool.peak_bytes(), 3000 * kFormat.page_bytes());
  const auto again = pool.allocate();
  EXPECT_TRUE(pages.contains(*again)) << "freed pages come first";
  pool.release(*again);
}

TEST(PagePoolTest, BudgetIsExact) {
  PagePool pool(kFormat, 5 * kFormat.page_bytes() + 17);
  std::vector<void*> pages;
  for (int i = 0; i < 5; ++i) pages.push_back(*pool.allocate());
  EXPECT_EQ(pool.allocate().code(), Code::kResourceExhausted);
  EXPECT_EQ(pool.bytes_in_use(), 5 * kFormat.page_bytes());
  pool.release(pages.back());
  pages.back() = *pool.allocate();
  for (void* page : pages) pool.release(page);
}

TEST(PagePoolTest, BudgetBelowOnePageGivesNothing) {
  PagePool pool(kFormat, 1);
  EXPECT_EQ(pool.allocate().code(), Code::kResourceExhausted);
}

TEST(PagePoolTest, ThreadsShareIt) {
  PagePool pool(kFormat, 400 * kFormat.page_bytes());
  auto work = [&](int seed) {
    std::vector<void*> mine;
    for (int i = 0; i < 2000; ++i) {
      if ((i * 7 + seed) % 3 != 0 && mine.size() < 100) {
        mine.push_back(*pool.allocate());
        *static_cast<int*>(mine.back()) = seed;
      } else if (!mine.empty()) {
        EXPECT_EQ(*static_cast<int*>(mine.back()), seed);
        pool.release(mine.back());
        mine.pop_back();
      }
    }
    for (void* page : mine) pool.release(page);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (auto& t : threads) t.join();
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_LE(pool.peak_bytes(), 400 * kFormat.page_bytes());
}

}  // namespace
}  // namespace quire
