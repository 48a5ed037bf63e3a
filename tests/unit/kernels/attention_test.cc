#include "kernels/attention/attention.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Output {
  std::vector<float> o, lse;
};

struct Queries {
  std::vector<float> q;
  std::vector<std::int32_t> positions;
  std::int32_t heads;
};

AttentionArgs arguments(const Queries& q, const KvView& kv, Output& out, std::int64_t first = 0,
                        std::int64_t rows = -1) {
  if (rows < 0) rows = static_cast<std::int64_t>(q.positions.size()) - first;
  const std::int64_t width = std::int64_t{q.heads} * kv.head_dim;
  out.o.assign(static_cast<std::size_t>(rows * width), -99.0f);
  out.lse.assign(static_cast<std::size_t>(rows * q.heads), -99.0f);
  return AttentionArgs{q.q.data() + first * width,
                       q.positions.data() + first,
                       rows,
                       width,
                       q.heads,
                       1.0f / std::sqrt(static_cast<float>(kv.head_dim)),
                       kv,
                       out.o.data(),
                       width,
                       out.lse.data()};
}

Queries queries(std::int64_t rows, std::int32_t heads, std::int32_t dim,
                std::int32_t first_position, std::uint32_t seed) {
  Queries q{random_floats(rows * heads * dim, seed), {}, heads};
  for (std::int64_t r = 0; r < rows; ++r)
    q.positions.push_back(first_position + static_cast<std::int32_t>(r));
  return q;
}

double relative_frobenius(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

/// The tolerance is larger for bf16 KV, which may be multiplied in bf16; queries and weights are
/// then rounded too.
double tolerance(DType t, std::int32_t dim) {
  return t == DType::kBF16 ? 0.04 : 2e-6 * std::sqrt(static_cast<double>(dim)) + 1e-5;
}

// Order: query rows, kv rows, kv heads, group, head_dim.
using Shape = std::tuple<int, int, int, int, int>;
class AttentionTest : public ::testing::TestWithParam<Shape> {};

TEST_P(AttentionTest, MatchesTheReferenceForEveryDtypeAndLayout) {
  const auto [rows, kv_rows, kv_heads, group, dim] = GetParam();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8}) {
    for (const TestLayout layout : {TestLayout::kTokenMajor, TestLayout::kHeadMajor}) {
      PagedKv kv(kv_rows, kv_heads, dim, dtype, layout, 5);
      const auto q = queries(rows, kv_heads * group, dim, std::max(0, kv_rows - rows), 6);
      Output actual, expected;
      ASSERT_OK(attention(arguments(q, kv.view(true), actual)));
      ASSERT_OK(attention_reference(arguments(q, kv.view(true), expected)));
      const std::string what = "dtype " + std::string(dtype_name(dtype));
      expect_close(actual.o, expected.o, tolerance(dtype, dim), 0, what);
      expect_close(actual.lse, expected.lse, tolerance(dtype, dim), 1e-6, what + " lse");
      EXPECT_LE(relative_frobenius(actual.o, expected.o), dtype == DType::kBF16 ? 1e-2 : 1e-5)
          << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         ::testing::Values(Shape{1, 1, 1, 1, 8}, Shape{1, 7, 2, 1, 64},
                                           Shape{1, 700, 2, 7, 64}, Shape{1, 1100, 1, 16, 128},
                                           Shape{3, 33, 1, 3, 80}, Shape{7, 129, 2, 5, 96},
                                           Shape{33, 130, 1, 6, 64}, Shape{65, 65, 2, 4, 128},
                                           Shape{129, 129, 1, 1, 40}, Shape{20, 600, 2, 8, 256},
                                           Shape{40, 40, 3, 2, 24}, Shape{5, 0, 1, 4, 64}));

TEST(AttentionMaskTest, RowsBeforeEveryKeySeeNothing) {
  PagedKv kv(20, 1, 64, DType::kBF16, TestLayout::kHeadMajor, 1);
  for (auto& p : kv.positions()) p += 10;
  const auto q = queries(12, 2, 64, 0, 2);
  Output out;
  ASSERT_OK(attention(arguments(q, kv.view(true), out)));
  for (int i = 0; i < 10 * 2 * 64; ++i) ASSERT_EQ(out.o[i], 0.0f);
  for (int i = 0; i < 10 * 2; ++i) ASSERT_EQ(out.lse[i], -kInfinity);
  EXPECT_NE(out.o[10 * 2 * 64], 0.0f);
}

TEST(AttentionMaskTest, UnsortedPositionsGiveTheSameAsSortedOnes) {
  constexpr int kRows = 900, kDim = 64;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    PagedKv sorted(kRows, 2, kDim, dtype, TestLayout::kHeadMajor, 3),
        shuffled(kRows, 2, kDim, dtype, TestLayout::kHeadMajor, 3);
    std::vector<int> order(kRows);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 rng(9);
    std::shuffle(order.begin(), order.end(), rng);
    for (int r = 0; r < kRows; ++r) {
      shuffled.positions()[r] = order[r] * 3;
      sorted.positions()[r] = r * 3;
      for (int which = 0; which < 2; ++which) {
        for (int h = 0; h < 2; ++h)
          std::memcpy(shuffled.row(r, which, h), sorted.row(order[r], which, h),
                      kDim * dtype_bytes(dtype));
      }
    }
    Queries q = queries(9, 6, kDim, 0, 4);
    q.positions = {2699, 0, 1, 1500, 1499, 3, 2000, -1, 5};
    Output a, b, expected;
    ASSERT_OK(attention(arguments(q, sorted.view(true), a)));
    ASSERT_OK(attention(arguments(q, shuffled.view(false), b)));
    ASSERT_OK(attention_reference(arguments(q, shuffled.view(false), expected)));
    expect_close(b.o, expected.o, tolerance(dtype, kDim), 0, "unsorted against reference");
    expect_close(a.o, b.o, tolerance(dtype, kDim), 0, "sorted against unsorted");
    expect_close(a.lse, b.lse, 2e-2, 1e-6, "lse");
  }
}

TEST(AttentionMaskTest, KeysWithLargerPositionsAreNeverSeen) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8}) {
    PagedKv kv(640, 1, 64, dtype, TestLayout::kHeadMajor, 3);
    const auto q = queries(40, 4, 64, 300, 4);
    Output before, after;
    ASSERT_OK(attention(arguments(q, kv.view(true), before)));
    for (std::int64_t r = 320; r < 640; ++r) {
      for (int c = 0; c < 64; ++c) {
        store_f32(kv.row(r, 0, 0), dtype, c, 50.0f);
        store_f32(kv.row(r, 1, 0), dtype, c, -60.0f);
      }
    }
    ASSERT_OK(attention(arguments(q, kv.view(true), after)));
    EXPECT_EQ(std::memcmp(before.o.data(), after.o.data(), 20 * 4 * 64 * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(before.lse.data(), after.lse.data(), 20 * 4 * sizeof(float)), 0);
    EXPECT_NE(before.o[20 * 4 * 64], after.o[20 * 4 * 64]);
  }
}

TEST(AttentionRowsTest, ARowHasTheSameBitsAloneAndInAnyBatch) {
  struct Case {
    std::int32_t group, dim;
  };
  // The shapes take different paths: 1 to 9 query heads per KV head, and head dimensions that do or
  // do not fill registers.
  for (const Case c :
       {Case{7, 64}, Case{1, 64}, Case{3, 80}, Case{4, 128}, Case{8, 24}, Case{9, 64}}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8}) {
      constexpr std::int64_t kRows = 75, kKv = 1300;
      PagedKv kv(kKv, 2, c.dim, dtype, TestLayout::kTokenMajor, 8);
      const auto q = queries(kRows, 2 * c.group, c.dim, kKv - kRows, 9);
      const std::int64_t width = 2 * c.group * c.dim;
      Output all;
      ASSERT_OK(attention(arguments(q, kv.view(true), all)));
      for (const int threads : {1, 2, 5}) {
        set_num_threads(threads);
        for (const std::int64_t row : {0, 1, 8, 9, 10, 40, 74}) {
          Output one;  // later keys do not exist yet, as in decoding
          ASSERT_OK(attention(arguments(q, kv.view(kKv - kRows + row + 1, true), one, row, 1)));
          ASSERT_EQ(
              std::memcmp(one.o.data(), all.o.data() + row * width, one.o.size() * sizeof(float)),
              0)
              << "row " << row << " dtype " << dtype_name(dtype) << " threads " << threads
              << " group " << c.group << " dim " << c.dim;
          ASSERT_EQ(std::memcmp(one.lse.data(), all.lse.data() + row * 2 * c.group,
                                one.lse.size() * sizeof(float)),
                    0);
        }
      }
      set_num_threads(0);
    }
  }
}

TEST(AttentionRowsTest, LargeScoresDoNotOverflow) {
  PagedKv kv(200, 1, 64, DType::kF32, TestLayout::kHeadMajor, 8);
  auto q = queries(2, 2, 64, 198, 9);
  for (float& x : q.q) x *= 1000.0f;
  Output actual, expected;
  ASSERT_OK(attention(arguments(q, kv.view(true), actual)));
  ASSERT_OK(attention_reference(arguments(q, kv.view(true), expected)));
  expect_close(actual.o, expected.o, 5e-3, 0, "sharp softmax");
  expect_close(actual.lse, expected.lse, 0, 1e-5, "lse");
}

TEST(AttentionArgsTest, WrongArgumentsAreNamed) {
  PagedKv kv(20, 2, 64, DType::kBF16, TestLayout::kHeadMajor, 1);
  auto q = queries(1, 4, 64, 0, 2);
  Output out;
  AttentionArgs a = arguments(q, kv.view(true), out);
  a.num_heads = 3;
  EXPECT_EQ(attention(a).field(), "num_heads");
  a.num_heads = 34;
  EXPECT_EQ(attention(a).field(), "num_heads");
  a = arguments(q, kv.view(true), out);
  a.kv.head_dim = 63;
  EXPECT_EQ(attention(a).field(), "head_dim");
  a = arguments(q, kv.view(true), out);
  a.kv.dtype = DType::kI8;
  EXPECT_EQ(attention(a).field(), "kv.dtype");
  a = arguments(q, kv.view(true), out);
  a.ldq = 255;
  EXPECT_EQ(attention(a).field(), "ldq");
  a = arguments(q, kv.view(true), out);
  a.q = nullptr;
  EXPECT_EQ(attention(a).field(), "q");
  a.rows = 0;
  EXPECT_TRUE(attention(a).ok());
}

TEST(MergeTest, GoldenVector) {
  float o1 = 1, l1 = 0, o2 = 3, l2 = std::log(3.0f);
  merge_attention(&o1, &l1, &o2, &l2, 1, 1);
  EXPECT_NEAR(o1, 2.5f, 1e-6);
  EXPECT_NEAR(l1, std::log(4.0f), 1e-6);
}

TEST(MergeTest, EmptyIsTheIdentity) {
  float o[2] = {1.5f, -2.0f}, l = 0.7f;
  const float none_o[2] = {0, 0}, none_l = -kInfinity;
  merge_attention(o, &l, none_o, &none_l, 1, 2);
  EXPECT_EQ(o[0], 1.5f);
  EXPECT_EQ(l, 0.7f);
  float into_o[2] = {0, 0}, into_l = -kInfinity;
  merge_attention(into_o, &into_l, o, &l, 1, 2);
  EXPECT_EQ(into_o[1], -2.0f);
  EXPECT_EQ(into_l, 0.7f);
  float a[2] = {0, 0}, b = -kInfinity;
  merge_attention(a, &b, none_o, &none_l, 1, 2);
  EXPECT_EQ(a[0], 0.0f);
  EXPECT_EQ(b, -kInfinity);
}

TEST(MergeTest, AnyDisjointPartitionEqualsOneSoftmax) {
  constexpr int kKeys = 400, kDim = 64;
  PagedKv kv(kKeys, 1, kDim, DType::kF32, TestLayout::kHeadMajor, 4);
  const auto q = queries(1, 3, kDim, kKeys, 5);
  Output whole;
  ASSERT_OK(attention(arguments(q, kv.view(true), whole)));
  std::mt19937 rng(6);
  for (int parts = 2; parts <= 5; ++parts) {
    std::vector<int> owner(kKeys);
    for (int& o : owner) o = static_cast<int>(rng() % static_cast<unsigned>(parts));
    std::vector<Output> partial(parts);
    for (int p = 0; p < parts; ++p) {
      // Keys of other parts are hidden by a larger position.
      for (int r = 0; r < kKeys; ++r) kv.positions()[r] = owner[r] == p ? r : kKeys + 1;
      ASSERT_OK(attention(arguments(q, kv.view(false), partial[p])));
    }
    for (const bool reversed : {false, true}) {
      if (reversed) std::reverse(partial.begin(), partial.end());
      Output merged = partial[0];
      for (int p = 1; p < parts; ++p)
        merge_attention(merged.o.data(), merged.lse.data(), partial[p].o.data(),
                        partial[p].lse.data(), 3, kDim);
      expect_close(merged.o, whole.o, 2e-6, 1e-6, "merged");
      expect_close(merged.lse, whole.lse, 2e-6, 1e-6, "merged lse");
    }
  }
}

}  // namespace
}  // namespace quire
