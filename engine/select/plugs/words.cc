#include <algorithm>

#include "base/index.h"
#include "engine/select/linked_scores.h"
#include "engine/select/selector.h"

namespace quire {
namespace {

struct WordsOptions {
  std::int64_t token_budget = 0, least_tokens = 0;
  double link_share = 0.3;
  float fade = 0.8f;
};

OptionTable<WordsOptions> option_table() {
  return {
      number_option("token_budget", &WordsOptions::token_budget, {0, 1e9},
                    "document tokens per layer; 0: from keep_ratio, else about a sixth"),
      number_option(
          "least_tokens", &WordsOptions::least_tokens, {0, 1e9},
          "document tokens per layer that stay in any case, unless keep_ratio or token_budget "
          "say how many"),
      number_option(
          "link_share", &WordsOptions::link_share, {0, 0.9},
          "share of what is kept beside first blocks that goes to blocks found by names in the "
          "best matches"),
      number_option("fade", &WordsOptions::fade, {0, 0.99},
                    "what is left of a match one block further on"),
  };
}

/// Default keep ratios of long contexts and of chunks, and the least share kept besides first
/// blocks.
constexpr double kLongShare = 0.16, kChunkShare = 0.17, kBesidesFirst = 0.05;
constexpr std::int32_t kLongBlock = 32;  ///< documents with blocks of this size or more are long

std::int64_t tokens_in(const SelectableContext& c, std::int32_t block) {
  return std::min<std::int64_t>(c.block_tokens,
                                c.num_tokens - std::int64_t{block} * c.block_tokens);
}

/// Returns the blocks that stay under any budget: the first one, or all of a context that is no
/// longer than SamKV's anchors.
std::int32_t always_kept(const SelectableContext& c) {
  return c.num_blocks <= 3 ? c.num_blocks : 1;
}

std::int64_t always_kept_tokens(const SelectableContext& c) {
  return std::min(c.num_tokens, std::int64_t{always_kept(c)} * c.block_tokens);
}

std::int64_t budget_of(const SelectionInput& input, const WordsOptions& options) {
  if (options.token_budget > 0) return options.token_budget;
  double share = 0, first = 0, all = 0;
  for (const SelectableContext& c : input.contexts) {
    const auto tokens = static_cast<double>(c.num_blocks > 0 ? c.num_tokens : 0);
    all += tokens;
    share += tokens * (c.block_tokens >= kLongBlock ? kLongShare : kChunkShare);
    first += static_cast<double>(always_kept_tokens(c));
  }
  if (input.keep_ratio) return static_cast<std::int64_t>(*input.keep_ratio * all + 1e-6);
  return static_cast<std::int64_t>(
      std::max({share, first + kBesidesFirst * all, static_cast<double>(options.least_tokens)}));
}

struct Candidate {
  std::int32_t context, block;
  float score;
};

/// Keeps the first block of every context, small contexts whole, and blocks that match the
/// question's words best. Blocks that are linked to these by a name are kept, too; the choice is
/// equal in all layers. It needs no query pass, so the only anchors are the beginnings, which hold
/// titles and subjects; the budget that SamKV spends on last blocks goes to matches. Without a
/// question the documents decide, as in SamKV.
class WordsSelector final : public Selector {
 public:
  explicit WordsSelector(const WordsOptions& options)
      : options_(options), samkv_(std::move(*selectors().make("samkv"))) {}

  bool needs_sketches(const SelectionInput& input) const override {
    return input.question.empty() && samkv_->needs_sketches(input);
  }

  Result<Selection> select(const SelectionInput& input) const override {
    if (input.question.empty()) return samkv_->select(input);
    const float fade = options_.fade;
    const double link_share = options_.link_share;
    const LexicalText text = lexical_text(input);
    const BlockScores matches = lexical_matches(input.contexts, text);
    BlockScores scores = spread(input.contexts, matches, fade);
    std::int64_t left = budget_of(input, options_);
    Selection::ContextBlocks kept;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(input.contexts.size()); ++i) {
      left -= always_kept_tokens(input.contexts[at(i)]);
      kept.emplace_back();
      for (std::int32_t b = 0; b < always_kept(input.contexts[at(i)]); ++b)
        kept.back().push_back(b);
    }
    std::string note;
    if (left < 0)
      note = "first blocks are always kept: " + std::to_string(-left) +
             " tokens more than the budget";
    if (left > 0 && link_share > 0) {
      // Links get what the words leave, and the words get what links do not use.
      const auto for_links = static_cast<std::int64_t>(link_share * static_cast<double>(left));
      left = take(input, scores, left - for_links, false, kept) + for_links;
      left = take(input, linked_scores(input.contexts, text, matches, fade), left, true, kept);
    }
    take(input, scores, left, false, kept);
    for (auto& blocks : kept) std::sort(blocks.begin(), blocks.end());
    Selection out = Selection::shared(input.num_layers, std::move(kept));
    out.scores = std::move(scores);
    out.note = std::move(note);
    return out;
  }

 private:
  /// Adds the best blocks that are not kept yet, until one does not fit; ties in prompt order.
  /// `scored_only` limits them to scores above 0. Returns the tokens left.
  static std::int64_t take(const SelectionInput& input, const BlockScores& scores,
                           std::int64_t left, bool scored_only, Selection::ContextBlocks& kept) {
    std::vector<Candidate> candidates;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(kept.size()); ++i) {
      const auto& has = kept[at(i)];
      for (std::int32_t b = 0; b < input.contexts[at(i)].num_blocks; ++b) {
        if (std::find(has.begin(), has.end(), b) != has.end() ||
            (scored_only && scores[at(i)][at(b)] <= 0))
          continue;
        candidates.push_back({i, b, scores[at(i)][at(b)]});
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    for (const Candidate& c : candidates) {
      const std::int64_t tokens = tokens_in(input.contexts[at(c.context)], c.block);
      if (tokens > left) break;
      left -= tokens;
      kept[at(c.context)].push_back(c.block);
    }
    return left;
  }

  const WordsOptions options_;
  /// With default options; it decides where there is no question.
  const std::unique_ptr<Selector> samkv_;
};

}  // namespace

void register_words(PlugRegistry<Selector>& selectors) {
  selectors.add("words", option_table(), [](const WordsOptions& options) {
    return std::make_unique<WordsSelector>(options);
  });
}

}  // namespace quire
