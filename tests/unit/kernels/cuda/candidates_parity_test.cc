// Reference, CPU and CUDA (emulated) agree on the values of candidates for KV heads and on the rows
// of the chosen ones.
#include "kernels/cuda/choice/candidates.cuh"

#include <random>
#include <string>

#include "kernels/choice/topk.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

constexpr CandidateVote kVotes[] = {CandidateVote::kMeanSoftmax, CandidateVote::kMaxSoftmax,
                                    CandidateVote::kMaxLogSoftmax, CandidateVote::kMaxScore,
                                    CandidateVote::kMeanScore};

TEST(CudaParity, KeyProductsOfAllHeads) {
  struct Shape {
    std::int64_t rows;
    std::int32_t kv_heads, group, dim;
    DType dtype;
    TestLayout layout;
  };
  for (const Shape& s : {Shape{1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
                         Shape{35, 2, 3, 24, DType::kF16, TestLayout::kTokenMajor},
                         Shape{70, 1, 16, 128, DType::kBF16, TestLayout::kHeadMajor},
                         Shape{33, 3, 2, 256, DType::kF32, TestLayout::kTokenMajor},
                         Shape{41, 2, 3, 80, DType::kF8, TestLayout::kHeadPages}}) {
    PagedKv kv(s.rows, s.kv_heads, s.dim, s.dtype, s.layout, 7);
    const std::int32_t heads = s.kv_heads * s.group;
    const auto q = random_floats(heads * s.dim, 9);
    const std::int64_t first = s.rows / 3, n = s.rows - first, ld = n + 3;
    std::vector<float> expected(static_cast<std::size_t>(heads * ld), -1.0f), cpu(expected);
    ASSERT_OK(key_products_reference(
        {q.data(), heads, 0.3f, kv.view(true), first, n, expected.data(), ld}));
    ASSERT_OK(key_products({q.data(), heads, 0.3f, kv.view(true), first, n, cpu.data(), ld}));
    TestDevice device;
    auto launcher = device.launcher();
    float* scores = device.output(std::vector<float>(expected.size(), -1.0f), "scores");
    const KeyProductsArgs args{
        device.upload(q, "q"), heads, 0.3f, device.upload(kv.view(true)), first, n, scores, ld};
    ASSERT_OK(launch_key_products(launcher, args));
    expect_close(cpu, expected, 1e-4, 1e-5, "cpu");
    expect_close(device.download(scores, heads * ld), expected, 1e-4, 1e-5, "cuda");
    KeyProductsArgs bad = args;
    bad.first_row = first + 1;
    EXPECT_EQ(launch_key_products(launcher, bad).field(), "first_row");
    bad = args;
    bad.num_heads = 0;
    EXPECT_EQ(launch_key_products(launcher, bad).field(), "num_heads");
    bad = args;
    bad.ld_scores = n - 1;
    EXPECT_EQ(launch_key_products(launcher, bad).field(), "ld_scores");
  }
}

TEST(CudaParity, VotesOfTheHeadsOfAGroup) {
  struct Shape {
    std::int32_t kv_heads, group;
    std::int64_t n;
  };
  for (const Shape& s : {Shape{1, 1, 1}, Shape{2, 3, 37}, Shape{3, 1, 513}, Shape{1, 7, 1029}}) {
    for (const CandidateVote vote : kVotes) {
      SCOPED_TRACE(std::to_string(s.n) + " candidates, vote " +
                   std::to_string(static_cast<int>(vote)));
      const std::int64_t ld = s.n + 2;
      std::vector<float> scores = random_floats(s.kv_heads * s.group * ld, 5);
      for (float& x : scores) x *= 6;
      std::vector<float> again = scores, expected(static_cast<std::size_t>(s.kv_heads * s.n)),
                         cpu(expected);
      ASSERT_OK(candidate_votes_reference(
          {scores.data(), s.n, ld, s.kv_heads, s.group, vote, expected.data()}));
      ASSERT_OK(candidate_votes({again.data(), s.n, ld, s.kv_heads, s.group, vote, cpu.data()}));
      TestDevice device;
      auto launcher = device.launcher();
      float* votes = device.output(s.kv_heads * s.n, "votes");
      ASSERT_OK(launch_candidate_votes(
          launcher, {device.output(scores, "scores"), s.n, ld, s.kv_heads, s.group, vote, votes}));
      expect_close(cpu, expected, 2e-5, 2e-5, "cpu");
      expect_close(device.download(votes, s.kv_heads * s.n), expected, 2e-5, 2e-5, "cuda");
      EXPECT_EQ(launch_candidate_votes(launcher,
                                       {nullptr, s.n, s.n - 1, s.kv_heads, s.group, vote, votes})
                    .field(),
                "ld_scores");
    }
  }
}

/// A head whose candidates are all masked, beside one that has scores.
TEST(CudaParity, AHeadWithoutAnyScoreVotesForNothing) {
  constexpr std::int64_t kN = 40;
  for (const CandidateVote vote : kVotes) {
    SCOPED_TRACE("vote " + std::to_string(static_cast<int>(vote)));
    std::vector<float> scores(3 * kN, -INFINITY);  // KV head 0: two masked, KV head 1 below
    std::copy_n(random_floats(kN, 9).begin(), kN, scores.begin() + kN);
    scores[kN + 3] = -INFINITY;
    scores.insert(scores.end(), kN, -INFINITY);
    std::vector<float> again = scores, expected(2 * kN), cpu(expected);
    ASSERT_OK(candidate_votes_reference({scores.data(), kN, kN, 2, 2, vote, expected.data()}));
    ASSERT_OK(candidate_votes({again.data(), kN, kN, 2, 2, vote, cpu.data()}));
    TestDevice device;
    auto launcher = device.launcher();
    float* votes = device.output(2 * kN, "votes");
    ASSERT_OK(launch_candidate_votes(launcher,
                                     {device.output(scores, "scores"), kN, kN, 2, 2, vote, votes}));
    const std::vector<float> cuda = device.download(votes, 2 * kN);
    for (const float x : cuda) EXPECT_FALSE(std::isnan(x));
    for (const float x : expected) EXPECT_FALSE(std::isnan(x));
    expect_close(cpu, expected, 2e-5, 2e-5, "cpu");
    expect_close(cuda, expected, 2e-5, 2e-5, "cuda");
  }
}

TEST(CudaParity, RowsThatAnyChosenListNames) {
  struct Shape {
    std::int32_t kv_heads;
    std::int64_t lists, words, chosen;
  };
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{3, 7, 5, 0}, Shape{2, 40, 129, 16},
                         Shape{5, 3, 1, 3}, Shape{1, 9, 300, 2}}) {
    SCOPED_TRACE(std::to_string(s.lists) + " lists of " + std::to_string(s.words) + " words");
    std::mt19937_64 random(static_cast<std::uint64_t>(s.words));
    std::vector<std::uint64_t> lists(static_cast<std::size_t>(s.kv_heads * s.lists * s.words));
    for (std::uint64_t& word : lists) word = random() & random() & random();
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(s.kv_heads * s.chosen));
    for (std::int32_t& list : chosen)
      list = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(s.lists));
    const std::vector<std::uint64_t> before(static_cast<std::size_t>(s.kv_heads * s.words),
                                            0x5555555555555555u);
    std::vector<std::uint64_t> expected = before, cpu = before;
    ASSERT_OK(list_union_reference(
        {lists.data(), chosen.data(), s.lists, s.words, s.chosen, s.kv_heads, expected.data()}));
    ASSERT_OK(list_union(
        {lists.data(), chosen.data(), s.lists, s.words, s.chosen, s.kv_heads, cpu.data()}));
    EXPECT_EQ(cpu, expected);
    TestDevice device;
    auto launcher = device.launcher();
    std::uint64_t* const rows = device.output(before, "rows");
    const ListUnionArgs args{device.upload(lists, "lists"),
                             device.upload(chosen, "chosen"),
                             s.lists,
                             s.words,
                             s.chosen,
                             s.kv_heads,
                             rows};
    ASSERT_OK(launch_list_union(launcher, args));
    EXPECT_EQ(device.download(rows, s.kv_heads * s.words), expected);
    ListUnionArgs bad = args;
    bad.num_kv_heads = 0;
    EXPECT_EQ(launch_list_union(launcher, bad).field(), "num_kv_heads");
    bad = args;
    bad.num_chosen = 1;
    bad.chosen = nullptr;
    EXPECT_EQ(launch_list_union(launcher, bad).field(), "chosen");
    const std::int32_t none = static_cast<std::int32_t>(s.lists);
    EXPECT_EQ(list_union({lists.data(), &none, s.lists, s.words, 1, 1, cpu.data()}).field(),
              "chosen");
  }
}

struct RowsCase {
  std::int64_t units, first, last_from, first_candidate, k, most;
  bool whole;  ///< units are single rows
};

TEST(CudaParity, RowsOfWhatWasChosen) {
  for (const RowsCase& c :
       {RowsCase{1, 0, 1, 0, 1, 4, true}, RowsCase{1, 1, 1, 0, 0, 40, false},
        RowsCase{50, 3, 44, 3, 7, 400, false}, RowsCase{50, 3, 44, 3, 7, 60, false},
        RowsCase{700, 20, 600, 20, 300, 512, true}, RowsCase{700, 20, 600, 20, 300, 8000, false},
        RowsCase{0, 0, 0, 0, 0, 3, false}}) {
    SCOPED_TRACE(std::to_string(c.units) + " units, most " + std::to_string(c.most));
    constexpr std::int32_t kHeads = 3;
    std::vector<RowRange> units;
    for (std::int64_t u = 0, row = 0; u < c.units; ++u) {
      const std::int64_t end = row + 1 + u * 7 % 16;  // contexts end within pages
      units.push_back({row, end});
      row = end;
    }
    const std::int64_t candidates = c.last_from - c.first_candidate;
    std::vector<std::int32_t> chosen;
    for (std::int32_t m = 0; m < kHeads; ++m) {
      const auto best = top_k_sorted(random_floats(candidates, 40 + static_cast<std::uint32_t>(m)),
                                     c.k);
      chosen.insert(chosen.end(), best.begin(), best.end());
    }
    ASSERT_EQ(static_cast<std::int64_t>(chosen.size()), kHeads * c.k);
    const auto length = static_cast<std::size_t>(kHeads * c.most);
    std::vector<std::int32_t> expected(length, -1), cpu(length, -1);
    std::vector<RowList> expected_lists(kHeads), cpu_lists(kHeads);
    CandidateRowsArgs args{.units = c.whole ? nullptr : units.data(),
                           .num_units = c.units,
                           .num_first = c.first,
                           .last_from = c.last_from,
                           .chosen = chosen.data(),
                           .num_chosen = c.k,
                           .first_candidate = c.first_candidate,
                           .num_kv_heads = kHeads,
                           .most_rows = c.most,
                           .rows = expected.data(),
                           .lists = expected_lists.data()};
    ASSERT_OK(candidate_rows_reference(args));
    args.rows = cpu.data();
    args.lists = cpu_lists.data();
    ASSERT_OK(candidate_rows(args));
    EXPECT_EQ(cpu, expected);
    TestDevice device;
    auto launcher = device.launcher();
    std::int32_t* rows = device.output(std::vector<std::int32_t>(length, -1), "rows");
    RowList* lists = device.output(std::vector<RowList>(kHeads), "lists");
    args.units = c.whole ? nullptr : device.upload(units, "units");
    args.chosen = device.upload(chosen, "chosen");
    args.rows = rows;
    args.lists = lists;
    ASSERT_OK(launch_candidate_rows(launcher, args));
    EXPECT_EQ(device.download(rows, static_cast<std::int64_t>(length)), expected);
    const auto got = device.download(lists, kHeads);
    for (std::int32_t m = 0; m < kHeads; ++m) {
      const auto at = static_cast<std::size_t>(m);
      EXPECT_EQ(got[at].rows, rows + m * c.most);
      EXPECT_EQ(got[at].length, expected_lists[at].length);
      EXPECT_EQ(cpu_lists[at].rows, cpu.data() + m * c.most);
      EXPECT_EQ(cpu_lists[at].length, expected_lists[at].length);
    }
    args.last_from = c.units + 1;
    EXPECT_EQ(launch_candidate_rows(launcher, args).field(), "last_from");
    EXPECT_EQ(candidate_rows(args).field(), "last_from");
  }
}

}  // namespace
}  // namespace quire::cuda
