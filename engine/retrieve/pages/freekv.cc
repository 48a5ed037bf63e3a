// freekv implements FreeKV (arXiv 2505.13109). The whole cache lies on the host, the pages that the
// previous step's query chose on the device, and heads whose query turned are corrected. Pages for
// the next step are copied while later layers compute.
#include "engine/retrieve/pages/paged.h"

namespace quire {
namespace {

std::span<const PlugOption> table() {
  static const std::vector<PlugOption> options = {
      {"decode_page", "32", {}, 16, 256, "tokens of a page; a multiple of 16"},
      {"decode_budget",
       "2048",
       {},
       16,
       1 << 20,
       "tokens a step attends to in a layer, sinks and window among them"},
      {"decode_sink", "128", {}, 0, 1 << 20, "first tokens that are always attended to"},
      {"decode_window", "128", {}, 0, 1 << 20, "last tokens that are always attended to"},
      {"decode_tau",
       "0.8",
       {},
       -1,
       2,
       "least mean cosine to the query before, for a head to go by that query's choice; above 1: "
       "never"},
      {"decode_resident",
       "auto",
       {"auto", "none"},
       0,
       0,
       "layers that stay on the device: those that fit, or none"},
      {"decode_dense_layers", "0", {}, 0, 1024, "first layers that attend to everything"},
      {"decode_rerank",
       "8",
       {},
       1,
       64,
       "of this many times the pages to be chosen the keys themselves are looked at, and the pages "
       "attended to most are taken; 1: their bounds decide"},
      {"decode_reuse",
       "8",
       {},
       1,
       15,
       "steps that a choice of pages serves, for heads that do not turn away from it (decode_tau); "
       "layers take turns in choosing anew"},
      {"decode_pool",
       "avg_softmax",
       {"avg_softmax", "max_score", "avg_score"},
       0,
       0,
       "how query heads of a KV head vote for pages"},
      {"decode_scale", "sqrt_d", {"sqrt_d", "none"}, 0, 0, "what page scores are divided by"},
  };
  return options;
}

}  // namespace

std::unique_ptr<Retriever> make_freekv_retriever() {
  return std::make_unique<PagedRetriever>("freekv", PagedPolicy{.follow_budget = true}, table());
}

}  // namespace quire
