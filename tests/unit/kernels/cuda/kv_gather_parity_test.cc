// Reference, CPU and CUDA (emulated) agree on copying rows between paged caches of every pair of
// layouts.
#include "kernels/cuda/rows/kv_gather.cuh"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

constexpr TestLayout kLayouts[] = {TestLayout::kTokenMajor, TestLayout::kHeadMajor,
                                   TestLayout::kHeadPages, TestLayout::kGranules};

struct Shape {
  std::int64_t from_rows, to_rows;
  std::int32_t heads, dim;
  DType dtype;
  std::int32_t most;
};

/// Returns ranges of 1 to `most` rows for each head, from anywhere; no row is written twice.
std::vector<KvMove> random_moves(const Shape& s, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<KvMove> moves;
  for (std::int32_t head = 0; head < s.heads; ++head) {
    for (std::int32_t to = static_cast<std::int32_t>(static_cast<std::int64_t>(random()) %
                                                     std::min<std::int64_t>(3, s.to_rows));
         to < s.to_rows;) {
      const auto rows = static_cast<std::int32_t>(std::min<std::int64_t>(
          {1 + static_cast<std::int64_t>(random()) % s.most, s.to_rows - to, s.from_rows}));
      moves.push_back({head,
                       static_cast<std::int32_t>(static_cast<std::int64_t>(random()) %
                                                 (s.from_rows - rows + 1)),
                       to, rows});
      to += rows + static_cast<std::int32_t>(random() % 4);
    }
  }
  std::shuffle(moves.begin(), moves.end(), random);
  return moves;
}

static_assert(alignof(KvMove) == 16 && sizeof(KvMove) == 16, "kernels load a move as one word");

TEST(CudaParity, RowsBetweenCachesOfAnyTwoLayouts) {
  for (const Shape& s :
       {Shape{1, 1, 1, 8, DType::kF32, 1}, Shape{35, 50, 3, 24, DType::kF16, 7},
        Shape{130, 70, 2, 128, DType::kBF16, 40}, Shape{40, 33, 5, 64, DType::kF16, 1},
        Shape{17, 90, 1, 256, DType::kF32, 32}, Shape{61, 40, 3, 80, DType::kF8, 9}}) {
    for (const TestLayout source : kLayouts) {
      for (const TestLayout target : kLayouts) {
        SCOPED_TRACE(std::to_string(s.from_rows) + " rows of " + std::to_string(s.dim) +
                     ", layout " + std::to_string(static_cast<int>(source)) + " to " +
                     std::to_string(static_cast<int>(target)));
        const std::vector<KvMove> moves = random_moves(s, 3);
        PagedKv from(s.from_rows, s.heads, s.dim, s.dtype, source, 11),
            expected(s.to_rows, s.heads, s.dim, s.dtype, target, 12),
            cpu(s.to_rows, s.heads, s.dim, s.dtype, target, 12),
            cuda(s.to_rows, s.heads, s.dim, s.dtype, target, 12);
        const auto args = [&](PagedKv& to) {
          return KvGatherArgs{from.view(true), to.mutable_view(), moves.data(),
                              static_cast<std::int64_t>(moves.size()), s.most};
        };
        const std::vector<std::byte> before = expected.memory();
        ASSERT_OK(kv_gather_reference(args(expected)));
        EXPECT_NE(expected.memory(), before);
        ASSERT_OK(kv_gather(args(cpu)));
        EXPECT_EQ(cpu.memory(), expected.memory());
        TestDevice device;
        auto launcher = device.launcher();
        KvGatherArgs there = args(cuda);
        there.src = device.upload(from.view(true));
        there.dst = device.attach(cuda.mutable_view());
        there.moves = device.upload(moves, "moves");
        ASSERT_OK(launch_kv_gather(launcher, there));
        device.bring_back(there.dst, cuda.mutable_view());
        EXPECT_EQ(cuda.memory(), expected.memory());
      }
    }
  }
}

TEST(CudaParity, ThereAndBackIsTheIdentity) {
  constexpr std::int32_t kRows = 53, kHeads = 3, kDim = 32;
  std::vector<KvMove> pages;
  for (std::int32_t head = 0; head < kHeads; ++head) {
    for (std::int32_t row = 0; row < kRows; row += kPageTokens)
      pages.push_back({head, row, row, std::min(kPageTokens, kRows - row)});
  }
  for (const TestLayout layout : kLayouts) {
    PagedKv there(kRows, kHeads, kDim, DType::kBF16, layout, 4),
        host(kRows, kHeads, kDim, DType::kBF16, TestLayout::kHeadPages, 5);
    const std::vector<std::byte> before = host.memory();
    const auto n = static_cast<std::int64_t>(pages.size());
    ASSERT_OK(kv_gather({host.view(true), there.mutable_view(), pages.data(), n, kPageTokens}));
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (int kv = 0; kv < 2; ++kv) {
        for (std::int32_t head = 0; head < kHeads; ++head)
          std::fill_n(host.row(row, kv, head), kDim * 2, std::byte{0});
      }
    }
    ASSERT_OK(kv_gather({there.view(true), host.mutable_view(), pages.data(), n, kPageTokens}));
    EXPECT_EQ(host.memory(), before);
  }
}

TEST(CudaParity, GatherSaysWhatIsWrong) {
  PagedKv from(20, 2, 16, DType::kF16, TestLayout::kHeadPages, 1),
      to(20, 2, 16, DType::kF16, TestLayout::kTokenMajor, 2),
      wider(20, 2, 24, DType::kF16, TestLayout::kTokenMajor, 2),
      other(20, 2, 16, DType::kBF16, TestLayout::kTokenMajor, 2),
      odd(20, 2, 24, DType::kF8, TestLayout::kTokenMajor, 2);
  const KvMove good{1, 3, 4, 5};
  const KvGatherArgs args{from.view(true), to.mutable_view(), &good, 1, 5};
  ASSERT_OK(kv_gather(args));
  const auto field = [&](auto change) {
    KvGatherArgs bad = args;
    change(bad);
    TestDevice device;
    auto launcher = device.launcher();
    const Status s = kv_gather(bad);
    if (s.field() != "moves") {
      EXPECT_EQ(launch_kv_gather(launcher, bad).field(), s.field());
    }
    return s.field();
  };
  EXPECT_EQ(field([&](KvGatherArgs& a) { a.dst = wider.mutable_view(); }), "dst");
  EXPECT_EQ(field([&](KvGatherArgs& a) { a.dst = other.mutable_view(); }), "dst.dtype");
  EXPECT_EQ(field([&](KvGatherArgs& a) {
              a.src = odd.view(true);
              a.dst = odd.mutable_view();
            }),
            "head_dim");
  EXPECT_EQ(field([&](KvGatherArgs& a) { a.num_moves = -1; }), "num_moves");
  EXPECT_EQ(field([&](KvGatherArgs& a) { a.most_rows = 0; }), "most_rows");
  EXPECT_EQ(field([&](KvGatherArgs& a) { a.src.token_stride += 2; }), "strides");
  for (const KvMove& wrong :
       {KvMove{2, 0, 0, 1}, KvMove{-1, 0, 0, 1}, KvMove{0, 17, 0, 4}, KvMove{0, 0, 18, 3},
        KvMove{0, 0, 0, 6}, KvMove{0, -1, 0, 1}, KvMove{0, 0, 0, 0}}) {
    const std::vector<std::byte> before = to.memory();
    EXPECT_EQ(field([&](KvGatherArgs& a) { a.moves = &wrong; }), "moves");
    EXPECT_EQ(to.memory(), before);
  }
}

}  // namespace
}  // namespace quire::cuda
