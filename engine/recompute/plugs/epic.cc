#include <algorithm>

#include "base/index.h"
#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_pass.h"

namespace quire {
namespace {

struct EpicOptions {
  std::optional<std::int64_t> k;
};
constexpr std::int64_t kDefaultTokens = 16;

OptionTable<EpicOptions> option_table() {
  return {number_option("k", &EpicOptions::k, {0, 1 << 20}, number_text(kDefaultTokens),
                        "tokens computed again at the beginning of every document but the first; "
                        "published: 1 to 64")};
}

/// Implements EPIC's LegoLink: the first k tokens of every document but the first are computed
/// again in all layers. They then attend to the documents before them and stop being their
/// document's attention sink. One k serves all documents, as published: option `k`, else the
/// smallest that reaches the requested recompute ratio (of all document tokens), else 16. BOS rows
/// of documents are not stored, so none is kept.
class EpicRecomputer final : public Recomputer {
 public:
  explicit EpicRecomputer(const EpicOptions& options) : options_(options) {}

  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
  bool has_pass() const override { return true; }

  std::optional<Selection> blocks_to_load(const RecomputeInput& input) const override {
    return rows_where_kept(input, planned_tokens(input)).padding(input);
  }

  std::vector<std::vector<std::int32_t>> planned_tokens(
      const RecomputeInput& input) const override {
    std::vector<std::vector<std::int32_t>> tokens(input.contexts.size());
    const std::int64_t k = tokens_per_document(input);
    bool first = true;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto n = count_of(input.contexts[i].token_ids);
      if (n == 0) continue;
      for (std::int32_t t = 0; !first && t < std::min(n, k); ++t) tokens[i].push_back(t);
      first = false;
    }
    return tokens;
  }

  Result<std::unique_ptr<RecomputePass>> prepare(const RecomputeInput& input) const override {
    return make_row_pass(input, rows_where_kept(input, planned_tokens(input)),
                         WriteBack::kOverwrite);
  }

 private:
  std::int64_t tokens_per_document(const RecomputeInput& input) const {
    if (options_.k || !input.recompute_ratio) return options_.k.value_or(kDefaultTokens);
    double all = 0;
    std::vector<std::int64_t> lengths;
    for (const RecomputableContext& c : input.contexts) {
      all += static_cast<double>(c.token_ids.size());
      if (!c.token_ids.empty()) lengths.push_back(count_of(c.token_ids));
    }
    if (lengths.size() < 2) return 0;
    lengths.erase(lengths.begin());
    const double wanted = *input.recompute_ratio * all;
    const auto reached = [&lengths](std::int64_t k) {
      std::int64_t sum = 0;
      for (const std::int64_t n : lengths) sum += std::min(n, k);
      return static_cast<double>(sum);
    };
    std::int64_t low = 0, high = *std::max_element(lengths.begin(), lengths.end());
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (reached(middle) >= wanted)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  const EpicOptions options_;
};

}  // namespace

void register_epic(PlugRegistry<Recomputer>& recomputers) {
  recomputers.add("epic", option_table(), [](const EpicOptions& options) {
    return std::make_unique<EpicRecomputer>(options);
  });
}

}  // namespace quire
