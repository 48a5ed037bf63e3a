// arkvale implements ArkVale (NeurIPS 2024) with the parts of FreeKV. The whole cache lies on the
// host, each page is summarised by its mean key and the distance of keys from it, and the pages
// that the step's own query selects are copied before it attends. Slots hold nothing beyond that:
// unwanted pages are replaced, whatever they once scored.
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
      {"decode_sink", "32", {}, 0, 1 << 20, "first tokens that are always attended to"},
      {"decode_window", "64", {}, 0, 1 << 20, "last tokens that are always attended to"},
      {"decode_resident",
       "auto",
       {"auto", "none"},
       0,
       0,
       "layers that stay on the device: those that fit, or none"},
      {"decode_dense_layers", "1", {}, 0, 1024, "first layers that attend to everything"},
      {"decode_pool",
       "avg_score",
       {"avg_softmax", "max_softmax", "max_score", "avg_score"},
       0,
       0,
       "how query heads of a KV head vote for pages"},
      {"decode_summary",
       "deviation",
       {"deviation", "extremes"},
       0,
       0,
       "what stands for a page's keys: their mean and mean deviation, or their bounds"},
  };
  return options;
}

}  // namespace

std::unique_ptr<Retriever> make_arkvale_retriever() {
  PagedPolicy policy;
  policy.summary = PageSummary::kDeviation;
  return std::make_unique<PagedRetriever>("arkvale", policy, table());
}

}  // namespace quire
