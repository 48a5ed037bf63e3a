#include "kernels/rows/kv.h"

#include <cstring>

#include "kernels/rows/block_summary.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

RopeTable table_of(std::int32_t dim, std::int64_t positions = 4096) {
  RopeConfig c;
  c.head_dim = c.rotary_dim = dim;
  auto table = RopeTable::build(c, positions);
  EXPECT_TRUE(table.ok());
  return std::move(table).value();
}

/// A stored block [heads][2][rows][dim].
struct RawBlock {
  RawBlock(std::int64_t num_rows, std::int32_t heads, std::int32_t dim, DType t, std::uint32_t seed)
      : rows(num_rows),
        dtype(t),
        bytes(to_bytes(random_floats(heads * 2 * num_rows * dim, seed), t)) {
    row_stride = dim * static_cast<std::int64_t>(dtype_bytes(t));
  }
  RawKvView view() const {
    return {bytes.data(), rows, dtype, 2 * rows * row_stride, rows * row_stride, row_stride};
  }
  std::int64_t rows, row_stride;
  DType dtype;
  std::vector<std::byte> bytes;
};

const DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST(KvPlaceTest, MatchesTheReference) {
  for (const std::int32_t dim : {8, 64, 80, 96, 128, 256}) {
    const RopeTable table = table_of(dim);
    for (const DType from : kDtypes) {
      for (const DType to : kDtypes) {
        for (const std::int64_t rows : {0, 1, 7, 33}) {
          const RawBlock raw(rows, 2, dim, from, 3);
          PagedKv actual(50, 2, dim, to, TestLayout::kHeadMajor, 4),
              expected(50, 2, dim, to, TestLayout::kHeadMajor, 4);
          std::vector<std::int32_t> positions, scattered;
          for (std::int64_t r = 0; r < rows; ++r) {
            positions.push_back(static_cast<std::int32_t>(4000 - 13 * r));
            scattered.push_back(static_cast<std::int32_t>((r * 7 + 3) % 50));
          }
          const std::int32_t* targets = dim == 64 ? scattered.data() : nullptr;
          ASSERT_OK(
              kv_place(table, {raw.view(), actual.mutable_view(), positions.data(), targets, 11}));
          ASSERT_OK(kv_place_reference(
              table, {raw.view(), expected.mutable_view(), positions.data(), targets, 11}));
          for (std::int64_t r = 0; r < 50; ++r) {
            for (std::int32_t h = 0; h < 2; ++h) {
              for (std::int32_t c = 0; c < dim; ++c) {
                const float a = load_f32(actual.row(r, 0, h), to, c),
                            e = load_f32(expected.row(r, 0, h), to, c);
                // The rotation rounds in f32, so the stored value may be the neighbouring one.
                ASSERT_NEAR(a, e, 2 * epsilon_of(to) * std::abs(e) + 2e-6)
                    << "dim " << dim << " row " << r;
              }
              ASSERT_EQ(
                  std::memcmp(actual.row(r, 1, h), expected.row(r, 1, h), dim * dtype_bytes(to)), 0)
                  << "V is converted only";
            }
          }
        }
      }
    }
  }
}

TEST(KvPlaceTest, RotatingRawOnceEqualsRotatingStoredKeysByTheDelta) {
  const RopeTable table = table_of(64);
  const RawBlock raw(20, 1, 64, DType::kBF16, 6);
  PagedKv once(32, 1, 64, DType::kBF16, TestLayout::kHeadMajor, 1),
      local(32, 1, 64, DType::kBF16, TestLayout::kHeadMajor, 1);
  std::vector<std::int32_t> here(20), there(20);
  for (int r = 0; r < 20; ++r) {
    here[r] = r;
    there[r] = r + 1000;
  }
  ASSERT_OK(kv_place(table, {raw.view(), once.mutable_view(), there.data(), nullptr, 0}));
  ASSERT_OK(kv_place(table, {raw.view(), local.mutable_view(), here.data(), nullptr, 0}));
  for (int r = 0; r < 20; ++r) {
    std::vector<float> k(64), moved(64), direct(64);
    const std::int32_t delta = 1000;
    for (int c = 0; c < 64; ++c) k[c] = load_f32(local.row(r, 0, 0), DType::kBF16, c);
    ASSERT_OK(rope_rotate(table, {k.data(), moved.data(), &delta, 1, 1, 64, 64}));
    for (int c = 0; c < 64; ++c) direct[c] = load_f32(once.row(r, 0, 0), DType::kBF16, c);
    expect_close(moved, direct, 2e-2, 2 * epsilon_of(DType::kBF16), "keys");
    EXPECT_EQ(std::memcmp(local.row(r, 1, 0), once.row(r, 1, 0), 128), 0) << "values";
  }
}

TEST(KvPlaceTest, RowsAndPositionsOutsideAreRefused) {
  const RopeTable table = table_of(64, 100);
  const RawBlock raw(4, 1, 64, DType::kBF16, 6);
  PagedKv kv(16, 1, 64, DType::kBF16, TestLayout::kHeadMajor, 1);
  std::int32_t positions[4] = {0, 1, 2, 100};
  EXPECT_EQ(kv_place(table, {raw.view(), kv.mutable_view(), positions, nullptr, 0}).field(),
            "positions");
  positions[3] = 3;
  EXPECT_EQ(kv_place(table, {raw.view(), kv.mutable_view(), positions, nullptr, 13}).field(),
            "dst_rows");
  const std::int32_t rows[4] = {0, 1, -1, 3};
  EXPECT_EQ(kv_place(table, {raw.view(), kv.mutable_view(), positions, rows, 0}).field(),
            "dst_rows");
  EXPECT_EQ(kv_place(table_of(32), {raw.view(), kv.mutable_view(), positions, nullptr, 0}).field(),
            "table");
}

TEST(KvPackTest, MatchesTheReferenceBitForBit) {
  for (const DType t : kDtypes) {
    for (const std::int64_t rows : {0, 1, 33}) {
      const auto k = random_floats(rows * 250, 1, 30.0f), v = random_floats(rows * 241, 2, 1e-3f);
      std::vector<std::byte> actual(rows * 2 * 240 * dtype_bytes(t)), expected(actual.size());
      ASSERT_OK(kv_pack({k.data(), v.data(), rows, 250, 241, 3, 80, t, actual.data()}));
      ASSERT_OK(kv_pack_reference({k.data(), v.data(), rows, 250, 241, 3, 80, t, expected.data()}));
      EXPECT_EQ(actual, expected);
    }
  }
}

TEST(KvPackTest, PackedRowsPlacedAreTheRowsRotated) {
  const RopeTable table = table_of(64);
  const auto k = random_floats(10 * 128, 1), v = random_floats(10 * 128, 2);
  std::vector<std::byte> record(10 * 2 * 128 * 4);
  ASSERT_OK(kv_pack({k.data(), v.data(), 10, 128, 128, 2, 64, DType::kF32, record.data()}));
  PagedKv kv(10, 2, 64, DType::kF32, TestLayout::kTokenMajor, 1);
  std::vector<std::int32_t> positions(10);
  for (int r = 0; r < 10; ++r) positions[r] = 50 + r;
  ASSERT_OK(kv_place(table, {{record.data(), 10, DType::kF32, 2 * 10 * 256, 10 * 256, 256},
                             kv.mutable_view(),
                             positions.data(),
                             nullptr,
                             0}));
  std::vector<float> rotated_k(k.size());
  ASSERT_OK(rope_rotate(table, {k.data(), rotated_k.data(), positions.data(), 10, 2, 128, 128}));
  for (int r = 0; r < 10; ++r) {
    for (int h = 0; h < 2; ++h) {
      EXPECT_EQ(std::memcmp(kv.row(r, 0, h), rotated_k.data() + r * 128 + h * 64, 256), 0);
      EXPECT_EQ(std::memcmp(kv.row(r, 1, h), v.data() + r * 128 + h * 64, 256), 0);
    }
  }
}

TEST(BlockSummaryTest, MatchesTheReference) {
  for (const std::int32_t dim : {8, 64, 80, 128}) {
    const RopeTable table = table_of(dim);
    for (const DType t : kDtypes) {
      for (const std::int64_t rows : {1, 7, 64}) {
        const RawBlock raw(rows, 3, dim, t, 9);
        std::vector<float> actual[3], expected[3];
        for (int i = 0; i < 3; ++i) {
          actual[i].resize(3 * dim);
          expected[i].resize(3 * dim);
        }
        ASSERT_OK(block_summary(table, {raw.view(), 3, dim, 128, actual[0].data(), actual[1].data(),
                                        actual[2].data()}));
        ASSERT_OK(block_summary_reference(table, {raw.view(), 3, dim, 128, expected[0].data(),
                                                  expected[1].data(), expected[2].data()}));
        for (int i = 0; i < 3; ++i) expect_close(actual[i], expected[i], 3e-6, 1e-6, "summary");
      }
    }
  }
  const RawBlock none(0, 1, 64, DType::kF32, 1);
  EXPECT_EQ(block_summary(table_of(64), {none.view(), 1, 64, 0, nullptr, nullptr, nullptr}).field(),
            "raw.num_rows");
  const RawBlock late(64, 1, 64, DType::kF32, 1);
  EXPECT_EQ(
      block_summary(table_of(64, 100), {late.view(), 1, 64, 64, nullptr, nullptr, nullptr}).field(),
      "first_position");
}

TEST(RowMeanTest, MatchesDoublePrecision) {
  for (const std::int64_t rows : {1, 7, 100}) {
    const auto x = random_floats(rows * 140, 3);
    std::vector<float> actual(133), expected(133);
    row_mean(x.data(), rows, 133, 140, actual.data());
    for (int c = 0; c < 133; ++c) {
      double sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) sum += x[r * 140 + c];
      expected[c] = static_cast<float>(sum / static_cast<double>(rows));
    }
    expect_close(actual, expected, 1e-6, 1e-6, "mean");
  }
}

}  // namespace
}  // namespace quire
