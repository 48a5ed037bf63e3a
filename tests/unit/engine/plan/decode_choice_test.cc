// cache.decode `auto` becomes the right retriever, with a reason.
#include "engine/plan/decode_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

class DecodeChoiceTest : public ::testing::Test {
 protected:
  DecodeChoiceTest() {
    input_.rows = 65536;
    input_.names = names_;
    // A 1B model in bf16 on a machine with 50 GB/s.
    input_.device = {.cache_bytes = std::int64_t{1} << 30,
                     .requests = 2,
                     .is_host = true,
                     .read_bytes_per_ms = 50e6,
                     .copy_bytes_per_ms = 20e6,
                     .weight_bytes = 2'400'000'000,
                     .row_bytes = 2048,
                     .num_layers = 16};
  }
  DecodeChoice choose() const { return choose_decode(input_); }
  void expect(const std::string& name, std::string_view reason) const {
    const DecodeChoice choice = choose();
    EXPECT_EQ(choice.decode, name);
    EXPECT_NE(choice.reason.find(reason), std::string::npos) << choice.reason;
  }
  std::vector<std::string> names_ = {"dense", "freekv", "quest", "specontext"};
  DecodeInput input_;
};

TEST_F(DecodeChoiceTest, ALongContextGoesToFreeKvOrToTheHead) {
  expect("freekv", "65536 tokens: a step over all of them 90.9 ms");
  input_.head = true;
  expect("specontext", "retrieval head");
}

TEST_F(DecodeChoiceTest, WhatFitsTheBudgetIsDense) {
  input_.rows = input_.budget;
  expect("dense", "2048 tokens are no more than the budget of 2048");
  input_.rows = 8192;
  expect("dense", "8192 tokens: a step");
  input_.device.weight_bytes = 100'000'000;
  EXPECT_EQ(choose().decode, "freekv") << "where weights are small, rows count for more";
}

TEST_F(DecodeChoiceTest, AReasonToLeaveNothingOutGoesBeforeAll) {
  input_.dense_because = "it was promised";
  input_.head = true;
  expect("dense", "it was promised");
}

TEST_F(DecodeChoiceTest, WithoutMeasuredSpeedsNothingIsLeftOut) {
  input_.device.read_bytes_per_ms = 0;
  expect("dense", "not known");
}

TEST_F(DecodeChoiceTest, ADeviceOfItsOwnHoldsOnlyWhatFits) {
  input_.device.is_host = false;
  input_.rows = 16500;  // a dense step would take a fifth longer, which is worth it if it fits
  expect("freekv", "do not fit the device");
  input_.device.cache_bytes = std::int64_t{4} << 30;
  EXPECT_EQ(choose().decode, "dense");
  input_.rows = 65536;
  input_.device.cache_bytes = std::int64_t{80} << 30;
  input_.head = true;
  expect("dense", "65536 tokens fit the device");
}

TEST_F(DecodeChoiceTest, ASlowBusLeavesRowsWhereTheyAre) {
  names_.push_back("ctkvr");
  input_.names = names_;
  EXPECT_EQ(choose().decode, "freekv") << "no bus to cross";
  input_.device.is_host = false;
  EXPECT_EQ(choose().decode, "freekv");
  input_.device.copy_bytes_per_ms = 0.5e6;
  expect("ctkvr", "bringing pages would take 26.8 ms");
  names_.pop_back();
  input_.names = names_;
  EXPECT_EQ(choose().decode, "freekv") << "this build has no ctkvr";
}

TEST_F(DecodeChoiceTest, WhatCannotWorkWithTheBudgetIsNotTaken) {
  input_.budget = 1000;
  const auto with = [&](std::vector<std::string> names, const std::string& name,
                        std::string_view reason) {
    names_ = std::move(names);
    input_.names = names_;
    expect(name, reason);
  };
  with({"dense", "ctkvr"}, "ctkvr", "freekv cannot work with 1000");
  with({"dense", "quest"}, "dense", "no retriever can work with a budget of 1000");
  input_.head = true;
  with({"dense", "ctkvr", "specontext"}, "specontext", "chooses once");
  with({"dense"}, "dense", "no retriever");
}

}  // namespace
}  // namespace quire
