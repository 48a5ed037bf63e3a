// Stored queries of a context's last tokens: they read back, their size is limited, and damaged
// bytes are refused.
#include "engine/record/tail_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace quire::testing {
namespace {

constexpr TailRecordShape kShape{3, 4, 8, 5, 70};
constexpr std::size_t kWidth = 32;

std::vector<float> random_query(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(kWidth);
  for (float& x : out) x = normal(random);
  return out;
}

std::vector<std::byte> full_record() {
  auto record = begin_tail_record(kShape);
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    for (std::int64_t row = 0; row < 5; ++row)
      put_tail_query(record, kShape, layer, row,
                     random_query(static_cast<std::uint32_t>(layer * 10 + row)).data());
  }
  return record;
}

TEST(TailRecord, QueriesComeBackToAHundredthOfTheirLargestChannel) {
  const auto record = full_record();
  const auto view = TailRecordView::parse(record);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->shape(), kShape);
  EXPECT_EQ(view->first_token(), 65);
  std::vector<float> got(kWidth);
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    for (std::int64_t row = 0; row < 5; ++row) {
      const auto expected = random_query(static_cast<std::uint32_t>(layer * 10 + row));
      view->query(layer, row, got);
      for (std::size_t h = 0; h < 4; ++h) {
        float largest = 0;
        for (std::size_t c = 0; c < 8; ++c)
          largest = std::max(largest, std::abs(expected[h * 8 + c]));
        for (std::size_t c = 0; c < 8; ++c)
          EXPECT_NEAR(got[h * 8 + c], expected[h * 8 + c], largest / 254 * 1.001)
              << "layer " << layer << " row " << row;
      }
    }
  }
}

TEST(TailRecord, WhatIsNoNumberComesAsZero) {
  auto record = begin_tail_record(kShape);
  std::vector<float> query(kWidth, 1.0f), got(kWidth);
  query[0] = std::numeric_limits<float>::quiet_NaN();
  query[9] = std::numeric_limits<float>::infinity();
  put_tail_query(record, kShape, 2, 4, query.data());
  const auto view = TailRecordView::parse(record);
  ASSERT_TRUE(view.ok());
  view->query(2, 4, got);
  for (std::size_t i = 0; i < kWidth; ++i)
    EXPECT_FLOAT_EQ(got[i], i == 0 || i == 9 ? 0.0f : 1.0f) << i;
  view->query(0, 0, got);
  EXPECT_EQ(got, std::vector<float>(kWidth, 0.0f)) << "never put";
}

TEST(TailRecord, RowsKeepToTheirShareOfTheKv) {
  // Llama-3.2-1B in bf16 has 32 KiB of KV per token.
  TailRecordShape shape{16, 32, 64, 0, 0};
  for (const std::int64_t tokens : {1, 40, 60, 512, 4000, 100000}) {
    shape.num_tokens = tokens;
    shape.num_rows = tail_rows(shape, tokens * 32768);
    EXPECT_LE(shape.num_rows, std::min(tokens, kMostTailRows));
    if (shape.num_rows == 0) continue;
    EXPECT_LE(static_cast<double>(begin_tail_record(shape).size()),
              0.02 * static_cast<double>(tokens) * 32768);
  }
  shape.num_tokens = 512;
  EXPECT_EQ(tail_rows(shape, 512 * 32768), 9);
  shape.num_tokens = 40;
  EXPECT_EQ(tail_rows(shape, 40 * 32768), 0) << "not even one row";
  shape.num_tokens = 100000;
  EXPECT_EQ(tail_rows(shape, std::int64_t{100000} * 32768), kMostTailRows);
}

TEST(TailRecord, WhatIsDamagedIsSaid) {
  const auto record = full_record();
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{32}, record.size() - 1}) {
    const auto cut = TailRecordView::parse(std::span(record).first(n));
    EXPECT_EQ(cut.status().code(), Code::kCorruption) << n;
  }
  const auto message = [&](std::size_t at, unsigned char value) {
    auto changed = record;
    changed[at] = std::byte{value};
    return TailRecordView::parse(changed).status().message();
  };
  EXPECT_NE(message(0, 0).find("magic"), std::string::npos);
  EXPECT_NE(message(4, 9).find("version 9"), std::string::npos);
  EXPECT_NE(message(8, 0).find("0 layers"), std::string::npos);
  EXPECT_NE(message(17, 200).find("heads of"), std::string::npos);
  EXPECT_NE(message(20, 0).find("holds 0 of 70"), std::string::npos);
  EXPECT_NE(message(20, 71).find("holds 71 of 70"), std::string::npos);
  EXPECT_NE(message(20, 6).find("its header says"), std::string::npos);
}

}  // namespace
}  // namespace quire::testing
