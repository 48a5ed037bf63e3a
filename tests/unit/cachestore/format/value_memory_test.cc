#include "cachestore/format/value_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace quire {
namespace {

std::uintptr_t address(const ValueMemory& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.get());
}

TEST(ValueMemory, LargeMemoryBeginsAtAPage) {
  for (const std::size_t bytes : {std::size_t{48} << 10, (std::size_t{1} << 20) + 4160,
                                  std::size_t{8} << 20, (std::size_t{8} << 20) + 1}) {
    std::vector<ValueMemory> held;
    for (int i = 0; i < 3; ++i) {
      held.push_back(allocate_value_memory(bytes));
      EXPECT_EQ(address(held.back()) % 4096, 0u) << bytes;
    }
  }
}

TEST(ValueMemory, ValuesNeverOverlap) {
  std::mt19937 generator(3);
  struct Held {
    ValueMemory memory;
    std::size_t bytes;
    std::uint8_t mark;
  };
  std::vector<Held> held;
  const std::size_t sizes[] = {100,     48 << 10,          (48 << 10) - 1,   128 << 10,
                               200'000, (1 << 20) + 4'160, (3 << 20) + 7777, 9 << 20};
  const auto still_marked = [](const Held& h) {
    return std::all_of(h.memory.get(), h.memory.get() + h.bytes,
                       [&](std::byte b) { return b == std::byte{h.mark}; });
  };
  for (int step = 0; step < 400; ++step) {
    if (held.size() > 40 || (!held.empty() && generator() % 3 == 0)) {
      const std::size_t i = generator() % held.size();
      ASSERT_TRUE(still_marked(held[i])) << "step " << step;
      std::swap(held[i], held.back());
      held.pop_back();
    } else {
      const std::size_t bytes = sizes[generator() % std::size(sizes)];
      const auto mark = static_cast<std::uint8_t>(generator());
      held.push_back({allocate_value_memory(bytes), bytes, mark});
      std::memset(held.back().memory.get(), mark, bytes);
    }
  }
  for (const Held& h : held) ASSERT_TRUE(still_marked(h));
}

TEST(ValueMemory, ThreadsMayFreeWhatOthersAllocated) {
  std::vector<std::vector<ValueMemory>> all(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < all.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        all[t].push_back(allocate_value_memory(256 << 10));
        std::memset(all[t].back().get(), static_cast<int>(t), 256 << 10);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  threads.clear();
  for (std::size_t t = 0; t < all.size(); ++t) {
    threads.emplace_back([&, t] {
      auto& others = all[(t + 1) % all.size()];
      for (const ValueMemory& m : others) {
        EXPECT_EQ(m.get()[1000], std::byte((t + 1) % all.size()));
      }
      others.clear();
    });
  }
  for (std::thread& t : threads) t.join();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

TEST(ValueMemory, ManySizesTakeLittleMoreThanTheirBytesAndGiveThemBack) {
  std::mt19937 generator(5);
  const std::size_t start = resident_bytes();
  std::vector<ValueMemory> held;
  std::size_t bytes = 0;
  while (bytes < std::size_t{400} << 20) {
    const std::size_t size = (64 << 10) + generator() % (1 << 20);
    held.push_back(allocate_value_memory(size));
    std::memset(held.back().get(), 1, size);
    bytes += size;
  }
  EXPECT_LT(resident_bytes() - start, bytes + bytes / 10);
  std::shuffle(held.begin(), held.end(), generator);
  held.clear();
  EXPECT_LT(resident_bytes(), start + (std::size_t{100} << 20));
}
#endif

}  // namespace
}  // namespace quire
