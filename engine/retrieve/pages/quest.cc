// quest implements Quest (arXiv 2406.10774): every step chooses pages by the bounds of their keys
// and reads them in place. It chooses pages per KV head, by the best score of its query heads; the
// publication chooses per query head.
#include "engine/retrieve/pages/paged.h"

namespace quire {
namespace {

std::span<const PlugOption> table() {
  static const std::vector<PlugOption> options = {
      {"decode_page", "16", {}, 16, 256, "tokens of a page; a multiple of 16"},
      {"decode_budget", "2048", {}, 16, 1 << 20, "tokens a step attends to in a layer"},
      {"decode_sink", "0", {}, 0, 1 << 20, "first tokens that are always attended to"},
      {"decode_window",
       "0",
       {},
       0,
       1 << 20,
       "last tokens that are always attended to, beside the page being filled"},
      {"decode_dense_layers", "2", {}, 0, 1024, "first layers that attend to everything"},
      {"decode_rerank",
       "1",
       {},
       1,
       64,
       "of this many times the pages to be chosen the keys themselves are looked at, and the pages "
       "attended to most are taken; 1: their bounds decide"},
      {"decode_pool",
       "max_score",
       {"avg_softmax", "max_score", "avg_score"},
       0,
       0,
       "how query heads of a KV head vote for pages"},
  };
  return options;
}

}  // namespace

std::unique_ptr<Retriever> make_quest_retriever() {
  PagedPolicy policy;
  policy.device = false;
  return std::make_unique<PagedRetriever>("quest", policy, table());
}

}  // namespace quire
