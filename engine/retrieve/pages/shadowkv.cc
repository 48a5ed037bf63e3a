// shadowkv retrieves like ShadowKV (arXiv 2410.21465), with the pages of Quest: short chunks with
// their mean key as landmark. Chunks with outlier keys, which their landmark represents badly, are
// attended to in every step. Keys are read as they are; the publication rebuilds them on the device
// from a rank-160 factorisation. Results therefore show the quality of the choice, not the cost of
// the copies.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "engine/retrieve/pages/paged.h"
#include "kernels/parallel.h"
#include "kernels/topk.h"

namespace quire {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::span<const PlugOption> table() {
  static const std::vector<PlugOption> options = {
      {"decode_page", "8", {}, 1, 256, "tokens of a chunk"},
      {"decode_budget",
       "2048",
       {},
       16,
       1 << 20,
       "tokens a step attends to in a layer, outliers and window among them"},
      {"decode_sink", "0", {}, 0, 1 << 20, "first tokens that are always attended to"},
      {"decode_window", "32", {}, 0, 1 << 20, "last tokens that are always attended to"},
      {"decode_outliers",
       "192",
       {},
       0,
       1 << 20,
       "of 1024 tokens of the budget, those of chunks that are always attended to because a key is "
       "far from its chunk's mean"},
      {"decode_dense_layers", "1", {}, 0, 1024, "first layers that attend to everything"},
  };
  return options;
}

PagedPolicy landmarks() {
  PagedPolicy policy;
  policy.device = false;
  policy.summary = PageSummary::kMean;
  policy.vote = PageVote::kMaxSoftmax;
  return policy;
}

std::int32_t outlier_chunks(const PagedPolicy& policy, double of_1024) {
  return static_cast<std::int32_t>(of_1024 * policy.budget / 1024 / policy.page_tokens);
}

/// Returns the least cosine between a key of the chunk and their mean.
float least_cosine(const KvView& kv, std::int32_t kv_head, const RowRange& rows) {
  std::vector<double> mean(at(kv.head_dim), 0.0);
  const auto key_at = [&](std::int64_t row) {
    return static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + kv_head * kv.head_stride +
           row % kPageTokens * kv.token_stride;
  };
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::size_t c = 0; c < mean.size(); ++c)
      mean[c] += load_f32(key_at(row), kv.dtype, static_cast<std::int64_t>(c));
  }
  double least = 1, mean_square = 0;
  for (const double x : mean) mean_square += x * x;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    double dot = 0, square = 0;
    for (std::size_t c = 0; c < mean.size(); ++c) {
      const double k = load_f32(key_at(row), kv.dtype, static_cast<std::int64_t>(c));
      dot += k * mean[c];
      square += k * k;
    }
    if (const double length = std::sqrt(square * mean_square); length > 0)
      least = std::min(least, dot / length);
  }
  return static_cast<float>(least);
}

class ShadowKvRetriever final : public PagedRetriever {
 public:
  ShadowKvRetriever() : PagedRetriever("shadowkv", landmarks(), table()) {}

  Status check(const PlugOptions& options) const override {
    QUIRE_ASSIGN_OR_RETURN(const PagedPolicy policy, read_policy(landmarks(), options, table()));
    if (outlier_chunks(policy, options.number(table(), "decode_outliers")) <
        policy.selected_pages())
      return {};
    return Status::invalid("cache.options.decode_outliers",
                           "the outliers take all of what the budget leaves beside sinks and "
                           "window; lower decode_outliers or raise decode_budget");
  }

  Status prepare(const RetrieveInput& input) override {
    const PlugOptions options = input.options == nullptr ? PlugOptions() : *input.options;
    QUIRE_RETURN_IF_ERROR(check(options));
    outliers_per_1024_ = options.number(table(), "decode_outliers");
    outliers_.assign(at(std::int64_t{input.num_layers} * input.num_kv_heads), {});
    return PagedRetriever::prepare(input);
  }

 protected:
  /// Finds the outliers among the chunks that exist when the layer becomes sparse: those of the
  /// prompt.
  Status begin_layer(std::int32_t layer, const RetrievalPages& pages, const KvView& kv) override {
    const std::int32_t first = policy().sink_pages(),
                       last = std::max(first, pages.complete() - policy().window_pages());
    parallel_tasks(input().num_kv_heads, [&](std::int64_t m) {
      std::vector<float> far;
      for (std::int32_t page = first; page < last; ++page)
        far.push_back(-least_cosine(kv, static_cast<std::int32_t>(m), pages[page]));
      outliers_[at(layer * std::int64_t{input().num_kv_heads} + m)] = top_k_sorted(
          far, outlier_chunks(policy(), outliers_per_1024_));
    });
    return {};
  }

  bool chooses_by_votes() const override { return false; }
  Result<std::vector<std::int32_t>> choose(const Candidates& candidates) override {
    std::vector<std::int32_t> chosen =
        outliers_[at(std::int64_t{candidates.layer} * input().num_kv_heads + candidates.kv_head)];
    const std::span<const float> all = votes(candidates);
    std::vector<float> rest(all.begin(), all.end());
    for (const std::int32_t page : chosen) rest[at(page)] = -1;  // softmax weights are not negative
    const auto outliers = static_cast<std::int64_t>(chosen.size()),
               most = std::min<std::int64_t>(policy().selected_pages(), candidates.count) -
                      outliers;
    const auto best = top_k_sorted(rest, most);
    chosen.insert(chosen.end(), best.begin(), best.end());
    std::inplace_merge(chosen.begin(), chosen.begin() + outliers, chosen.end());
    return chosen;
  }

 private:
  double outliers_per_1024_ = 0;
  /// The outlier chunks, [num_layers, num_kv_heads], as ascending offsets from the first candidate.
  std::vector<std::vector<std::int32_t>> outliers_;
};

}  // namespace

std::unique_ptr<Retriever> make_shadowkv_retriever() {
  return std::make_unique<ShadowKvRetriever>();
}

}  // namespace quire
