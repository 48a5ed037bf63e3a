// InfLLM-V2: blocks by the best of the mean-pooled kernels that touch them, against plain loops.
#include "engine/retrieve/pages/paged.h"
#include "tests/support/harness/row_harness.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kGroup = RowSequence::kGroup, kPage = 8, kBlock = 32, kSink = 16,
                       kWindow = 48, kBlocks = 3;

RetrieverOptions given(RetrieverOptions more = {}) {
  RetrieverOptions out = {{"decode_page", std::to_string(kPage)},
                          {"decode_block", std::to_string(kBlock)},
                          {"decode_sink", std::to_string(kSink)},
                          {"decode_window", std::to_string(kWindow)},
                          {"decode_budget", std::to_string(kSink + kWindow + kBlocks * kBlock)}};
  for (const auto& [name, value] : more) out[name] = value;
  return out;
}

/// Each block's score for a KV head, from the mean products of `kernel` rows, `stride` apart.
std::vector<double> block_scores(RowSequence& sequence, std::int32_t layer, std::int32_t kv_head,
                                 const std::vector<float>& query, std::int64_t end) {
  const std::int64_t first = kSink, kernels = (end - first) / kPage - 1;
  std::vector<double> weight(static_cast<std::size_t>(kernels), 0.0);
  for (std::int32_t h = kv_head * kGroup; h < (kv_head + 1) * kGroup; ++h) {
    const auto products = sequence.products(layer, h, query);
    std::vector<double> mean;
    double sum = 0;
    for (std::int64_t k = 0; k < kernels; ++k) {
      double m = 0;
      for (std::int64_t row = first + k * kPage; row < first + (k + 2) * kPage; ++row)
        m += products[static_cast<std::size_t>(row)] / (2 * kPage);
      mean.push_back(std::exp(m));
      sum += mean.back();
    }
    for (std::size_t k = 0; k < mean.size(); ++k) weight[k] += mean[k] / sum;
  }
  std::vector<double> out(static_cast<std::size_t>((end - first + kBlock - 1) / kBlock), 0.0);
  for (std::int64_t k = 0; k < kernels; ++k) {
    const std::int64_t begin = k * kPage, last = (k + 2) * kPage - 1;
    for (std::int64_t b = begin / kBlock; b <= last / kBlock; ++b)
      out[static_cast<std::size_t>(b)] = std::max(out[static_cast<std::size_t>(b)],
                                                  weight[static_cast<std::size_t>(k)]);
  }
  return out;
}

TEST(InfllmV2, TheBlocksOfTheBestKernelsAreRead) {
  RowDecoding run("infllmv2", given());
  const auto& plug = static_cast<const PagedRetriever&>(*run.retriever);
  for (int n = 0; n < 24; ++n) {
    (void)run.token([&](std::int32_t layer, const std::vector<float>& q) {
      const std::int64_t end = run.sequence.num_rows() / kPage * kPage - kWindow;
      for (std::int32_t m = 0; m < RowSequence::kKvHeads; ++m) {
        const auto score = block_scores(run.sequence, layer, m, q, end);
        std::vector<double> sorted = score;
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        std::map<std::int64_t, int> pages_of_block;
        for (const std::int32_t page : plug.attended_pages(layer, m)) {
          const std::int64_t row = std::int64_t{page} * kPage;
          if (row >= kSink && row < end) ++pages_of_block[(row - kSink) / kBlock];
        }
        EXPECT_EQ(pages_of_block.size(), static_cast<std::size_t>(kBlocks));
        for (const auto& [block, pages] : pages_of_block) {
          const std::int64_t left = (end - kSink - block * kBlock) / kPage;
          EXPECT_EQ(pages, std::min<std::int64_t>(kBlock / kPage, left)) << "a block is whole";
          // Means are kept in 16 bits, so two blocks that score alike may change places.
          EXPECT_GE(score[static_cast<std::size_t>(block)], sorted[kBlocks - 1] * 0.97)
              << "token " << n << " layer " << layer << " head " << m << " block " << block;
        }
      }
    });
  }
  EXPECT_EQ(run.retriever->stats().bytes_copied, 0) << "blocks are read where they are";
}

TEST(InfllmV2, OptionsThatDoNotFitAreNamed) {
  const auto field = [](RetrieverOptions more) {
    return std::string(
        retrievers().make("infllmv2", PlugOptions(given(std::move(more)))).status().field());
  };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({{"decode_block", "20"}}), "cache.options.decode_block");
  EXPECT_EQ(field({{"decode_budget", "88"}}), "cache.options.decode_budget");
  EXPECT_EQ(field({{"decode_sink", "12"}}), "cache.options.decode_sink");
  const auto few = retrievers().make(
      "infllmv2", PlugOptions(RetrieverOptions{
                      {"decode_budget", "96"}, {"decode_sink", "16"}, {"decode_window", "32"}}));
  EXPECT_TRUE(few.ok()) << "a block that is not asked for adapts: " << few.status().to_string();
  const auto small = retrievers().make("infllmv2",
                                       PlugOptions(RetrieverOptions{{"decode_budget", "256"}}));
  EXPECT_TRUE(small.ok()) << "and so do sinks and window: " << small.status().to_string();
}

}  // namespace
}  // namespace quire::testing
