#include "kernels/cuda/runtime/session_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <vector>

#include "kernels/cuda/runtime/guarded_driver.h"
#include "tests/unit/kernels/cuda/runtime/fake_driver.h"

namespace quire::cuda {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr MemoryKind kKinds[] = {MemoryKind::kDevice, MemoryKind::kPinned};

struct SessionMemoryTest : testing::Test {
  FakeDriver driver{64 * kMiB};
  Stream stream = *create_stream(driver);

  /// Compares the figures of all pools with what the device allocated.
  void expect_exact(const SessionMemory& memory) {
    for (const MemoryKind kind : kKinds)
      EXPECT_EQ(memory.stats(kind).held_bytes(), driver.given_bytes(kind))
          << memory_kind_name(kind);
  }
  std::int64_t calls(const std::string& name) const {
    return std::ranges::count(driver.calls(), name);
  }
};

TEST_F(SessionMemoryTest, CountsEveryByteOfEveryKindOverRandomUse) {
  auto memory = SessionMemory::create(driver, stream.get());
  ASSERT_TRUE(memory.ok());
  struct Live {
    MemoryKind kind;
    void* p;
    std::int64_t bytes;
  };
  std::vector<Live> live;
  std::mt19937 rng(3);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    if (rng() % 8 < 5 || live.empty()) {
      const MemoryKind kind = kKinds[rng() % std::size(kKinds)];
      const auto bytes = static_cast<std::int64_t>(1 + rng() % (4 * kMiB));
      const auto p = memory->allocate(kind, bytes);
      if (p.ok()) {
        live.push_back({kind, *p, bytes});
      } else {
        ASSERT_EQ(p.code(), Code::kResourceExhausted) << p.status().to_string();
        ++refused;
      }
    } else {
      const std::size_t which = rng() % live.size();
      ASSERT_TRUE(memory->release(live[which].kind, live[which].p).ok());
      live[which] = live.back();
      live.pop_back();
    }
    expect_exact(*memory);
    for (const MemoryKind kind : kKinds) {
      std::int64_t asked = 0;
      for (const Live& l : live) asked += l.kind == kind ? l.bytes : 0;
      ASSERT_EQ(memory->stats(kind).requested_bytes, asked) << memory_kind_name(kind);
    }
  }
  EXPECT_GT(refused, 0) << "the card was full now and then";
  for (const Live& l : live) ASSERT_TRUE(memory->release(l.kind, l.p).ok());
  const auto info = memory->memory();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->free_bytes, info->total_bytes) << "what is kept counts as free";
  expect_exact(*memory);
}

TEST_F(SessionMemoryTest, WhatComesAgainIsNotAskedOfTheDriver) {
  auto memory = SessionMemory::create(driver, stream.get());
  ASSERT_TRUE(memory.ok());
  for (int request = 0; request < 5; ++request) {
    std::vector<std::pair<MemoryKind, void*>> used;
    for (const MemoryKind kind : kKinds) {
      for (const std::int64_t bytes : {1000, 70000, 300000})
        used.emplace_back(kind, *memory->allocate(kind, bytes));
    }
    for (const auto& [kind, p] : used) ASSERT_TRUE(memory->release(kind, p).ok());
  }
  EXPECT_EQ(calls("allocate"), 6);
  EXPECT_EQ(calls("release"), 0);
  for (const MemoryKind kind : kKinds) EXPECT_EQ(memory->stats(kind).reuses, 12);
}

TEST_F(SessionMemoryTest, KeptBlocksMakeRoom) {
  auto memory = SessionMemory::create(driver, stream.get());
  ASSERT_TRUE(memory.ok());
  void* const large = *memory->allocate(MemoryKind::kDevice, 48 * kMiB);
  EXPECT_EQ(memory->allocate(MemoryKind::kDevice, 32 * kMiB).code(), Code::kResourceExhausted)
      << "it is in use";
  ASSERT_TRUE(memory->release(MemoryKind::kDevice, large).ok());
  EXPECT_EQ(memory->stats(MemoryKind::kDevice).cached_bytes, 48 * kMiB);
  const auto p = memory->allocate(MemoryKind::kDevice, 20 * kMiB);
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(memory->stats(MemoryKind::kDevice).cached_bytes, 0);
  expect_exact(*memory);
}

TEST_F(SessionMemoryTest, ExhaustionIsOneErrorAndLeavesEverythingAsItWas) {
  auto memory = SessionMemory::create(driver, stream.get());
  ASSERT_TRUE(memory.ok());
  void* const held = *memory->allocate(MemoryKind::kDevice, 40 * kMiB);
  for (const std::int64_t bytes : {32 * kMiB, 65 * kMiB}) {
    const auto p = memory->allocate(MemoryKind::kDevice, bytes);
    ASSERT_EQ(p.code(), Code::kResourceExhausted);
    EXPECT_NE(p.status().message().find(std::to_string(bytes)), std::string::npos)
        << p.status().message();
    EXPECT_NE(p.status().message().find("device"), std::string::npos) << p.status().message();
    expect_exact(*memory);
  }
  EXPECT_EQ(driver.given_bytes(MemoryKind::kDevice), 40 * kMiB);
  EXPECT_TRUE(memory->allocate(MemoryKind::kDevice, 16 * kMiB).ok());
  EXPECT_TRUE(memory->release(MemoryKind::kDevice, held).ok());
}

TEST_F(SessionMemoryTest, WhatWasNotGivenOutIsNotTakenBack) {
  auto memory = SessionMemory::create(driver, stream.get());
  ASSERT_TRUE(memory.ok());
  void* const p = *memory->allocate(MemoryKind::kDevice, 100);
  EXPECT_EQ(memory->release(MemoryKind::kPinned, p).field(), "p") << "another kind";
  EXPECT_EQ(memory->release(MemoryKind::kDevice, &driver).field(), "p");
  EXPECT_TRUE(memory->release(MemoryKind::kDevice, p).ok());
  EXPECT_EQ(memory->release(MemoryKind::kDevice, p).field(), "p") << "once";
  EXPECT_EQ(memory->allocate(MemoryKind::kDevice, 0).status().field(), "bytes");
}

TEST_F(SessionMemoryTest, EveryCallOfTheDriverMayFail) {
  for (const char* call : {"allocate", "create_event", "record", "release", "memory"}) {
    SCOPED_TRACE(call);
    {
      auto memory = SessionMemory::create(driver, stream.get());
      ASSERT_TRUE(memory.ok());
      void* const kept = *memory->allocate(MemoryKind::kPinned, 1000);
      driver.fail(call, 1, Status::internal("told to"));
      const auto p = memory->allocate(MemoryKind::kDevice, 2000);
      EXPECT_TRUE(memory->release(MemoryKind::kPinned, kept).ok());
      (void)memory->memory();  // some calls are made only here
      const auto again = memory->allocate(MemoryKind::kDevice, 3000);
      EXPECT_TRUE(again.ok()) << again.status().to_string();
      expect_exact(*memory);
      EXPECT_TRUE(call == std::string("release") ||
                  memory->stats(MemoryKind::kPinned).stranded_bytes == 0);
    }
    driver.forget_memory();  // drops what could not be released
  }
}

TEST_F(SessionMemoryTest, ALostDeviceTakesItsMemoryWithIt) {
  GuardedDriver guarded(driver);
  {
    auto memory = SessionMemory::create(guarded, stream.get());
    ASSERT_TRUE(memory.ok());
    ASSERT_TRUE(memory->allocate(MemoryKind::kDevice, 1000).ok());
    void* const p = *memory->allocate(MemoryKind::kPinned, 1000);
    driver.fail("memory", 1, Status(Code::kDeviceLost, "gone"));
    EXPECT_EQ(memory->memory().code(), Code::kDeviceLost);
    EXPECT_EQ(memory->allocate(MemoryKind::kPinned, 1000).code(), Code::kDeviceLost);
    EXPECT_TRUE(memory->release(MemoryKind::kPinned, p).ok());
  }
  stream = Stream();
  driver.forget_everything();
}

}  // namespace
}  // namespace quire::cuda
