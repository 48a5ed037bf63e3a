#include "kernels/cuda/runtime/memory_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/unit/kernels/cuda/runtime/fake_driver.h"

namespace quire::cuda {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

struct PoolTest : testing::Test {
  FakeDriver driver{64 * kMiB};
  Stream stream = *create_stream(driver), other = *create_stream(driver);

  /// Compares the pool's figures with what the device allocated.
  void expect_exact(const MemoryPool& pool, MemoryKind kind = MemoryKind::kDevice) {
    EXPECT_EQ(pool.stats().held_bytes(), driver.given_bytes(kind));
    EXPECT_GE(pool.stats().peak_bytes, pool.stats().held_bytes());
    EXPECT_LE(pool.stats().peak_bytes, pool.max_bytes());
  }
};

TEST_F(PoolTest, BlocksAreRoundedByAtMostAnEighth) {
  EXPECT_EQ(MemoryPool::block_bytes(1), 512);
  EXPECT_EQ(MemoryPool::block_bytes(512), 512);
  EXPECT_EQ(MemoryPool::block_bytes(513), 576);
  EXPECT_EQ(MemoryPool::block_bytes(1 << 20), 1 << 20);
  EXPECT_EQ(MemoryPool::block_bytes((1 << 20) + 1), (1 << 20) + (1 << 17));
  for (std::int64_t bytes = 513; bytes < (std::int64_t{1} << 40); bytes = bytes * 5 / 3 + 1) {
    const std::int64_t block = MemoryPool::block_bytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_LE(block - bytes, bytes / 8) << bytes;
    EXPECT_LT(block - bytes, MemoryPool::kMostRounding) << bytes;
    EXPECT_EQ(MemoryPool::block_bytes(block), block) << "a size is its own";
  }
}

TEST_F(PoolTest, CountsEveryByteOverRandomUse) {
  MemoryPool pool(driver, MemoryKind::kDevice, 32 * kMiB);
  std::mt19937 rng(1);
  std::vector<Buffer> live;
  std::int64_t requested = 0;
  for (int i = 0; i < 2000; ++i) {
    if (rng() % 2 == 0 || live.empty()) {
      const auto bytes = static_cast<std::int64_t>(rng() % (2 * kMiB));
      auto b = pool.allocate(bytes, rng() % 2 == 0 ? stream.get() : other.get());
      if (!b.ok()) {
        ASSERT_EQ(b.code(), Code::kResourceExhausted) << b.status().to_string();
      } else {
        requested += bytes;
        live.push_back(std::move(*b));
      }
    } else {
      const std::size_t which = rng() % live.size();
      requested -= live[which].bytes();
      live[which] = std::move(live.back());
      live.pop_back();
    }
    if (rng() % 16 == 0) driver.finish(rng() % 2 == 0 ? stream.get() : other.get());
    ASSERT_EQ(pool.stats().requested_bytes, requested);
    expect_exact(pool);
  }
  EXPECT_GT(pool.stats().reuses, 0);
  live.clear();
  EXPECT_EQ(pool.stats().in_use_bytes, 0);
  EXPECT_EQ(pool.stats().requested_bytes, 0);
  ASSERT_TRUE(pool.trim().ok());
  EXPECT_EQ(driver.given_bytes(MemoryKind::kDevice), 0);
  EXPECT_EQ(driver.num_handles(), 2) << "the two streams: events went with their blocks";
}

TEST_F(PoolTest, ABlockComesBackAtOnceOnItsStreamAndElsewhereOnceItsWorkIsOver) {
  MemoryPool pool(driver, MemoryKind::kDevice, 32 * kMiB);
  void* first = nullptr;
  {
    auto b = pool.allocate(1000, stream.get());
    ASSERT_TRUE(b.ok());
    first = b->data();
  }
  {
    auto b = pool.allocate(1001, stream.get());
    ASSERT_TRUE(b.ok());
    EXPECT_EQ(b->data(), first);
  }
  auto elsewhere = pool.allocate(1000, other.get());
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_NE(elsewhere->data(), first) << "work on the first stream may still use it";
  driver.finish(stream.get());
  auto later = pool.allocate(1000, other.get());
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later->data(), first);
  EXPECT_EQ(pool.stats().driver_calls, 2);
  EXPECT_EQ(pool.stats().reuses, 2);
}

TEST_F(PoolTest, TheLimitIsHardAndKeptBlocksMakeWay) {
  MemoryPool pool(driver, MemoryKind::kDevice, 4 * kMiB);
  auto three = pool.allocate(3 * kMiB, stream.get());
  ASSERT_TRUE(three.ok());
  const auto refused = pool.allocate(2 * kMiB, stream.get());
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(
      refused.status().message().find(
          "2097152 bytes of device memory are asked for, 3145728 of the pool's 4194304 are in use"),
      std::string::npos)
      << refused.status().message();
  *three = Buffer();
  EXPECT_EQ(pool.stats().cached_bytes, 3 * kMiB);
  auto two = pool.allocate(2 * kMiB, stream.get());  // the three cached MiB must be freed first
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(pool.stats().cached_bytes, 0);
  expect_exact(pool);
  EXPECT_EQ(pool.allocate(4 * kMiB + 1, stream.get()).code(), Code::kResourceExhausted);
  EXPECT_EQ(pool.allocate(-1, stream.get()).status().field(), "bytes");
  auto none = pool.allocate(0, stream.get());
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->data(), nullptr);
}

TEST_F(PoolTest, ADeviceThatOthersFilledIsAskedAgainAfterKeptBlocksWent) {
  MemoryPool pool(driver, MemoryKind::kDevice, 64 * kMiB);
  { auto b = pool.allocate(kMiB, stream.get()); }
  driver.fail("allocate", 1, Status::exhausted("taken by another process"));
  auto b = pool.allocate(2 * kMiB, stream.get());
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(pool.stats().driver_calls, 3);
  EXPECT_EQ(pool.stats().cached_bytes, 0);
  // Nothing is cached, so there is one attempt.
  driver.fail("allocate", 1, Status::exhausted("taken by another process"));
  const auto failed = pool.allocate(3 * kMiB, stream.get());
  EXPECT_EQ(failed.code(), Code::kResourceExhausted);
  EXPECT_NE(failed.status().message().find("taken by another process"), std::string::npos);
  EXPECT_EQ(pool.stats().driver_calls, 4);
  expect_exact(pool);
  EXPECT_TRUE(pool.allocate(3 * kMiB, stream.get()).ok()) << "the failure was that request's alone";
}

TEST_F(PoolTest, EveryCallMayFailAndEveryByteIsCounted) {
  for (const char* call : {"create_event", "allocate", "passed", "record", "release"}) {
    for (int nth = 1; nth <= 4; ++nth) {
      FakeDriver fresh(64 * kMiB);
      {
        const Stream first = *create_stream(fresh), second = *create_stream(fresh);
        MemoryPool pool(fresh, MemoryKind::kPinned, 3 * kMiB);
        fresh.fail(call, nth, Status::internal("injected"));
        int served = 0;
        for (int i = 0; i < 8; ++i) {
          auto a = pool.allocate(kMiB, i % 2 == 0 ? first.get() : second.get());
          auto b = pool.allocate(2 * kMiB - i % 3 * kMiB / 4, second.get());
          served += a.ok() + b.ok();
          EXPECT_EQ(pool.stats().held_bytes(), fresh.given_bytes(MemoryKind::kPinned))
              << call << nth;
          EXPECT_LE(pool.stats().peak_bytes, pool.max_bytes());
        }
        EXPECT_GE(served, 6) << call << nth << ": one failure is not the end";
        EXPECT_EQ(pool.stats().in_use_bytes, 0) << call;
        EXPECT_EQ(pool.stats().requested_bytes, 0) << call;
        EXPECT_EQ(pool.stats().stranded_bytes > 0, call == std::string("release")) << call << nth;
      }
      EXPECT_EQ(fresh.num_handles(), 0) << call << nth;
      if (call == std::string("release")) fresh.forget_everything();
    }
  }
}

TEST_F(PoolTest, ABudgetIsWhatIsFreeLessAReserve) {
  const MemoryInfo card{std::int64_t{100} << 30, std::int64_t{140} << 30};
  EXPECT_EQ(reserved_bytes(card), (std::int64_t{140} << 30) / 32);
  EXPECT_EQ(*pool_budget(card, 0, "model.device_cache_bytes"),
            card.free_bytes - reserved_bytes(card));
  EXPECT_EQ(*pool_budget(card, 1 << 30, "model.device_cache_bytes"), 1 << 30);
  const auto larger = pool_budget(card, std::int64_t{120} << 30, "model.device_cache_bytes");
  EXPECT_EQ(larger.code(), Code::kResourceExhausted);
  EXPECT_EQ(larger.status().field(), "model.device_cache_bytes");
  EXPECT_NE(larger.status().message().find("asks for 128849018880 bytes, but 107374182400 of the "
                                           "device's 150323855360 bytes are free"),
            std::string::npos)
      << larger.status().message();
  EXPECT_EQ(
      pool_budget({std::int64_t{1} << 20, std::int64_t{80} << 30}, 0, "model.device_cache_bytes")
          .code(),
      Code::kResourceExhausted);
}

}  // namespace
}  // namespace quire::cuda
