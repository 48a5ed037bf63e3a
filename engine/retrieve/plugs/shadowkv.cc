// shadowkv retrieves like ShadowKV (arXiv 2410.21465), with the pages of Quest: short chunks with
// their mean key as landmark. Chunks with outlier keys, which their landmark represents badly, are
// attended to in every step. Keys are read as they are; the publication rebuilds them on the device
// from a rank-160 factorisation. Results therefore show the quality of the choice, not the cost of
// the copies.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/index.h"
#include "engine/retrieve/pages/paged.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

struct ShadowKvOptions : PagedPolicy {
  ShadowKvOptions() {
    page_tokens = 8;
    sink = 0;
    window = 32;
    device = false;
    summary = PageSummary::kMean;
    vote = PageVote::kMaxSoftmax;
  }
  double outliers_per_1024 = 192;

  std::int32_t outlier_chunks() const {
    return static_cast<std::int32_t>(outliers_per_1024 * budget / 1024 / page_tokens);
  }
  Status finish(std::string_view field) {
    QUIRE_RETURN_IF_ERROR(PagedPolicy::finish(field));
    if (outlier_chunks() < selected_pages()) return {};
    return Status::invalid(std::string(field) + ".decode_outliers",
                           "the outliers take all of what the budget leaves beside sinks and "
                           "window; lower decode_outliers or raise decode_budget");
  }
};

OptionTable<ShadowKvOptions> option_table() {
  return {
      page_option({1, 256}, "tokens of a chunk"),
      budget_option({16, 1 << 20},
                    "tokens a step attends to in a layer, outliers and window among them"),
      sink_option(),
      window_option(),
      number_option("decode_outliers", &ShadowKvOptions::outliers_per_1024, {0, 1 << 20},
                    "of 1024 tokens of the budget, those of chunks that are always attended to "
                    "because a key is far from its chunk's mean"),
      dense_layers_option(),
  };
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
  explicit ShadowKvRetriever(const ShadowKvOptions& options)
      : PagedRetriever(options), outlier_chunks_(options.outlier_chunks()) {}

  Status prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) override {
    outliers_.assign(at(std::int64_t{sequence.num_layers} * sequence.num_kv_heads), {});
    return PagedRetriever::prepare(sequence, prompt);
  }

 protected:
  /// Finds the outliers among the chunks that exist when the layer becomes sparse: those of the
  /// prompt.
  Status begin_layer(std::int32_t layer, const RetrievalPages& pages, const KvView&) override {
    HostRows room;
    QUIRE_ASSIGN_OR_RETURN(const KvView kv, sequence().cache->host_view(layer, room));
    const std::int32_t first = policy().sink_pages(),
                       last = std::max(first, pages.complete() - policy().window_pages());
    parallel_tasks(sequence().num_kv_heads, [&](std::int64_t m) {
      std::vector<float> far;
      for (std::int32_t page = first; page < last; ++page)
        far.push_back(-least_cosine(kv, static_cast<std::int32_t>(m), pages[page]));
      outliers_[at(layer * std::int64_t{sequence().num_kv_heads} + m)] = top_k_sorted(
          far, outlier_chunks_);
    });
    return {};
  }

  bool chooses_by_votes() const override { return false; }
  Result<std::vector<std::int32_t>> choose(const Candidates& candidates) override {
    std::vector<std::int32_t> chosen = outliers_[at(
        std::int64_t{candidates.layer} * sequence().num_kv_heads + candidates.kv_head)];
    const std::span<const float> all = votes(candidates);
    std::vector<float> rest(all.begin(), all.end());
    for (const std::int32_t page : chosen) rest[at(page)] = -1;  // softmax weights are not negative
    const auto outliers = count_of(chosen),
               most = std::min<std::int64_t>(policy().selected_pages(), candidates.count) -
                      outliers;
    const auto best = top_k_sorted(rest, most);
    chosen.insert(chosen.end(), best.begin(), best.end());
    std::inplace_merge(chosen.begin(), chosen.begin() + outliers, chosen.end());
    return chosen;
  }

 private:
  const std::int32_t outlier_chunks_;
  /// The outlier chunks, [num_layers, num_kv_heads], as ascending offsets from the first candidate.
  std::vector<std::vector<std::int32_t>> outliers_;
};

}  // namespace

void register_shadowkv(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("shadowkv", option_table(), [](const ShadowKvOptions& options) {
    return std::make_unique<ShadowKvRetriever>(options);
  });
}

}  // namespace quire
