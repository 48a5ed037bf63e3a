// Records of head keys are read back as written, and never read past their end.
#include "engine/record/head_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

HeadRecordShape shape(std::int64_t tokens) {
  HeadRecordShape s{2, 8, tokens, {}};
  for (std::size_t i = 0; i < s.head_digest.size(); ++i)
    s.head_digest[i] = static_cast<std::uint8_t>(i * 3);
  return s;
}

TEST(HeadRecord, ComesBackAsF16) {
  const auto keys = random_floats(5 * 16, 3);
  const auto record = build_head_record(shape(5), keys);
  const auto view = HeadRecordView::parse(record);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->shape(), shape(5));
  std::vector<float> got;
  view->keys(0, 2, got);
  view->keys(2, 3, got);
  ASSERT_EQ(got.size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    EXPECT_EQ(got[i], f16_to_f32(f32_to_f16(keys[i]))) << i;
}

TEST(HeadRecord, NoTokensAreARecordToo) {
  const auto record = build_head_record(shape(0), {});
  ASSERT_TRUE(HeadRecordView::parse(record).ok());
}

TEST(HeadRecord, ValuesThatAreNoNumbersComeAsZero) {
  std::vector<float> keys(16, 1.0f);
  keys[3] = std::numeric_limits<float>::quiet_NaN();
  keys[4] = 1e30f;  // becomes infinite in f16
  const auto record = build_head_record(shape(1), keys);
  std::vector<float> got;
  HeadRecordView::parse(record)->keys(0, 1, got);
  EXPECT_EQ(got[3], 0.0f);
  EXPECT_EQ(got[4], 0.0f);
  EXPECT_EQ(got[5], 1.0f);
}

TEST(HeadRecord, WhatIsDamagedIsSaid) {
  const auto record = build_head_record(shape(3), random_floats(3 * 16, 1));
  for (std::size_t n = 0; n < record.size(); ++n) {
    const auto cut = HeadRecordView::parse(std::span(record).first(n));
    ASSERT_EQ(cut.status().code(), Code::kCorruption) << n << " bytes";
  }
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    auto changed = record;
    std::memcpy(changed.data() + at, &value, bytes);
    return HeadRecordView::parse(changed).status().message();
  };
  EXPECT_NE(with(0, 7, 4).find("magic"), std::string::npos);
  EXPECT_NE(with(4, 9, 2).find("version 9"), std::string::npos);
  EXPECT_NE(with(8, 0, 4).find("0 heads"), std::string::npos);
  EXPECT_NE(with(12, 1u << 20, 4).find("heads"), std::string::npos);
  EXPECT_NE(with(16, 4, 8).find("4 tokens"), std::string::npos);
  EXPECT_NE(with(16, std::uint64_t{1} << 62, 8).find("tokens"), std::string::npos);
}

}  // namespace
}  // namespace quire
