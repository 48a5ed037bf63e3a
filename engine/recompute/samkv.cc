#include "engine/recompute/samkv.h"

#include <algorithm>

#include "engine/recompute/row_pass.h"
#include "engine/select/selector.h"

namespace quire {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

const std::vector<PlugOption>& option_table() {
  static const std::vector<PlugOption> kOptions = {
      {.name = "rows",
       .default_value = "anchors_and_important",
       .values = {"anchors_and_important", "kept"},
       .summary = "what is computed again: anchor blocks and important tokens, as published, or "
                  "every kept token"},
  };
  return kOptions;
}

SamkvRows rows_option(const RecomputeInput& input) {
  return input.options.word(option_table(), "rows") == "kept" ? SamkvRows::kKept
                                                              : SamkvRows::kAnchorsAndImportant;
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
  /// Creates the recomputer; `always` fixes the rows if they are not an option.
  SamkvRecomputer(std::string_view name, WriteBack write_back,
                  std::optional<SamkvRows> always = std::nullopt)
      : name_(name), write_back_(write_back), always_(always) {}

  std::string_view name() const override { return name_; }
  std::span<const PlugOption> options() const override {
    return always_ ? std::span<const PlugOption>() : option_table();
  }
  /// Returns true if important tokens are needed, as sketches hold them.
  bool needs_sketches() const override { return always_ != SamkvRows::kKept; }
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
  RowSet rows(const RecomputeInput& input) const {
    return rows_of(input, always_ ? *always_ : rows_option(input));
  }
  const std::string_view name_;
  const WriteBack write_back_;
  const std::optional<SamkvRows> always_;
};

}  // namespace

RowSet samkv_rows(const RecomputeInput& input, SamkvRows which, const ImportantTokens& important) {
  RowSet rows(input.num_layers, input.contexts.size());
  const std::size_t words = layer_words(input.num_layers);
  for (std::size_t i = 0; i < input.contexts.size(); ++i) {
    const RecomputableContext& c = input.contexts[i];
    const auto context = static_cast<std::int32_t>(i);
    const auto n = static_cast<std::int32_t>(c.token_ids.size());
    if (c.exact || n == 0) continue;
    const std::vector<std::uint64_t> kept = kept_layers(input, context);
    std::vector<std::uint8_t> whole(idx(c.num_blocks), which == SamkvRows::kKept);
    for (const std::int32_t block : anchor_blocks(c.num_blocks)) whole[idx(block)] = 1;

    // Holds, by token, the layers in which it is important itself.
    std::vector<std::pair<std::int32_t, std::int32_t>> single;
    for (std::int32_t layer = 0;
         layer < input.num_layers && which == SamkvRows::kAnchorsAndImportant; ++layer) {
      for (const std::int32_t token : important(context, layer)) {
        if (token >= 0 && token < n && !whole[idx(token / c.block_tokens)])
          single.emplace_back(token, layer);
      }
    }
    std::sort(single.begin(), single.end());

    std::vector<std::uint64_t> layers(words);
    auto next = single.begin();
    for (std::int32_t block = 0; block < c.num_blocks; ++block) {
      const std::uint64_t* block_layers = kept.data() + idx(block) * words;
      const std::int32_t first = block * c.block_tokens, end = std::min(first + c.block_tokens, n);
      if (whole[idx(block)]) {
        for (std::int32_t token = first; token < end; ++token)
          rows.add(input, context, token, block_layers);
        continue;
      }
      while (next != single.end() && next->first < end) {
        const std::int32_t token = next->first;
        std::fill(layers.begin(), layers.end(), 0);
        for (; next != single.end() && next->first == token; ++next) {
          if (has_layer(block_layers, next->second)) add_layer(layers.data(), next->second);
        }
        rows.add(input, context, token, layers.data());
      }
    }
  }
  return rows;
}

std::unique_ptr<Recomputer> make_samkv_overwrite_recomputer() {
  return std::make_unique<SamkvRecomputer>("samkv_overwrite", WriteBack::kOverwrite);
}
std::unique_ptr<Recomputer> make_samkv_kept_recomputer() {
  return std::make_unique<SamkvRecomputer>("samkv_kept", WriteBack::kOverwrite, SamkvRows::kKept);
}
std::unique_ptr<Recomputer> make_samkv_fusion_recomputer() {
  return std::make_unique<SamkvRecomputer>("samkv_fusion", WriteBack::kFusion);
}

}  // namespace quire
