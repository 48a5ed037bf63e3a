// quest implements Quest (arXiv 2406.10774): every step chooses pages by the bounds of their keys
// and reads them in place. It chooses pages per KV head, by the best score of its query heads; the
// publication chooses per query head.
#include "engine/retrieve/pages/paged.h"

namespace quire {
namespace {

struct QuestOptions : PagedPolicy {
  QuestOptions() {
    page_tokens = 16;
    sink = window = 0;
    dense_layers = 2;
    vote = PageVote::kMaxScore;
    device = false;
  }
};

OptionTable<QuestOptions> option_table() {
  return {
      page_option({16, 256}),
      budget_option({16, 1 << 20}),
      sink_option(),
      window_option("last tokens that are always attended to, beside the page being filled"),
      dense_layers_option(),
      rerank_option(),
      vote_option({{"avg_softmax", PageVote::kMeanSoftmax},
                   {"max_score", PageVote::kMaxScore},
                   {"avg_score", PageVote::kMeanScore}}),
  };
}

}  // namespace

void register_quest(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("quest", option_table(), [](const QuestOptions& options) {
    return std::make_unique<PagedRetriever>(options);
  });
}

}  // namespace quire
