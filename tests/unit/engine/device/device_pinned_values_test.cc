/// Pinned memory for values: runs of slabs, holds, and what happens when no more can be pinned.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "engine/device/pinned_values.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

constexpr std::size_t kPage = PinnedValues::kPage;
constexpr auto kSlab = static_cast<std::int64_t>(8 * kPage);

std::shared_ptr<PinnedValues> make(const std::shared_ptr<cuda::DeviceOps>& ops,
                                   std::int64_t slabs) {
  return std::make_shared<PinnedValues>(ops, slabs * kSlab, kSlab);
}

TEST(PinnedValuesTest, RunsAreApartAndAreGivenOutAgain) {
  const auto values = make(simt::make_emulated_ops(), 2);
  EXPECT_EQ(values->use().pinned_bytes, 0) << "nothing is pinned before it is needed";
  const std::size_t sizes[] = {1, 3 * kPage, kPage + 1, 2 * kPage, 5 * kPage};
  std::vector<std::byte*> all;
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      all.push_back(values->take(sizes[i]));
      ASSERT_NE(all.back(), nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.back()) % 64, 0u);
      std::memset(all.back(), static_cast<int>(i), sizes[i]);
    }
    EXPECT_EQ(values->use().pinned_bytes, 2 * kSlab);
    EXPECT_EQ(values->use().given_bytes, static_cast<std::int64_t>(13 * kPage));
    EXPECT_EQ(values->take(6 * kPage), nullptr) << "no slab has so much in one piece";
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      for (std::size_t b = 0; b < sizes[i]; ++b) ASSERT_EQ(all[i][b], std::byte(i));
    }
    for (const std::size_t i : {2, 0, 4, 1, 3}) values->give(all[i]);
    all.clear();
    EXPECT_EQ(values->use().given_bytes, 0);
    std::byte* const whole = values->take(8 * kPage);
    ASSERT_NE(whole, nullptr) << "free neighbours are joined";
    values->give(whole);
  }
}

TEST(PinnedValuesTest, NeverTakesMoreThanItMay) {
  const auto ops = simt::make_emulated_ops();
  PinnedValues some(ops, 3 * static_cast<std::int64_t>(kPage) + 100, kSlab);
  std::byte* const all = some.take(3 * kPage);
  ASSERT_NE(all, nullptr) << "the last slab is as long as what is left";
  EXPECT_EQ(some.take(1), nullptr);
  some.give(all);
  PinnedValues none(ops, 0, kSlab);
  EXPECT_EQ(none.pin_first().code(), Code::kResourceExhausted);
  EXPECT_EQ(none.take(1), nullptr);
  EXPECT_FALSE(none.use().failed) << "nothing was refused";
}

TEST(PinnedValuesTest, AfterARefusalNoMoreIsPinned) {
  const auto ops = simt::make_emulated_ops();
  const auto values = make(ops, 3);
  ASSERT_TRUE(values->pin_first().ok());
  ASSERT_TRUE(values->pin_first().ok());
  EXPECT_EQ(values->use().pinned_bytes, kSlab);
  std::byte* const first = values->take(8 * kPage);
  ops->fail_allocation(0);
  EXPECT_EQ(values->take(kPage), nullptr);
  EXPECT_TRUE(values->use().failed);
  EXPECT_EQ(values->take(kPage), nullptr) << "this allocation would not fail";
  EXPECT_EQ(values->use().pinned_bytes, kSlab);
  values->give(first);
  std::byte* const again = values->take(kPage);
  EXPECT_NE(again, nullptr) << "what was pinned before is used on";
  values->give(again);
}

TEST(PinnedValuesTest, AHeldRunIsNotGivenOutAgain) {
  const auto values = make(simt::make_emulated_ops(), 1);
  std::byte *const a = values->take(4 * kPage), *const b = values->take(4 * kPage);
  std::vector<std::byte> ordinary(100);
  PinnedValues::Hold hold;
  const auto inside = PinnedValues::hold(values,
                                         {{a, 100},
                                          {a + kPage, static_cast<std::int64_t>(3 * kPage)},
                                          {a + kPage, static_cast<std::int64_t>(3 * kPage) + 1},
                                          {ordinary.data(), 100},
                                          {nullptr, 0}},
                                         hold);
  EXPECT_EQ(inside, (std::vector<std::uint8_t>{1, 1, 0, 0, 0}))
      << "the third one is longer than the value";
  values->give(b);
  values->give(a);
  EXPECT_EQ(values->use().held_bytes, static_cast<std::int64_t>(4 * kPage));
  PinnedValues::Hold none;
  std::byte* const other = values->take(4 * kPage);
  EXPECT_EQ(other, b);
  EXPECT_EQ(values->take(kPage), nullptr);
  {
    const PinnedValues::Hold moved = std::move(hold);
    EXPECT_EQ(values->take(kPage), nullptr);
  }
  EXPECT_EQ(values->use().held_bytes, 0);
  EXPECT_EQ(values->take(4 * kPage), a);
  values->give(other);
  values->give(a);
}

TEST(PinnedValuesTest, ThreadsTakeGiveAndHold) {
  const auto values = make(simt::make_emulated_ops(), 4);
  std::atomic<int> none{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::size_t bytes = (1 + static_cast<std::size_t>(i + t) % 3) * kPage;
        std::byte* const mine = values->take(bytes);
        if (mine == nullptr) {
          ++none;
          continue;
        }
        std::memset(mine, t, bytes);
        PinnedValues::Hold hold;
        const auto inside = PinnedValues::hold(values, {{mine, static_cast<std::int64_t>(bytes)}},
                                               hold);
        values->give(mine);  // nobody else gets it yet
        EXPECT_EQ(inside, std::vector<std::uint8_t>{1});
        for (std::size_t b = 0; b < bytes; b += 64) EXPECT_EQ(mine[b], std::byte(t));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(values->use().given_bytes, 0);
  EXPECT_LE(values->use().pinned_bytes, 4 * kSlab);
  EXPECT_EQ(none, 0) << "four threads never need more than twelve pages of 32 at once";
}

TEST(PinnedValuesTest, TheDeviceStaysOpenAsLongAsThereAreValues) {
  auto ops = simt::make_emulated_ops();
  const std::weak_ptr<cuda::DeviceOps> open = ops;
  auto values = make(std::exchange(ops, nullptr), 1);
  std::byte* const value = values->take(1);
  EXPECT_FALSE(open.expired());
  values->give(value);
  values.reset();
  EXPECT_TRUE(open.expired());
}

}  // namespace
}  // namespace quire
