#include "tests/support/simt/simt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace quire::simt {
namespace {

constexpr int kMany = 1024;

Report run_one_block(int threads, int shared_bytes, const std::function<void(Device&)>& body,
                     const GlobalMemory& memory = {}) {
  return run(memory, {{1, 1, 1}, threads, shared_bytes}, kMany, body);
}

/// Sums rows of `n` floats: one block per row, each thread adds every kThreads-th value.
struct RowSum {
  static constexpr int kThreads = 64;
  const float* x;
  float* out;
  std::int64_t n;
  template <class D>
  void operator()(D& device) const {
    auto scratch = device.template shared<float>(0, kThreads / 32);
    float sum = 0;
    for (std::int64_t i = device.thread_idx(); i < n; i += kThreads)
      sum += device.load(x + device.block_idx().x * n + i);
    sum = cuda::block_sum(device, sum, scratch);
    if (device.thread_idx() == 0) device.store(out + device.block_idx().x, sum);
  }
};

TEST(SimtTest, ARightKernelRunsAndGivesItsResult) {
  for (const std::int64_t n : {1, 63, 64, 200}) {
    std::vector<float> x(static_cast<std::size_t>(3 * n)), out(3);
    std::iota(x.begin(), x.end(), 0.0f);
    GlobalMemory memory;
    memory.add("x", x.data(), x.size() * sizeof(float), Access::kRead);
    memory.add("out", out.data(), out.size() * sizeof(float), Access::kReadWrite);
    Launcher launcher(memory);
    const Status status = launcher.launch({{3, 1, 1}, 64, 2 * sizeof(float)},
                                          RowSum{x.data(), out.data(), n});
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (std::int64_t r = 0; r < 3; ++r)
      EXPECT_EQ(out[static_cast<std::size_t>(r)],
                static_cast<float>(n * (r * n) + n * (n - 1) / 2));
  }
}

TEST(SimtTest, AccessesOutsideABufferAreRefused) {
  std::vector<float> x(64), out(1);
  GlobalMemory memory;
  memory.add("x", x.data(), x.size() * sizeof(float), Access::kRead);
  memory.add("out", out.data(), sizeof(float), Access::kReadWrite);
  Launcher launcher(memory);
  EXPECT_FALSE(launcher.launch({{1, 1, 1}, 64, 8}, RowSum{x.data(), out.data(), 65}).ok());
  EXPECT_EQ(launcher.report().fault, Fault::kGlobalMemory);
  EXPECT_NE(launcher.report().message.find("offset 256 of x, which has 256"), std::string::npos)
      << launcher.report().message;
  EXPECT_NE(launcher.report().message.find("thread 0 of block (0, 0, 0)"), std::string::npos)
      << launcher.report().message;
  const Report before = run_one_block(
      32, 0, [&](Device& d) { d.load(x.data() - 1); }, memory);
  EXPECT_EQ(before.fault, Fault::kGlobalMemory);
}

TEST(SimtTest, WritesToReadOnlyBuffersAreRefused) {
  std::vector<float> x(64);
  GlobalMemory memory;
  memory.add("x", x.data(), 256, Access::kRead);
  const Report report = run_one_block(
      32, 0, [&](Device& d) { d.store(x.data() + d.lane(), 1.0f); }, memory);
  EXPECT_EQ(report.fault, Fault::kGlobalMemory);
  EXPECT_NE(report.message.find("read only"), std::string::npos) << report.message;
}

TEST(SimtTest, UnalignedVectorAccessesAreRefused) {
  alignas(16) float x[8] = {};
  GlobalMemory memory;
  memory.add("x", x, sizeof x, Access::kRead);
  const auto load_at = [&](int i) {
    return run_one_block(
               32, 0, [&](Device& d) { d.load(reinterpret_cast<const cuda::Pack<float>*>(x + i)); },
               memory)
        .fault;
  };
  EXPECT_EQ(load_at(4), Fault::kNone);
  EXPECT_EQ(load_at(1), Fault::kGlobalMemory);
}

TEST(SimtTest, SharedMemoryThatNobodyWroteMayNotBeRead) {
  const auto body = [](int written) {
    return [written](Device& d) {
      auto s = d.shared<float>(0, 64);
      if (d.thread_idx() < written) s[d.thread_idx()] = 1.0f;
      d.sync_threads();
      const float x = s[63 - d.thread_idx()];
      static_cast<void>(x);
    };
  };
  EXPECT_EQ(run_one_block(64, 256, body(64)).fault, Fault::kNone);
  const Report report = run_one_block(64, 256, body(63));
  EXPECT_EQ(report.fault, Fault::kSharedMemory);
  EXPECT_NE(report.message.find("nobody wrote"), std::string::npos) << report.message;
}

TEST(SimtTest, WhatAnEarlierBlockWroteInSharedMemoryIsGone) {
  const Report report = run({}, {{2, 1, 1}, 32, 128}, kMany, [](Device& d) {
    auto s = d.shared<float>(0, 32);
    if (d.block_idx().x == 0) s[d.lane()] = 1.0f;
    const float x = s[d.lane()];
    static_cast<void>(x);
  });
  EXPECT_EQ(report.fault, Fault::kSharedMemory);
  EXPECT_NE(report.message.find("block (1, 0, 0)"), std::string::npos) << report.message;
}

TEST(SimtTest, IndicesOutsideASharedArrayAreRefused) {
  EXPECT_EQ(run_one_block(32, 128, [](Device& d) { d.shared<float>(0, 32)[32] = 0; }).fault,
            Fault::kSharedMemory);
  EXPECT_EQ(run_one_block(32, 128, [](Device& d) { d.shared<float>(0, 32)[-1] = 0; }).fault,
            Fault::kSharedMemory);
  EXPECT_EQ(run_one_block(32, 128, [](Device& d) { d.shared<float>(4, 32); }).fault,
            Fault::kSharedMemory);
  EXPECT_EQ(run_one_block(32, 128, [](Device& d) { d.shared<float>(2, 1); }).fault,
            Fault::kSharedMemory);
}

TEST(SimtTest, AMissingBarrierIsFoundWhateverTheOrderOfThreads) {
  const auto neighbour = [](int distance, bool barrier) {
    return run_one_block(64, 256, [=](Device& d) {
      auto s = d.shared<float>(0, 64);
      s[d.thread_idx()] = 1.0f;
      if (barrier) d.sync_threads();
      const float x = s[(d.thread_idx() + distance) % 64];
      static_cast<void>(x);
    });
  };
  EXPECT_EQ(neighbour(1, true).fault, Fault::kNone);
  // The thread reads what an earlier thread wrote.
  EXPECT_EQ(neighbour(63, false).fault, Fault::kSharedMemory);
  EXPECT_EQ(neighbour(0, false).fault, Fault::kNone);
}

TEST(SimtTest, WritingOverWhatOthersStillReadIsFound) {
  const auto reuse = [](bool barrier) {
    return run_one_block(64, 256, [=](Device& d) {
      auto s = d.shared<float>(0, 64);
      s[d.thread_idx()] = 1.0f;
      d.sync_threads();
      const float x = s[(d.thread_idx() + 1) % 64];
      if (barrier) d.sync_threads();
      s[d.thread_idx()] = x;
    });
  };
  EXPECT_EQ(reuse(true).fault, Fault::kNone);
  EXPECT_EQ(reuse(false).fault, Fault::kSharedMemory);
}

TEST(SimtTest, AWarpBarrierOrdersItsWarpAlone) {
  const auto exchange = [](int distance) {
    return run_one_block(64, 256, [=](Device& d) {
      auto s = d.shared<float>(0, 64);
      s[d.thread_idx()] = 1.0f;
      d.sync_warp();
      const float x = s[d.thread_idx() ^ distance];
      static_cast<void>(x);
    });
  };
  EXPECT_EQ(exchange(1).fault, Fault::kNone);
  EXPECT_NE(exchange(32).fault, Fault::kNone);
}

TEST(SimtTest, AtomicsDoNotRaceWithEachOther) {
  std::vector<int> out(1);
  GlobalMemory memory;
  memory.add("out", out.data(), sizeof(int), Access::kReadWrite);
  const auto count = [&](bool plain) {
    return run_one_block(
        96, 4,
        [&, plain](Device& d) {
          auto s = d.shared<int>(0, 1);
          if (d.thread_idx() == 0) s[0] = 0;
          d.sync_threads();
          if (plain)
            s[0] += 1;
          else
            d.shared_atomic_add(s, 0, 1);
          d.sync_threads();
          if (d.thread_idx() == 0) d.store(out.data(), static_cast<int>(s[0]));
        },
        memory);
  };
  EXPECT_EQ(count(false).fault, Fault::kNone);
  EXPECT_EQ(out[0], 96);
  EXPECT_EQ(count(true).fault, Fault::kSharedMemory);
}

TEST(SimtTest, AThreadThatLeavesBeforeABarrierIsFound) {
  const Report block = run_one_block(64, 0, [](Device& d) {
    if (d.thread_idx() == 40) return;
    d.sync_threads();
  });
  EXPECT_EQ(block.fault, Fault::kDivergence);
  EXPECT_NE(block.message.find("63 of 64 threads wait"), std::string::npos) << block.message;
  const Report warp = run_one_block(32, 0, [](Device& d) {
    if (d.lane() < 31) d.shuffle(1.0f, 0);
  });
  EXPECT_EQ(warp.fault, Fault::kDivergence);
}

TEST(SimtTest, ThreadsAtDifferentBarriersAreFound) {
  const Report block = run_one_block(64, 0, [](Device& d) {
    if (d.thread_idx() < 32) {
      d.sync_threads();
    } else {
      d.sync_threads();
    }
  });
  EXPECT_EQ(block.fault, Fault::kDivergence);
  const Report warp = run_one_block(32, 0, [](Device& d) {
    if (d.lane() < 16) {
      d.ballot(true);
    } else {
      d.sync_warp();
    }
  });
  EXPECT_EQ(warp.fault, Fault::kDivergence);
}

TEST(SimtTest, WarpOperationsGiveEveryLaneTheRightValue) {
  std::vector<std::uint32_t> out(64 * 3);
  GlobalMemory memory;
  memory.add("out", out.data(), out.size() * 4, Access::kReadWrite);
  const Report report = run_one_block(
      64, 0,
      [&](Device& d) {
        const auto t = static_cast<std::uint32_t>(d.thread_idx());
        const std::uint32_t crossed = d.shuffle_xor(t, 5), from_three = d.shuffle(t, 3),
                            odd = d.ballot(t % 2 == 1);
        d.store(out.data() + t * 3, crossed);
        d.store(out.data() + t * 3 + 1, from_three);
        d.store(out.data() + t * 3 + 2, odd);
      },
      memory);
  ASSERT_EQ(report.fault, Fault::kNone) << report.message;
  for (std::uint32_t t = 0; t < 64; ++t) {
    EXPECT_EQ(out[t * 3], t ^ 5u);
    EXPECT_EQ(out[t * 3 + 1], t / 32 * 32 + 3);
    EXPECT_EQ(out[t * 3 + 2], 0xaaaaaaaau);
  }
}

TEST(SimtTest, TheTensorCoreTwinMultipliesInTheLayoutOfTheInstruction) {
  // a is 16 x 16 and b 16 x 8, of small integers that are exact in both types.
  const auto a = [](int i, int k) { return static_cast<float>((i * 3 + k) % 7 - 3); };
  const auto b = [](int k, int j) { return static_cast<float>((k + j * 5) % 5 - 2); };
  std::vector<float> out(16 * 8);
  GlobalMemory memory;
  memory.add("out", out.data(), out.size() * 4, Access::kReadWrite);
  const Report report = run_one_block(
      32, 0,
      [&](Device& d) {
        const auto two = [](float low, float high) {
          return std::uint32_t{f32_to_bf16(low)} | std::uint32_t{f32_to_bf16(high)} << 16;
        };
        const int g = d.lane() / 4, p = d.lane() % 4 * 2;
        const std::uint32_t fa[4] = {two(a(g, p), a(g, p + 1)), two(a(g + 8, p), a(g + 8, p + 1)),
                                     two(a(g, p + 8), a(g, p + 9)),
                                     two(a(g + 8, p + 8), a(g + 8, p + 9))};
        const std::uint32_t fb[2] = {two(b(p, g), b(p + 1, g)), two(b(p + 8, g), b(p + 9, g))};
        float c[4] = {1, 1, 1, 1};
        d.mma(c, fa, fb, cuda::BF16{});
        for (int i = 0; i < 4; ++i) d.store(out.data() + (g + i / 2 * 8) * 8 + p + i % 2, c[i]);
      },
      memory);
  ASSERT_EQ(report.fault, Fault::kNone) << report.message;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 1;
      for (int k = 0; k < 16; ++k) sum += a(i, k) * b(k, j);
      EXPECT_EQ(out[static_cast<std::size_t>(i * 8 + j)], sum);
    }
  }
}

TEST(SimtTest, AsynchronousCopiesArriveWhenWaitedFor) {
  alignas(16) float x[64];
  std::iota(x, x + 64, 0.0f);
  std::vector<float> out(32);
  GlobalMemory memory;
  memory.add("x", x, sizeof x, Access::kRead);
  memory.add("out", out.data(), 128, Access::kReadWrite);
  using Four = cuda::Pack<float>;
  const auto copy = [&](bool wait_for_first, bool barrier) {
    return run_one_block(
        32, 512,
        [=, &x, &out](Device& d) {
          auto s = d.shared<Four>(0, 32);
          const auto* from = reinterpret_cast<const Four*>(x);
          if (d.lane() < 16) d.copy_async(s, d.lane(), from + d.lane());
          d.commit_copies();
          if (d.lane() < 16) d.copy_async(s, 16 + d.lane(), from + d.lane());
          d.commit_copies();
          if (wait_for_first)
            d.wait_copies<1>();
          else
            d.wait_copies<2>();
          if (barrier) d.sync_threads();
          const float read = d.shared<float>(0, 128)[d.lane()];
          d.store(out.data() + d.lane(), read);
        },
        memory);
  };
  const Report right = copy(true, true);
  ASSERT_EQ(right.fault, Fault::kNone) << right.message;
  EXPECT_EQ(out[31], 31.0f);
  EXPECT_EQ(copy(true, false).fault, Fault::kSharedMemory);
  const Report early = copy(false, true);
  EXPECT_EQ(early.fault, Fault::kSharedMemory);
  EXPECT_NE(early.message.find("asynchronous"), std::string::npos) << early.message;
}

TEST(SimtTest, MatricesAreLoadedInTheLayoutOfTheInstruction) {
  // Element (row, column) of matrix m is 100 * m + 10 * row + column. Rows lie 24 elements apart
  // and in falling order, because each lane names its row.
  const auto value = [](int m, int row, int column) {
    return static_cast<std::uint32_t>(100 * m + 10 * row + column);
  };
  constexpr int kRow = 24;
  std::vector<std::uint32_t> out(32 * 8);
  GlobalMemory memory;
  memory.add("out", out.data(), out.size() * 4, Access::kReadWrite);
  const Report report = run_one_block(
      32, 32 * kRow * 2,
      [&](Device& d) {
        auto s = d.shared<std::uint16_t>(0, 32 * kRow);
        const int at = (31 - d.lane()) * kRow;
        for (int column = 0; column < 8; ++column)
          s[at + column] = static_cast<std::uint16_t>(value(d.lane() / 8, d.lane() % 8, column));
        d.sync_warp();
        std::uint32_t straight[4], transposed[4];
        d.load_matrices(straight, s, at);
        d.load_matrices_transposed(transposed, s, at);
        for (int m = 0; m < 4; ++m) {
          d.store(out.data() + d.lane() * 8 + m, straight[m]);
          d.store(out.data() + d.lane() * 8 + 4 + m, transposed[m]);
        }
      },
      memory);
  ASSERT_EQ(report.fault, Fault::kNone) << report.message;
  for (int lane = 0; lane < 32; ++lane) {
    const int line = lane / 4, pair = lane % 4 * 2;
    for (int m = 0; m < 4; ++m) {
      const auto at = static_cast<std::size_t>(lane * 8 + m);
      EXPECT_EQ(out[at], value(m, line, pair) | value(m, line, pair + 1) << 16);
      EXPECT_EQ(out[at + 4], value(m, pair, line) | value(m, pair + 1, line) << 16);
    }
  }
}

TEST(SimtTest, MatricesNeedABarrierAlignedRowsAndRoom) {
  const auto load = [](bool barrier, int first, int elements) {
    return run_one_block(32, 32 * 8 * 2 + 16, [=](Device& d) {
      auto words = d.shared<std::uint32_t>(0, 132);
      // A lane writes what its neighbour gets
      for (int i = d.lane(); i < 132; i += 32) words[i ^ 1] = 0;
      if (barrier) d.sync_warp();
      std::uint32_t m[4];
      d.load_matrices(m, d.shared<std::uint16_t>(0, elements), d.lane() * 8 + first);
    });
  };
  EXPECT_EQ(load(true, 0, 256).fault, Fault::kNone);
  EXPECT_EQ(load(true, 8, 264).fault, Fault::kNone);
  EXPECT_EQ(load(true, 8, 256).fault, Fault::kSharedMemory);
  const Report race = load(false, 0, 256), crooked = load(true, 4, 264);
  EXPECT_EQ(race.fault, Fault::kSharedMemory);
  EXPECT_EQ(crooked.fault, Fault::kSharedMemory);
  EXPECT_NE(crooked.message.find("aligned"), std::string::npos) << crooked.message;
  const Report divergent = run_one_block(32, 512, [](Device& d) {
    auto words = d.shared<std::uint32_t>(0, 128);
    for (int i = d.lane(); i < 128; i += 32) words[i] = 0;
    d.sync_warp();
    std::uint32_t m[4];
    if (d.lane() < 8) d.load_matrices(m, d.shared<std::uint16_t>(0, 256), d.lane() * 8);
  });
  EXPECT_EQ(divergent.fault, Fault::kDivergence);
}

TEST(SimtTest, ACopyThatIsNotPresentReadsNothingAndGivesZeros) {
  alignas(16) float x[4] = {1, 2, 3, 4};
  std::vector<float> out(8, -1.0f);
  GlobalMemory memory;
  memory.add("x", x, sizeof x, Access::kRead);
  memory.add("out", out.data(), 32, Access::kReadWrite);
  using Four = cuda::Pack<float>;
  const auto* from = reinterpret_cast<const Four*>(x);
  const auto copy = [&](bool second_present) {
    return run_one_block(
        32, 32,
        [=, &out](Device& d) {
          auto s = d.shared<Four>(0, 2);
          // The second one lies outside every buffer
          if (d.lane() < 2)
            d.copy_async_or_zero(s, d.lane(), from + d.lane(), d.lane() == 0 || second_present);
          d.commit_copies();
          d.wait_copies<0>();
          d.sync_warp();
          const float read = d.shared<float>(0, 8)[d.lane() % 8];
          if (d.lane() < 8) d.store(out.data() + d.lane(), read);
        },
        memory);
  };
  const Report report = copy(false);
  ASSERT_EQ(report.fault, Fault::kNone) << report.message;
  EXPECT_EQ(out, (std::vector<float>{1, 2, 3, 4, 0, 0, 0, 0}));
  EXPECT_EQ(copy(true).fault, Fault::kGlobalMemory);
}

TEST(SimtTest, TheApproximatePowerOfTwoFlushesWhatIsNotNormal) {
  EXPECT_EQ(Device::exp2_approx(-126.0f), std::numeric_limits<float>::min());
  EXPECT_EQ(Device::exp2_approx(-126.5f), 0.0f);
  EXPECT_EQ(Device::exp2_approx(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(Device::exp2_approx(3.0f), 8.0f);
  EXPECT_NEAR(Device::exp2_approx(0.5f), std::sqrt(2.0f), 1e-6f);
  EXPECT_TRUE(std::isnan(Device::exp2_approx(std::nanf(""))));
}

TEST(SimtTest, TwoRoundedNumbersShareAWordTheFirstOneLow) {
  EXPECT_EQ(Device::from_floats<cuda::BF16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(Device::from_floats<cuda::F16>(1.0f, -2.0f), 0xc0003c00u);
}

TEST(SimtTest, LaunchesThatNoGpuTakesAreRefused) {
  const auto fault = [](cuda::LaunchShape shape) {
    return run({}, shape, 256, [](Device&) {}).fault;
  };
  EXPECT_EQ(fault({{1, 1, 1}, 256, 0}), Fault::kNone);
  EXPECT_EQ(fault({{0, 1, 1}, 32, 0}), Fault::kNone);
  EXPECT_EQ(fault({{1, 1, 1}, 288, 0}), Fault::kLaunch);
  EXPECT_EQ(fault({{1, 1, 1}, 33, 0}), Fault::kLaunch);
  EXPECT_EQ(fault({{1, 65536, 1}, 32, 0}), Fault::kLaunch);
  EXPECT_EQ(fault({{1, 1, 1}, 32, 300 * 1024}), Fault::kLaunch);
}

}  // namespace
}  // namespace quire::simt
