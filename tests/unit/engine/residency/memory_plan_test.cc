#include "engine/residency/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// Returns a request with the shape of Llama-3.1-8B at a window of 32K.
MemoryRequest large() {
  MemoryRequest w;
  w.model.num_layers = 32;
  w.model.hidden_size = 4096;
  w.model.intermediate_size = 14336;
  w.model.num_heads = 32;
  w.model.num_kv_heads = 8;
  w.model.head_dim = 128;
  w.model.vocab_size = 128256;
  w.window = 32768;
  w.kv_row_bytes = 2 * 8 * 128 * 2;
  return w;
}

MemoryPlan plan(std::int64_t left, const MemoryRequest& wishes) {
  const auto got = plan_memory(left, wishes);
  EXPECT_TRUE(got.ok()) << got.status().to_string();
  return got.ok() ? *got : MemoryPlan{};
}

TEST(MemoryPlanTest, LargerDevicesGetLargerPiecesStepsAndCaches) {
  MemoryPlan before{};
  for (const std::int64_t gib : {2, 4, 8, 20, 60, 120}) {
    const MemoryPlan p = plan(gib * kGiB, large());
    EXPECT_GE(p.chunk_tokens, before.chunk_tokens) << gib;
    EXPECT_GE(p.decode_rows, before.decode_rows) << gib;
    EXPECT_GT(p.cache_bytes, before.cache_bytes) << gib;
    EXPECT_EQ(p.cache_bytes + p.compute_bytes + p.means_bytes + p.retrieved_bytes, p.left_bytes)
        << gib;
    EXPECT_EQ(p.compute_bytes, compute_bytes(large(), p.chunk_tokens, p.decode_rows)) << gib;
    EXPECT_EQ(p.chunk_tokens % 64, 0) << gib;
    before = p;
  }
  EXPECT_EQ(before.chunk_tokens, 4096);
  EXPECT_EQ(before.decode_rows, 64);
  EXPECT_EQ(before.means_bytes, kGiB);
}

/// The first of several devices also has room for what the others send.
TEST(MemoryPlanTest, SeveralDevicesNeedMoreToCompute) {
  MemoryRequest several = large();
  several.devices = 2;
  const std::int64_t more = compute_bytes(several, 2048, 8) - compute_bytes(large(), 2048, 8);
  // The outputs of 72 rows of the head are more than those of 2,048 rows of QKV.
  EXPECT_EQ(more, (2048 * 14336 + std::max(72 * 128256, 2048 * 6144)) * 4);
  EXPECT_LT(plan(60 * kGiB, several).cache_bytes, plan(60 * kGiB, large()).cache_bytes);
}

TEST(MemoryPlanTest, CachesThatAreAskedForMakePiecesAndStepsSmaller) {
  MemoryRequest asked = large();
  const MemoryPlan free = plan(60 * kGiB, asked);
  asked.cache_bytes = 60 * kGiB - compute_bytes(asked, 256, 2);
  const MemoryPlan tight = plan(60 * kGiB, asked);
  EXPECT_EQ(tight.cache_bytes, asked.cache_bytes);
  EXPECT_EQ(tight.chunk_tokens, 256);
  EXPECT_GE(tight.decode_rows, 2);
  EXPECT_LT(tight.decode_rows, free.decode_rows);
  EXPECT_LE(tight.cache_bytes + tight.compute_bytes + tight.means_bytes + tight.retrieved_bytes,
            tight.left_bytes + 1)
      << "a limit of nothing is one byte";
}

TEST(MemoryPlanTest, WhatRetrieversKeepIsAQuarterOrWhatIsAskedFor) {
  MemoryRequest asked = large();
  EXPECT_EQ(plan(60 * kGiB, asked).retrieved_bytes, 15 * kGiB);
  asked.retrieved_bytes = 0;
  const MemoryPlan unlimited = plan(60 * kGiB, asked);
  EXPECT_EQ(unlimited.retrieved_bytes, 0);
  EXPECT_EQ(unlimited.cache_bytes,
            unlimited.left_bytes - unlimited.compute_bytes - unlimited.means_bytes);
  asked.retrieved_bytes = 3 * kGiB;
  EXPECT_EQ(plan(60 * kGiB, asked).retrieved_bytes, 3 * kGiB);
  asked.retrieved_bytes = 40 * kGiB;
  const auto refused = plan_memory(60 * kGiB, asked);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.status().field(), "model.device_cache_bytes");
}

TEST(MemoryPlanTest, APieceThatIsAskedForIsTakenAsItIs) {
  MemoryRequest asked = large();
  asked.chunk_tokens = 192;
  EXPECT_EQ(plan(60 * kGiB, asked).chunk_tokens, 192);
}

TEST(MemoryPlanTest, SumsOfHooksGrowWithTheWindow) {
  MemoryRequest wide = large();
  wide.window += 1024;
  const std::int64_t statistics = std::int64_t{1024} * 32 * 3 * 8,
                     scores = std::int64_t{1024} * 32 * 8 * 4;
  EXPECT_GE(compute_bytes(wide, 64, 1) - compute_bytes(large(), 64, 1), statistics + scores);
}

TEST(MemoryPlanTest, WhatDoesNotFitIsRefusedWithTheSettingToChange) {
  const auto small = plan_memory(kGiB / 8, large());
  EXPECT_EQ(small.code(), Code::kResourceExhausted);
  EXPECT_EQ(small.status().field(), "model.working_cache_bytes");
  MemoryRequest asked = large();
  asked.cache_bytes = 60 * kGiB;
  const auto full = plan_memory(60 * kGiB, asked);
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_NE(full.status().message().find("lower it"), std::string::npos)
      << full.status().to_string();
}

}  // namespace
}  // namespace quire
