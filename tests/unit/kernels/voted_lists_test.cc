#include "kernels/choice/voted_lists.h"

#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

/// Groups of queries over a cache whose positions are not in the order of its rows.
struct Case {
  Case(std::int64_t rows, std::int32_t kv_heads, std::int32_t group, std::int32_t dim,
       std::int64_t num_groups, DType dtype)
      : heads(kv_heads * group),
        groups(num_groups),
        kv(rows, kv_heads, dim, dtype, TestLayout::kHeadMajor, 61),
        q(random_floats(num_groups * heads * dim, 62)),
        lse(random_floats(num_groups * heads, 63, 3.0f)) {
    for (std::size_t r = 0; r + 3 < kv.positions().size(); r += 4)
      std::swap(kv.positions()[r], kv.positions()[r + 2]);
    for (std::int64_t i = 0; i < num_groups; ++i)
      limits.push_back(static_cast<std::int32_t>(i == 0 ? -1 : i * rows / groups));
  }
  /// Lists of rows from `first` on, with words of a sentinel that must be overwritten.
  VotedListsArgs args(std::vector<std::uint64_t>& lists, std::int64_t first, std::int64_t k) const {
    const KvView view = kv.view(false);
    const std::int64_t words = (view.num_rows + 63) / 64;
    lists.assign(static_cast<std::size_t>(view.num_kv_heads * (groups + 1) * words), ~0ull);
    return {.q = q.data(),
            .lse = lse.data(),
            .limits = limits.data(),
            .num_groups = groups,
            .num_heads = heads,
            .scale = 0.3f,
            .kv = view,
            .first_row = first,
            .num_rows = view.num_rows - first,
            .k = k,
            .lists = lists.data(),
            .ld_lists = groups + 1,
            .list_words = words};
  }
  std::int32_t heads;
  std::int64_t groups;
  PagedKv kv;
  std::vector<float> q, lse;
  std::vector<std::int32_t> limits;
};

TEST(VotedListsTest, AgreeWithTheReferenceWhateverTheThreads) {
  for (const Case& c : {Case(1, 1, 1, 8, 1, DType::kF32), Case(300, 2, 3, 24, 40, DType::kF32),
                        Case(130, 3, 2, 64, 33, DType::kBF16)}) {
    for (const std::int64_t first : {std::int64_t{0}, c.kv.view(false).num_rows / 2}) {
      for (const std::int64_t k : {0, 1, 7, 1000}) {
        std::vector<std::uint64_t> expected, lists, one;
        ASSERT_OK(voted_lists_reference(c.args(expected, first, k)));
        ASSERT_OK(voted_lists(c.args(lists, first, k)));
        EXPECT_EQ(lists, expected) << "first " << first << " k " << k;
        set_num_threads(1);
        const Status alone = voted_lists(c.args(one, first, k));
        set_num_threads(0);
        ASSERT_OK(alone);
        EXPECT_EQ(one, lists);
      }
    }
  }
}

TEST(VotedListsTest, AListHoldsWhatIsVisibleAndNothingElse) {
  const Case c(100, 1, 2, 16, 4, DType::kF32);
  std::vector<std::uint64_t> lists;
  ASSERT_OK(voted_lists(c.args(lists, 10, 1000)));
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t row = 0; row < 100; ++row) {
      const bool marked = (lists[static_cast<std::size_t>(i * 2 + row / 64)] >> (row % 64) & 1) !=
                          0;
      EXPECT_EQ(marked, row >= 10 && c.kv.view(false).positions[row] <=
                                         c.limits[static_cast<std::size_t>(i)])
          << i << " " << row;
    }
  }
  EXPECT_EQ(lists[8], ~0ull) << "the next list of the KV head is not touched";
}

TEST(VotedListsTest, RefusesWhatDoesNotFit) {
  const Case c(40, 2, 2, 16, 3, DType::kF32);
  std::vector<std::uint64_t> lists;
  const auto field = [&](auto&& change) {
    VotedListsArgs a = c.args(lists, 0, 5);
    change(a);
    return voted_lists(a).field();
  };
  EXPECT_EQ(field([](auto& a) { a.num_heads = 3; }), "num_heads");
  EXPECT_EQ(field([](auto& a) { a.num_rows = 41; }), "rows");
  EXPECT_EQ(field([](auto& a) { a.list_words = 2; }), "list_words");
  EXPECT_EQ(field([](auto& a) { a.ld_lists = 2; }), "ld_lists");
  EXPECT_EQ(field([](auto& a) { a.k = -1; }), "k");
  EXPECT_EQ(field([](auto& a) { a.q = nullptr; }), "q");
}

}  // namespace
}  // namespace quire
