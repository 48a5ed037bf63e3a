// infllmv2 selects blocks like InfLLM-V2 (arXiv 2509.24663): mean-pooled kernels that
// overlap by half score the keys, and a block counts as much as the best kernel that touches it. A
// kernel is two pages, so its mean key is the mean of two pages' means. All query heads of a KV
// head share one choice, by the sum of their softmax weights over the kernels. The publication
// trains the model for this attention; here the model is taken as it is.
#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "engine/retrieve/pages/paged.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

struct InfllmV2Options : PagedPolicy {
  InfllmV2Options() {
    page_tokens = 16;
    sink = 64;
    window = 512;
    follow_budget = true;
    dense_layers = 0;
    device = false;
    summary = PageSummary::kMean;
  }
  FixedRows block_tokens = 64;  ///< a default larger than what is chosen shrinks to it

  std::int32_t block_pages() const { return block_tokens / page_tokens; }
  Status finish(std::string_view field) {
    QUIRE_RETURN_IF_ERROR(PagedPolicy::finish(field));
    if (!block_tokens.given)
      block_tokens = std::min<std::int32_t>(block_tokens, selected_pages() * page_tokens);
    if (block_tokens % page_tokens != 0) {
      return Status::invalid(std::string(field) + ".decode_block",
                             std::to_string(block_tokens) + " must be a multiple of " +
                                 std::to_string(page_tokens) + ", decode_page");
    }
    if (selected_pages() >= block_pages()) return {};
    return Status::invalid(std::string(field) + ".decode_budget",
                           "a budget of " + std::to_string(budget) + " tokens leaves no block of " +
                               std::to_string(block_tokens) +
                               " beside sinks and window; raise it or lower those");
  }
};

OptionTable<InfllmV2Options> option_table() {
  return {
      page_option({1, 256}, "tokens between the beginnings of kernels, which are twice as long"),
      fixed_rows_option("decode_block", &InfllmV2Options::block_tokens, {1, 4096},
                        "tokens chosen together; a multiple of decode_page"),
      budget_option({16, 1 << 20}),
      sink_option(),
      window_option(),
      dense_layers_option(),
  };
}

class InfllmV2Retriever final : public PagedRetriever {
 public:
  explicit InfllmV2Retriever(const InfllmV2Options& options)
      : PagedRetriever(options), block_pages_(options.block_pages()) {}

 protected:
  bool chooses_by_votes() const override { return false; }

  Result<std::vector<std::int32_t>> choose(const Candidates& candidates) override {
    const std::vector<float> kernels = kernel_weights(candidates);
    const std::int32_t blocks = (candidates.count + block_pages_ - 1) / block_pages_;
    std::vector<float> best(at(blocks));
    for (std::int32_t b = 0; b < blocks; ++b) {
      // The kernel before the block's first page reaches into the block.
      const std::int32_t first = std::max(0, b * block_pages_ - 1),
                         last = std::min<std::int32_t>((b + 1) * block_pages_,
                                                       static_cast<std::int32_t>(kernels.size()));
      best[at(b)] = *std::max_element(kernels.begin() + std::min(first, last - 1),
                                      kernels.begin() + last);
    }
    std::vector<std::int32_t> pages;
    for (const std::int32_t b : top_k_sorted(best, policy().selected_pages() / block_pages_)) {
      const std::int32_t end = std::min(candidates.count, (b + 1) * block_pages_);
      for (std::int32_t page = b * block_pages_; page < end; ++page) pages.push_back(page);
    }
    return pages;
  }

 private:
  /// Returns the weight of each kernel, summed over the query heads' softmax. Kernel k is pages k
  /// and k + 1; a single page is a kernel by itself.
  static std::vector<float> kernel_weights(const Candidates& candidates) {
    const std::int32_t pages = candidates.count, kernels = std::max(1, pages - 1);
    std::vector<float> sum(at(kernels)), scores(at(kernels));
    for (std::int32_t h = 0; h < candidates.group; ++h) {
      const auto of_page = candidates.scores.subspan(at(std::int64_t{h} * pages), at(pages));
      for (std::int32_t k = 0; k < kernels; ++k)
        scores[at(k)] = (of_page[at(k)] + of_page[at(std::min(k + 1, pages - 1))]) / 2;
      const float largest = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (float& s : scores) total += s = std::exp(s - largest);
      for (std::int32_t k = 0; k < kernels; ++k)
        sum[at(k)] += scores[at(k)] / static_cast<float>(total);
    }
    return sum;
  }

  const std::int32_t block_pages_;
};

}  // namespace

void register_infllmv2(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("infllmv2", option_table(), [](const InfllmV2Options& options) {
    return std::make_unique<InfllmV2Retriever>(options);
  });
}

}  // namespace quire
