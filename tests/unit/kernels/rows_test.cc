#include <atomic>
#include <limits>
#include <thread>

#include "kernels/choice/topk.h"
#include "kernels/parallel.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/norm.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(RmsNormTest, MatchesTheReference) {
  for (const std::int64_t dim : {1, 7, 33, 64, 129, 896, 4096}) {
    for (const std::int64_t rows : {0, 1, 7, 33}) {
      const auto x = random_floats(rows * dim, 1, 3.0f), weight = random_floats(dim, 2);
      std::vector<float> actual(rows * dim), expected(rows * dim);
      ASSERT_OK(rms_norm({x.data(), weight.data(), actual.data(), rows, dim, 1e-6f}));
      ASSERT_OK(rms_norm_reference({x.data(), weight.data(), expected.data(), rows, dim, 1e-6f}));
      expect_close(actual, expected, 1e-7, 2e-6, "rms_norm");
      auto in_place = x;
      ASSERT_OK(rms_norm({in_place.data(), weight.data(), in_place.data(), rows, dim, 1e-6f}));
      EXPECT_EQ(in_place, actual);
    }
  }
  EXPECT_EQ(rms_norm({nullptr, nullptr, nullptr, 1, 0, 1e-6f}).field(), "dim");
}

TEST(SwigluTest, MatchesTheReferenceAlsoFarOut) {
  for (const std::int64_t dim : {1, 7, 33, 129, 1000}) {
    for (const std::int64_t rows : {0, 1, 33}) {
      auto x = random_floats(rows * 2 * dim, 1, 5.0f);
      if (rows > 0) x[0] = -200.0f;
      if (rows > 1) x[2 * dim] = 200.0f;
      std::vector<float> actual(rows * dim), expected(rows * dim);
      ASSERT_OK(swiglu({x.data(), actual.data(), rows, dim}));
      ASSERT_OK(swiglu_reference({x.data(), expected.data(), rows, dim}));
      expect_close(actual, expected, 1e-30, 2e-6, "swiglu");
    }
  }
}

TEST(LayerNormTest, MatchesTheReference) {
  for (const std::int64_t dim : {1, 7, 33, 64, 129, 384, 1024}) {
    for (const std::int64_t rows : {0, 1, 7, 33}) {
      auto x = random_floats(rows * dim, 1, 3.0f);
      for (float& v : x) v += 5.0f;  // a mean far from 0
      const auto weight = random_floats(dim, 2), bias = random_floats(dim, 3);
      std::vector<float> actual(rows * dim), expected(rows * dim);
      const LayerNormArgs args{x.data(), weight.data(), bias.data(), actual.data(),
                               rows,     dim,           1e-5f};
      ASSERT_OK(layer_norm(args));
      LayerNormArgs other = args;
      other.out = expected.data();
      ASSERT_OK(layer_norm_reference(other));
      expect_close(actual, expected, 2e-5, 1e-5, "layer_norm");
      auto in_place = x;
      LayerNormArgs same = args;
      same.x = same.out = in_place.data();
      ASSERT_OK(layer_norm(same));
      EXPECT_EQ(in_place, actual);
    }
  }
  EXPECT_EQ(layer_norm({nullptr, nullptr, nullptr, nullptr, 1, 0, 1e-5f}).field(), "dim");
}

TEST(GeluTest, MatchesTheReferenceAlsoFarOut) {
  for (const std::int64_t n : {0, 1, 7, 33, 100001}) {
    auto x = random_floats(n, 1, 4.0f);
    if (n > 7) {
      x[0] = -200.0f, x[1] = 200.0f, x[2] = 0.0f, x[3] = -1e-30f;
      x[4] = std::numeric_limits<float>::lowest(), x[5] = std::numeric_limits<float>::max();
    }
    auto expected = x;
    gelu(x.data(), n);
    gelu_reference(expected.data(), n);
    expect_close(x, expected, 4e-7, 4e-7, "gelu");
  }
}

TEST(AddInplaceTest, Adds) {
  for (const std::int64_t n : {0, 1, 33, 200001}) {
    auto x = random_floats(n, 1);
    const auto y = random_floats(n, 2), before = x;
    add_inplace(x.data(), y.data(), n);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(x[i], before[i] + y[i]);
  }
}

TEST(TopKTest, MatchesTheReferenceWithTiesAndNan) {
  std::mt19937 rng(3);
  for (const std::int64_t n : {0, 1, 7, 8, 33, 34, 300, 301}) {
    std::vector<float> scores(n);
    for (float& s : scores) {
      const auto pick = n % 2 == 0 ? 1 + rng() % 11 : rng() % 12;  // with and without NaN
      s = pick == 0   ? kNan
          : pick == 1 ? kInfinity
          : pick == 2 ? -kInfinity
          : pick == 3 ? -0.0f
                      : static_cast<float>(pick % 5);
    }
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, n / 2, n - 1, n, n + 5}) {
      if (k < 0) continue;
      auto expected = top_k_reference(scores, k);
      EXPECT_EQ(top_k(scores, k), expected) << "n " << n << " k " << k;
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(top_k_sorted(scores, k), expected);
    }
  }
}

TEST(TopKTest, TiesGoToTheSmallerIndexAndNanLast) {
  const std::vector<float> scores = {1, kNan, 3, 3, 2, 3};
  EXPECT_EQ(top_k(scores, 2), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(top_k(scores, 6), (std::vector<std::int32_t>{2, 3, 5, 4, 0, 1}));
  EXPECT_EQ(top_k_sorted(scores, 4), (std::vector<std::int32_t>{2, 3, 4, 5}));
}

TEST(TopKTest, ManyScoresAreMarkedExactly) {
  // The list is long enough for a guess from a sample. Some inputs mislead it: waves of its stride,
  // a few outliers, whole ranges without a score, one value for all.
  const std::int64_t n = 20011;
  std::mt19937 rng(8);
  for (int kind = 0; kind < 6; ++kind) {
    std::vector<float> scores = random_floats(n, 9);
    for (std::int64_t i = 0; i < n; ++i) {
      float& s = scores[i];
      if (kind == 1) s = static_cast<float>(i % 39 == 0 ? 100 : 0) + s;
      if (kind == 2) s = i < n - 7 ? static_cast<float>(i % 3) : 9.0f;
      if (kind == 3 && i % 500 > 3) s = -kInfinity;
      if (kind == 4) s = 2.0f;
      if (kind == 5) s = rng() % 7 == 0 ? kNan : std::round(s * 4);
    }
    std::vector<std::int32_t> order(n);
    for (std::int64_t i = 0; i < n; ++i) order[i] = static_cast<std::int32_t>(i);
    const auto key = [&](std::int32_t i) { return std::isnan(scores[i]) ? -kInfinity : scores[i]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return key(a) > key(b); });
    const std::int64_t finite = std::count_if(scores.begin(), scores.end(),
                                              [](float s) { return s > -kInfinity; });
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2},
                                 std::int64_t{130}, std::int64_t{2560}, n / 2, n - 1, n, n + 5}) {
      std::vector<std::uint64_t> bits((n + 63) / 64, ~std::uint64_t{0});
      const std::int64_t expected = std::min(k, finite);
      ASSERT_EQ(mark_top_k(scores, k, bits.data()), expected) << "kind " << kind << " k " << k;
      std::vector<std::uint64_t> plain((n + 63) / 64, 0);
      for (std::int64_t i = 0; i < expected; ++i)
        plain[order[i] / 64] |= std::uint64_t{1} << (order[i] % 64);
      ASSERT_EQ(bits, plain) << "kind " << kind << " k " << k;
      if (k > 0 && k <= finite) {
        std::vector<std::int32_t> best(order.begin(), order.begin() + k);
        std::sort(best.begin(), best.end());
        ASSERT_EQ(top_k_sorted(scores, k), best);
      }
    }
  }
}

TEST(ArgmaxTest, FirstOfTheLargest) {
  for (const std::int64_t n : {1, 5, 16, 33, 1000}) {
    auto x = random_floats(n, 4);
    EXPECT_EQ(argmax(x.data(), n), std::max_element(x.begin(), x.end()) - x.begin());
    x[n / 2] = x[n - 1] = 100.0f;
    EXPECT_EQ(argmax(x.data(), n), n / 2);
    if (n > 1) {
      x[0] = kNan;
      EXPECT_EQ(argmax(x.data(), n), n / 2);
    }
  }
  const float nothing[2] = {kNan, kNan};
  EXPECT_EQ(argmax(nothing, 2), 0);
}

TEST(ParallelTest, RangesCoverEverythingOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (const std::int64_t n : {0, 1, 7, 100}) {
      std::vector<std::atomic<int>> hits(n), tasks(n);
      parallel_for(n, 3, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++hits[i];
      });
      parallel_tasks(n, [&](std::int64_t i) { ++tasks[i]; });
      for (std::int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(hits[i], 1);
        EXPECT_EQ(tasks[i], 1);
      }
    }
  }
  set_num_threads(0);
  EXPECT_GE(num_threads(), 1);
}

TEST(ParallelTest, CallsFromSeveralThreadsAndFromInsideAreAllDone) {
  constexpr int kCallers = 4, kRounds = 200, kTasks = 50;
  std::atomic<long> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&] {
      set_num_threads(3);
      for (int round = 0; round < kRounds; ++round) {
        // These are plain writes, which must be visible once the call returns.
        std::vector<int> plain(kTasks, 0);
        parallel_tasks(kTasks, [&](std::int64_t i) {
          plain[i] = 1;
          parallel_for(10, 1, [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
        });
        for (const int x : plain) ASSERT_EQ(x, 1);
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(total, long{kCallers} * kRounds * kTasks * 10);
}

TEST(ParallelTest, WhatATaskThrowsReachesTheCallerAndThePoolGoesOn) {
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> inside{0}, calls{0};
      const auto task = [&](std::int64_t i) {
        ++inside;
        ++calls;
        if (i % 7 == 3) {
          --inside;
          throw std::bad_alloc();
        }
        --inside;
      };
      EXPECT_THROW(parallel_tasks(100, task), std::bad_alloc);
      EXPECT_EQ(inside, 0) << "nobody is left in a task";
      EXPECT_LT(calls, 100) << "what had not begun is left out";
      EXPECT_THROW(parallel_for(100, 1,
                                [&](std::int64_t begin, std::int64_t end) {
                                  for (std::int64_t i = begin; i < end; ++i) task(i);
                                }),
                   std::bad_alloc);
      std::atomic<int> done{0};
      parallel_tasks(100, [&](std::int64_t) { ++done; });
      EXPECT_EQ(done, 100);
      EXPECT_EQ(num_threads(), threads) << "the caller is in no task";
    }
  }
  set_num_threads(0);
}

TEST(ParallelTest, InsideATaskThereIsOneThread) {
  set_num_threads(4);
  parallel_tasks(8, [](std::int64_t) { EXPECT_EQ(num_threads(), 1); });
  EXPECT_EQ(num_threads(), 4);
  set_num_threads(0);
}

}  // namespace
}  // namespace quire
