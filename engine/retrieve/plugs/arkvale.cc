// arkvale implements ArkVale (NeurIPS 2024) with the parts of FreeKV. The whole cache lies on the
// host, each page is summarised by its mean key and the distance of keys from it, and the pages
// that the step's own query selects are copied before it attends. Slots hold nothing beyond that:
// unwanted pages are replaced, whatever they once scored.
#include "engine/retrieve/pages/paged.h"

namespace quire {
namespace {

struct ArkValeOptions : PagedPolicy {
  ArkValeOptions() {
    sink = 32;
    window = 64;
    vote = PageVote::kMeanScore;
    summary = PageSummary::kDeviation;
  }
};

OptionTable<ArkValeOptions> option_table() {
  return {
      page_option({16, 256}),
      budget_option({16, 1 << 20}),
      sink_option(),
      window_option(),
      resident_option(),
      dense_layers_option(),
      vote_option({{"avg_softmax", PageVote::kMeanSoftmax},
                   {"max_softmax", PageVote::kMaxSoftmax},
                   {"max_score", PageVote::kMaxScore},
                   {"avg_score", PageVote::kMeanScore}}),
      words_option("decode_summary", &PagedPolicy::summary,
                   {{"deviation", PageSummary::kDeviation}, {"extremes", PageSummary::kExtremes}},
                   "what stands for a page's keys: their mean and mean deviation, or their bounds"),
  };
}

}  // namespace

void register_arkvale(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("arkvale", option_table(), [](const ArkValeOptions& options) {
    return std::make_unique<PagedRetriever>(options);
  });
}

}  // namespace quire
