#include "engine/recompute/samkv_rows.h"

#include <algorithm>

#include "engine/recompute/row_pass.h"
#include "engine/select/selector.h"

namespace quire {
namespace {

struct SamkvRecomputeOptions {
  SamkvRows rows = SamkvRows::kAnchorsAndImportant;
};

OptionTable<SamkvRecomputeOptions> option_table() {
  return {words_option(
      "rows", &SamkvRecomputeOptions::rows,
      {{"anchors_and_important", SamkvRows::kAnchorsAndImportant}, {"kept", SamkvRows::kKept}},
      "what is computed again: anchor blocks and important tokens, as published, or "
      "every kept token")};
}

RowSet rows_of(const RecomputeInput& input, SamkvRows which) {
  return samkv_rows(input, which, [&input](std::int32_t context, std::int32_t layer) {
    const SketchView* sketch = input.sketch ? input.sketch(context) : nullptr;
    if (sketch == nullptr || !sketch->has(kSketchStats) || sketch->num_layers() != input.num_layers)
      return std::vector<std::int32_t>();
    return sketch->pauta_tokens(layer);
  });
}

/// Implements SamKV's sparse recomputation with cross-layer alignment. The first document is
/// skipped if its KV is exact, as recomputing it over a sparse context would only make it worse.
/// All anchor tokens are computed again, and rows attend to padding.
class SamkvRecomputer final : public Recomputer {
 public:
  SamkvRecomputer(WriteBack write_back, SamkvRows rows) : write_back_(write_back), rows_(rows) {}

  /// Returns true if important tokens are needed, as sketches hold them.
  bool needs_sketches() const override { return rows_ != SamkvRows::kKept; }
  bool computes_in_place(const RecomputeInput&, std::int32_t) const override { return false; }
  bool has_pass() const override { return true; }

  std::optional<Selection> blocks_to_load(const RecomputeInput& input) const override {
    return rows(input).padding(input);
  }

  std::vector<std::vector<std::int32_t>> planned_tokens(
      const RecomputeInput& input) const override {
    if (input.selection != nullptr) return rows(input).tokens();
    // Every selector keeps anchors; other tokens are known after selection.
    std::vector<std::vector<std::int32_t>> tokens(input.contexts.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const RecomputableContext& c = input.contexts[i];
      if (c.exact || c.token_ids.empty()) continue;
      for (const std::int32_t block : anchor_blocks(c.num_blocks)) {
        const std::int32_t first = block * c.block_tokens;
        const std::int32_t end = std::min(first + c.block_tokens,
                                          static_cast<std::int32_t>(c.token_ids.size()));
        for (std::int32_t t = first; t < end; ++t) tokens[i].push_back(t);
      }
    }
    return tokens;
  }

  Result<std::unique_ptr<RecomputePass>> prepare(const RecomputeInput& input) const override {
    return make_row_pass(input, rows(input), write_back_);
  }

 private:
  RowSet rows(const RecomputeInput& input) const { return rows_of(input, rows_); }

  const WriteBack write_back_;
  const SamkvRows rows_;
};

}  // namespace

void register_samkv(PlugRegistry<Recomputer>& recomputers) {
  const auto add = [&](std::string_view name, WriteBack write_back) {
    recomputers.add(name, option_table(), [write_back](const SamkvRecomputeOptions& options) {
      return std::make_unique<SamkvRecomputer>(write_back, options.rows);
    });
  };
  add("samkv_fusion", WriteBack::kFusion);
  add("samkv_overwrite", WriteBack::kOverwrite);
  recomputers.add("samkv_kept", [] {
    return std::make_unique<SamkvRecomputer>(WriteBack::kOverwrite, SamkvRows::kKept);
  });
}

}  // namespace quire
