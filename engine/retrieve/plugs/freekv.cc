// freekv implements FreeKV (arXiv 2505.13109). The whole cache lies on the host, the pages that the
// previous step's query chose on the device, and heads whose query turned are corrected. Pages for
// the next step are copied while later layers compute.
#include "engine/retrieve/pages/paged.h"

namespace quire {
namespace {

struct FreeKvOptions : PagedPolicy {
  FreeKvOptions() {
    follow_budget = true;
    dense_layers = 0;
    tau = 0.8;
    rerank = reuse = 8;
  }
};

OptionTable<FreeKvOptions> option_table() {
  return {
      page_option({16, 256}),
      budget_option({16, 1 << 20}),
      sink_option(),
      window_option(),
      number_option("decode_tau", &PagedPolicy::tau, {-1, 2}, number_text(*FreeKvOptions().tau),
                    "least mean cosine to the query before, for a head to go by that query's "
                    "choice; above 1: never"),
      resident_option(),
      dense_layers_option(),
      rerank_option(),
      number_option("decode_reuse", &PagedPolicy::reuse, {1, 15},
                    "steps that a choice of pages serves, for heads that do not turn away from it "
                    "(decode_tau); layers take turns in choosing anew"),
      vote_option({{"avg_softmax", PageVote::kMeanSoftmax},
                   {"max_score", PageVote::kMaxScore},
                   {"avg_score", PageVote::kMeanScore}}),
      words_option("decode_scale", &PagedPolicy::scale, {{"sqrt_d", true}, {"none", false}},
                   "what page scores are divided by"),
  };
}

}  // namespace

void register_freekv(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("freekv", option_table(), [](const FreeKvOptions& options) {
    return std::make_unique<PagedRetriever>(options);
  });
}

}  // namespace quire
