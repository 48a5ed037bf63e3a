#include <algorithm>
#include <cmath>

#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

/// EPIC's LegoLink: the first tokens of every document except the first are computed again in all layers, now seeing the documents before them; they
/// stop being each document's own attention sink (algorithms §10). A recompute ratio sets the share of each document;
/// without one it is the 16 tokens the publication recommends. Documents' BOS rows are not stored here, so none is kept.
class EpicRecomputer final : public Recomputer {
 public:
  std::string_view name() const override { return "epic"; }
  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
  bool has_pass() const override { return true; }

  std::vector<std::vector<std::int32_t>> planned_tokens(const RecomputeInput& input) const override {
    std::vector<std::vector<std::int32_t>> tokens(input.contexts.size());
    bool first = true;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto n = static_cast<std::int64_t>(input.contexts[i].token_ids.size());
      if (n == 0) continue;
      if (!first) {
        const auto k = std::min(n, input.recompute_ratio ? static_cast<std::int64_t>(std::ceil(*input.recompute_ratio * static_cast<double>(n))) : kTokens);
        for (std::int32_t t = 0; t < k; ++t) tokens[i].push_back(t);
      }
      first = false;
    }
    return tokens;
  }

  Result<std::optional<RecomputePass>> prepare(const RecomputeInput& input) const override {
    RecomputePass pass;
    pass.tokens = planned_tokens(input);
    for (std::size_t i = 0; i < pass.tokens.size(); ++i) {
      const RecomputableContext& context = input.contexts[i];
      for (const std::int32_t token : pass.tokens[i]) {
        const auto position = static_cast<std::int32_t>(context.offset) + token;
        const std::int64_t row = input.cache->find_row(0, position);
        if (row < 0) return Status::internal("position " + std::to_string(position) + " has no row to recompute");
        pass.token_ids.push_back(context.token_ids[static_cast<std::size_t>(token)]);
        pass.positions.push_back(position);
        pass.cache_rows.push_back(row);
      }
    }
    return std::optional<RecomputePass>(std::move(pass));
  }

 private:
  static constexpr std::int64_t kTokens = 16;
};

}  // namespace

std::unique_ptr<Recomputer> make_epic_recomputer() { return std::make_unique<EpicRecomputer>(); }

}  // namespace quire
