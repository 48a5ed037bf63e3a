#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "engine/prefill/context_kv.h"
#include "tests/support/harness/ingest_harness.h"

namespace quire::testing {
namespace {

using Ids = std::vector<std::int32_t>;

Ids slice(const Ids& ids, std::size_t begin, std::size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin),
          ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

class LeftContextTest : public ::testing::Test {
 protected:
  struct Run {
    std::shared_ptr<const ContextKv> kv;
    std::unique_ptr<PrefilledRows> rows;
    int steps = 0;
  };
  Run run(const Ids& ids, const Ids& left, std::unique_ptr<PrefilledRows> rows = nullptr) {
    ContextPrefill prefill(harness_.core, {ids, left}, PrefillRecords::kRequested, std::move(rows));
    Run out;
    for (; !prefill.done(); ++out.steps) {
      const Status status = prefill.step();
      EXPECT_TRUE(status.ok()) << status.to_string();
      if (!status.ok()) return out;
    }
    out.kv = prefill.take();
    out.rows = prefill.take_rows();
    return out;
  }
  /// Expects the values of blocks `first_block`.. of `whole` to be those of `part`, bit for bit.
  static void expect_blocks(const ContextKv& part, const ContextKv& whole,
                            std::int32_t first_block) {
    for (std::int32_t b = 0; b < part.layout.num_blocks(); ++b) {
      for (std::int32_t g = 0; g < part.layout.num_groups(); ++g) {
        const auto have = part.value(b, g), want = whole.value(first_block + b, g);
        ASSERT_EQ(have.size(), want.size()) << b;
        EXPECT_EQ(std::memcmp(have.data(), want.data(), have.size()), 0) << "block " << b;
      }
    }
  }
  static void expect_equal(const ContextKv& a, const ContextKv& b) {
    expect_blocks(a, b, 0);
    EXPECT_EQ(a.means, b.means);
    EXPECT_EQ(a.local_query, b.local_query);
    EXPECT_EQ(a.records, b.records);
    ASSERT_EQ(a.stats.size(), b.stats.size());
    for (std::size_t i = 0; i < a.stats.size(); ++i) {
      EXPECT_EQ(a.stats[i].sustained, b.stats[i].sustained) << i;
      EXPECT_EQ(a.stats[i].representative, b.stats[i].representative) << i;
    }
  }

  Ingest harness_{nullptr, 3, DType::kF16};
  Ids text_ = Ingest::tokens(176);  // of 3 chunks: 64, 48 and 64
};

TEST_F(LeftContextTest, KvOfAChunkIsItsPartOfTheWholeText) {
  const Run whole = run(text_, {});
  expect_blocks(*run(slice(text_, 64, 112), slice(text_, 0, 64)).kv, *whole.kv, 4);
  expect_blocks(*run(slice(text_, 112, 176), slice(text_, 0, 112)).kv, *whole.kv, 7);
  // Without what is before it, it is other KV; else this test could not fail.
  const Run alone = run(slice(text_, 64, 112), {});
  const auto have = alone.kv->value(0, 0), want = whole.kv->value(4, 0);
  EXPECT_NE(std::memcmp(have.data(), want.data(), have.size()), 0);
}

TEST_F(LeftContextTest, GoingOnFromRowsChangesNoBitAndSavesTheirSteps) {
  const Ids left = slice(text_, 0, 112), last = slice(text_, 112, 176);
  const Run anew = run(last, left);
  Run first = run(slice(text_, 0, 64), {});
  EXPECT_EQ(first.rows->ids, slice(text_, 0, 64));
  Run second = run(slice(text_, 64, 112), slice(text_, 0, 64), std::move(first.rows));
  EXPECT_EQ(second.rows->ids, left);
  const Run third = run(last, left, std::move(second.rows));
  expect_equal(*third.kv, *anew.kv);
  EXPECT_LT(third.steps, anew.steps);
  EXPECT_EQ(third.steps, 2);  // chunks of 32 tokens
}

TEST_F(LeftContextTest, RowsOfWhichAPartFitsOrNoneGiveTheSame) {
  const Ids left = slice(text_, 0, 112), last = slice(text_, 112, 176);
  const Run anew = run(last, left);
  Ids other = slice(text_, 0, 128);
  other[40] += 1;
  expect_equal(*run(last, left, run(other, {}).rows).kv, *anew.kv);
  other[0] += 1;
  expect_equal(*run(last, left, run(other, {}).rows).kv, *anew.kv);
  // Rows that hold the context itself, too.
  expect_equal(*run(last, left, run(text_, {}).rows).kv, *anew.kv);
  // Rows before a context without left context are no use, and no harm.
  expect_equal(*run(last, {}, run(text_, {}).rows).kv, *run(last, {}).kv);
}

TEST_F(LeftContextTest, RecordsDoNotDependOnChunks) {
  const Ids left = slice(text_, 0, 50), own = slice(text_, 50, 170);
  const Run small = run(own, left);
  harness_.core.chunk_tokens = 512;
  expect_equal(*run(own, left).kv, *small.kv);
}

}  // namespace
}  // namespace quire::testing
