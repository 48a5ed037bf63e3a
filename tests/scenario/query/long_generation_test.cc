// In answers far longer than their prompt, attended rows, rows on the device and counters stay as
// plain loops compute them.
#include <cmath>
#include <iterator>
#include <set>
#include <string_view>

#include "engine/retrieve/pages/paged.h"
#include "engine/retrieve/plugs/ctkvr.h"
#include "tests/support/harness/row_harness.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kPage = 16;

/// Returns the rows of these pages; without contexts, pages begin at the first row.
std::vector<std::int32_t> rows_of(const std::vector<std::int32_t>& pages, std::int32_t num_rows) {
  std::vector<std::int32_t> out;
  for (const std::int32_t page : pages) {
    for (std::int32_t row = page * kPage; row < std::min(num_rows, (page + 1) * kPage); ++row)
      out.push_back(row);
  }
  return out;
}

TEST(LongGeneration, PagesStayExactOverSixteenThousandTokens) {
  constexpr int kTokens = 16384, kLookEvery = 1024;
  const auto options = [](const char* resident) {
    return RetrieverOptions{{"decode_page", "16"},        {"decode_budget", "96"},
                            {"decode_sink", "16"},        {"decode_window", "32"},
                            {"decode_tau", "1.5"},        {"decode_dense_layers", "0"},
                            {"decode_resident", resident}};
  };
  RowDecoding run("freekv", options("none"));
  ASSERT_TRUE(run.prepared.ok()) << run.prepared.to_string();
  auto& paged = dynamic_cast<PagedRetriever&>(*run.retriever);
  std::int64_t device_bytes = 0, appended_pages = 0;
  for (int n = 0; n < kTokens; ++n) {
    const bool look = n % kLookEvery == kLookEvery - 1;
    std::vector<std::vector<float>> expected(RowSequence::kLayers);
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      if (!look) return;
      std::vector<std::vector<std::int32_t>> rows;
      for (std::int32_t m = 0; m < RowSequence::kKvHeads; ++m) {
        const auto pages = paged.attended_pages(layer, m), held = paged.resident_pages(layer, m);
        // There are one sink page, three chosen, two of window, and the page being filled.
        EXPECT_GE(pages.size(), 6u) << "token " << n;
        EXPECT_LE(pages.size(), 7u) << "token " << n;
        EXPECT_TRUE(std::includes(held.begin(), held.end(), pages.begin(), pages.end()))
            << "what is attended to is on the device";
        EXPECT_LE(held.size(), 8u) << "and little else";
        rows.push_back(rows_of(pages, run.sequence.num_rows()));
      }
      expected[static_cast<std::size_t>(layer)] = run.sequence.attention_to(layer, q, rows);
    });
    if (n == 0) device_bytes = run.device.bytes_in_use();
    ASSERT_EQ(run.device.bytes_in_use(), device_bytes) << "token " << n;
    appended_pages += run.sequence.num_rows() % kPage == 1 ? 1 : 0;
    for (std::size_t layer = 0; look && layer < outs.size(); ++layer)
      expect_near(outs[layer], expected[layer], 1e-4, "token " + std::to_string(n));
  }
  const RetrieveStats s = run.retriever->stats();
  constexpr std::int64_t kHeadPage = std::int64_t{2} * kPage * RowSequence::kDim * 4;
  EXPECT_EQ(s.sparse_steps, std::int64_t{kTokens} * RowSequence::kLayers);
  EXPECT_EQ(s.selections, s.sparse_steps) << "each step chooses for itself";
  EXPECT_EQ(s.device_bytes, device_bytes);
  EXPECT_LE(s.bytes_copied, s.pages_copied * kHeadPage);
  EXPECT_GE(s.pages_copied, appended_pages * RowSequence::kLayers * RowSequence::kKvHeads)
      << "each page of the answer came once at least";
}

/// Every retriever of pages attends to the pages that it reports. They never exceed its budget and
/// the pages that no choice has seen, however long the answer is.
TEST(LongGeneration, PoliciesOfPagesStayWithinTheirBudget) {
  constexpr int kTokens = 4096, kLookEvery = 256;
  constexpr std::size_t kBudgetPages = 6, kUnseenPages = 2;
  for (const char* name : {"quest", "arkvale", "shadowkv", "raas", "freekv"}) {
    SCOPED_TRACE(name);
    RowDecoding run(name, {{"decode_page", "16"},
                           {"decode_budget", "96"},
                           {"decode_sink", "16"},
                           {"decode_window", "16"},
                           {"decode_dense_layers", "0"}});
    ASSERT_TRUE(run.prepared.ok()) << run.prepared.to_string();
    auto& paged = dynamic_cast<PagedRetriever&>(*run.retriever);
    for (int n = 0; n < kTokens; ++n) {
      const bool look = n % kLookEvery == kLookEvery - 1;
      std::vector<std::vector<float>> queries(RowSequence::kLayers);
      const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
        queries[static_cast<std::size_t>(layer)] = q;
      });
      for (std::int32_t layer = 0; look && layer < RowSequence::kLayers; ++layer) {
        const std::vector<float>& out = outs[static_cast<std::size_t>(layer)];
        EXPECT_TRUE(std::ranges::all_of(out, [](float x) { return std::isfinite(x); }))
            << "token " << n;
        std::vector<std::vector<std::int32_t>> rows;
        for (std::int32_t m = 0; m < RowSequence::kKvHeads; ++m) {
          const auto pages = paged.attended_pages(layer, m);
          EXPECT_LE(pages.size(), kBudgetPages + kUnseenPages) << "token " << n;
          EXPECT_EQ(pages.back(), (run.sequence.num_rows() - 1) / kPage) << "the page being filled";
          rows.push_back(rows_of(pages, run.sequence.num_rows()));
        }
        // Retrievers that choose with the step's own query attend to exactly these pages; freekv
        // has already chosen for the next step.
        if (name != std::string_view("freekv"))
          expect_near(
              out, run.sequence.attention_to(layer, queries[static_cast<std::size_t>(layer)], rows),
              1e-4, "token " + std::to_string(n));
      }
    }
    EXPECT_EQ(run.retriever->stats().sparse_steps, std::int64_t{kTokens} * RowSequence::kLayers);
  }
}

TEST(LongGeneration, RaasNeverBringsBackWhatItEvicted) {
  constexpr int kTokens = 2048;
  RowDecoding run("raas", {{"decode_page", "16"},
                           {"decode_budget", "96"},
                           {"decode_sink", "16"},
                           {"decode_window", "16"},
                           {"decode_dense_layers", "0"}});
  ASSERT_TRUE(run.prepared.ok()) << run.prepared.to_string();
  auto& paged = dynamic_cast<PagedRetriever&>(*run.retriever);
  std::vector<std::set<std::int32_t>> gone(RowSequence::kLayers * RowSequence::kKvHeads);
  std::vector<std::vector<std::int32_t>> before(gone.size());
  std::size_t evicted = 0;
  for (int n = 0; n < kTokens; ++n) {
    run.token([](std::int32_t, const std::vector<float>&) {});
    for (std::size_t i = 0; i < gone.size(); ++i) {
      const auto pages = paged.attended_pages(static_cast<std::int32_t>(i) / RowSequence::kKvHeads,
                                              static_cast<std::int32_t>(i) % RowSequence::kKvHeads);
      std::ranges::set_difference(before[i], pages, std::inserter(gone[i], gone[i].end()));
      for (const std::int32_t page : pages)
        ASSERT_FALSE(gone[i].contains(page)) << "page " << page << " at token " << n;
      before[i] = pages;
    }
  }
  for (const auto& pages : gone) evicted += pages.size();
  EXPECT_GT(evicted, gone.size() * kTokens / kPage / 2) << "the answer is many times the budget";
}

TEST(LongGeneration, RowsStayExactWhileTheAnswerLeavesTheLocalRange) {
  constexpr int kTokens = 4096, kLookEvery = 256;
  const RetrieverOptions options = {{"decode_budget", "80"},         {"decode_sink", "10"},
                                    {"decode_window", "40"},         {"decode_centroids", "24"},
                                    {"decode_least_centroids", "1"}, {"decode_list", "50"},
                                    {"decode_generated", "64"},      {"decode_reuse", "1"}};
  RowDecoding run("ctkvr", options);
  ASSERT_TRUE(run.prepared.ok()) << run.prepared.to_string();
  auto& ctkvr = dynamic_cast<CtkvrRetriever&>(*run.retriever);
  const std::int64_t device_bytes = run.device.bytes_in_use();
  std::int64_t attended = 0;
  for (int n = 0; n < kTokens; ++n) {
    const bool look = n % kLookEvery == kLookEvery - 1;
    std::vector<std::vector<float>> expected(RowSequence::kLayers);
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      std::vector<std::vector<std::int32_t>> rows;
      for (std::int32_t m = 0; m < RowSequence::kKvHeads; ++m) {
        const auto named = ctkvr.attended_rows(m), candidates = ctkvr.candidate_rows(m);
        attended += static_cast<std::int64_t>(named.size());
        if (!look) continue;
        // All rows of the answer that left the local range are candidates, so the last candidate
        // marks where the local range begins.
        const std::int32_t host_end = std::max(candidates.back() + 1, 288);
        const std::int32_t local = run.sequence.num_rows() - host_end;
        EXPECT_GE(local, 40);
        EXPECT_LE(local, 40 + 64 + kPageTokens);
        for (std::int32_t row = 288; row < host_end; ++row)
          ASSERT_TRUE(std::binary_search(candidates.begin(), candidates.end(), row))
              << "row " << row << " is out of reach";
        std::vector<std::int32_t> list = rows_between(0, 10);
        list.insert(list.end(), named.begin(), named.end());
        for (const std::int32_t row : rows_between(host_end, run.sequence.num_rows()))
          list.push_back(row);
        rows.push_back(std::move(list));
      }
      if (look)
        expected[static_cast<std::size_t>(layer)] = run.sequence.attention_to(layer, q, rows);
    });
    ASSERT_EQ(run.device.bytes_in_use(), device_bytes) << "token " << n;
    for (std::size_t layer = 0; look && layer < outs.size(); ++layer)
      expect_near(outs[layer], expected[layer], 1e-4, "token " + std::to_string(n));
  }
  EXPECT_EQ(run.retriever->stats().rows_attended, attended);
  EXPECT_EQ(run.retriever->stats().sparse_steps, std::int64_t{kTokens} * RowSequence::kLayers);
  for (std::int32_t layer = 0; layer < RowSequence::kLayers; ++layer)
    EXPECT_EQ(ctkvr.index_of(layer)->num_replaced(), kTokens);
}

}  // namespace
}  // namespace quire::testing
