#include "engine/calibrate/head_calibration.h"

#include <gtest/gtest.h>

namespace quire::testing {
namespace {

SelectionHeads some_heads() {
  SelectionHeads heads;
  heads.heads = {{18, 6}, {0, 0}, {15, 6}};
  return heads;
}

TEST(SelectionHeadsRecord, ReadsBack) {
  SelectionHeads heads = some_heads();
  EXPECT_EQ(encode_selection_heads(heads), "1 words 18.6 0.0 15.6");
  EXPECT_EQ(*decode_selection_heads(encode_selection_heads(heads), 30, 9), heads);
  heads.asks = SelectionHeads::Asks::kLastToken;
  EXPECT_EQ(*decode_selection_heads(encode_selection_heads(heads), 30, 9), heads);
}

TEST(SelectionHeadsRecord, AnythingElseIsRefused) {
  for (const std::string text :
       {"", "1", "1 words", "2 words 1.1", "1 words 30.0", "1 words 0.9", "1 words -1.0",
        "1 words 1.1 1.1", "1 words 1", "1 words 1.", "1 words 1.1x", "1 words  1.1",
        "1 words 1.1 ", "1 last", "1 words 99999999999.1"}) {
    const auto heads = decode_selection_heads(text, 30, 9);
    EXPECT_EQ(heads.status().code(), Code::kCorruption) << text;
    EXPECT_FALSE(heads.status().message().empty());
  }
}

}  // namespace
}  // namespace quire::testing
