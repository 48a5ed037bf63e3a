#include <algorithm>

#include "engine/select/selector.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = {
      {.name = "token_budget", .default_value = "0", .least = 0, .most = 1e9, .summary = "document tokens per layer; 0: from keep_ratio, else about a sixth"},
  };
  return kTable;
}

/// Shares of long contexts and of chunks, whose three anchors alone are an eighth; and what stays beside anchors at least.
constexpr double kLongShare = 0.16, kChunkShare = 0.19, kBesidesAnchors = 0.05;
constexpr std::int32_t kLongBlock = 64;

std::int64_t default_budget(const SelectionInput& input) {
  double share = 0, anchors = 0, all = 0;
  for (const SelectableContext& c : input.contexts) {
    const auto tokens = static_cast<double>(c.num_blocks > 0 ? c.num_tokens : 0);
    all += tokens;
    share += tokens * (c.block_tokens >= kLongBlock ? kLongShare : kChunkShare);
    for (const std::int32_t b : anchor_blocks(c.num_blocks)) {
      anchors += static_cast<double>(std::min<std::int64_t>(c.block_tokens, c.num_tokens - std::int64_t{b} * c.block_tokens));
    }
  }
  return static_cast<std::int64_t>(std::max(share, anchors + kBesidesAnchors * all));
}

/// SamKV's anchors, and of the rest the blocks that match the question's words best: `samkv` with score=words and a budget, under a name
/// of its own, so that it can be measured, certified and chosen as a whole.
class WordsSelector final : public Selector {
 public:
  std::string_view name() const override { return "words"; }
  std::span<const PlugOption> options() const override { return table(); }
  bool needs_sketches(const SelectionInput& input) const override { return samkv_->needs_sketches(as_samkv(input)); }
  std::optional<Selection> query_pass_blocks(const SelectionInput& input) const override { return samkv_->query_pass_blocks(as_samkv(input)); }
  Result<Selection> select(const SelectionInput& input) const override { return samkv_->select(as_samkv(input)); }

 private:
  static SelectionInput as_samkv(const SelectionInput& input) {
    SelectionInput in = input;
    std::map<std::string, std::string, std::less<>> options = {{"score", "words"}};
    const auto asked = static_cast<std::int64_t>(input.options.number(table(), "token_budget"));
    if (asked > 0 || !input.keep_ratio) options["token_budget"] = std::to_string(asked > 0 ? asked : std::max<std::int64_t>(1, default_budget(input)));
    in.options = PlugOptions(std::move(options));
    return in;
  }
  const std::unique_ptr<Selector> samkv_ = make_samkv_selector();
};

}  // namespace

std::unique_ptr<Selector> make_words_selector() { return std::make_unique<WordsSelector>(); }

}  // namespace quire
