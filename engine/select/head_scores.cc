#include "engine/select/head_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/index.h"
#include "engine/select/block_scores.h"

namespace quire {
namespace {

std::int64_t tokens_in(const SelectableContext& c, std::size_t block) {
  return std::min<std::int64_t>(c.block_tokens,
                                c.num_tokens - static_cast<std::int64_t>(block) * c.block_tokens);
}

/// Blocks [first, end) of a context that are chosen together.
struct Run {
  std::int32_t context, first, end;
  std::int64_t tokens = 0;
  float score = 0;  ///< mean over its blocks; NaN counts as least
};

/// Returns the runs of all contexts, best first, ties in prompt order.
std::vector<Run> runs_of(const SelectionInput& input, const BlockScores& scores,
                         std::int64_t unit) {
  std::vector<Run> runs;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(input.contexts.size()); ++i) {
    const SelectableContext& c = input.contexts[at(i)];
    if (c.num_blocks == 0) continue;
    const auto step = static_cast<std::int32_t>(std::max<std::int64_t>(1, unit / c.block_tokens));
    for (std::int32_t b = 0; b < c.num_blocks; b += step) {
      Run& run = runs.emplace_back(Run{i, b, std::min(b + step, c.num_blocks)});
      for (std::int32_t k = run.first; k < run.end; ++k) {
        run.tokens += tokens_in(c, at(k));
        run.score += scores[at(i)][at(k)] / static_cast<float>(run.end - run.first);
      }
      if (std::isnan(run.score)) run.score = -std::numeric_limits<float>::infinity();
    }
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const Run& a, const Run& b) { return a.score > b.score; });
  return runs;
}

}  // namespace

Status add_head_scores(const RopeTable& rope, std::int32_t head_dim, const AskingHead& head,
                       std::span<const HeadContext> contexts, float weight, BlockScores& scores) {
  const std::int64_t words = count_of(head.outside), dim = head_dim;
  if (words == 0) return {};
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  // One word at a time would read every key once a word; one context at a time reads them once.
  std::vector<std::vector<float>> logits(contexts.size());  // [context][word, token]
  std::vector<float> rotated(at(words * dim));
  std::vector<std::int32_t> positions(at(words));
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const HeadContext& c = contexts[i];
    if (c.num_tokens == 0) continue;
    const std::int64_t first = std::clamp<std::int64_t>(c.distance, 0,
                                                        rope.max_positions() - words);
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
    QUIRE_RETURN_IF_ERROR(rope_rotate(rope, {.x = head.queries.data(),
                                             .out = rotated.data(),
                                             .positions = positions.data(),
                                             .rows = words,
                                             .num_heads = 1,
                                             .ldx = dim,
                                             .ldo = dim}));
    logits[i].resize(at(words * c.num_tokens));
    for (std::int64_t w = 0; w < words; ++w) {
      block_scores(std::span(rotated).subspan(at(w * dim), at(dim)), c.keys,
                   std::span(logits[i]).subspan(at(w * c.num_tokens), at(c.num_tokens)));
    }
  }
  const float share = weight / static_cast<float>(words);
  for (std::int64_t w = 0; w < words; ++w) {
    float largest = head.outside[at(w)];
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      float* const row = logits[i].data() + w * contexts[i].num_tokens;
      for (std::int64_t t = 0; t < contexts[i].num_tokens; ++t) {
        row[t] *= scale;
        largest = std::max(largest, row[t]);
      }
    }
    double sum = std::exp(head.outside[at(w)] - largest);
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      float* const row = logits[i].data() + w * contexts[i].num_tokens;
      for (std::int64_t t = 0; t < contexts[i].num_tokens; ++t) {
        row[t] = std::exp(row[t] - largest);
        sum += row[t];
      }
    }
    const float factor = share / static_cast<float>(sum);
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      const float* const row = logits[i].data() + w * contexts[i].num_tokens;
      for (std::int64_t t = 0; t < contexts[i].num_tokens; ++t)
        scores[i][at(t / contexts[i].block_tokens)] += factor * row[t];
    }
  }
  return {};
}

Result<BlockScores> head_scores(const SelectionInput& input) {
  const SelectionHeads& heads = *input.heads;
  const HeadQueries& asked = *input.query_pass->heads;
  const std::int32_t group = input.num_heads / input.num_kv_heads, dim = input.head_dim;
  const auto pairs = heads.pairs(group);
  BlockScores scores;
  for (const SelectableContext& c : input.contexts) scores.emplace_back(at(c.num_blocks), 0.0f);
  const std::int64_t words = asked.num_words;
  const float weight = 1 / static_cast<float>(heads.heads.size());
  std::vector<std::vector<float>> keys(input.contexts.size());
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    std::vector<HeadContext> contexts(input.contexts.size());
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      const SelectableContext& c = input.contexts[i];
      const SelectionKeysView* view = c.num_blocks > 0
                                          ? input.selection_keys(static_cast<std::int32_t>(i))
                                          : nullptr;
      if (view == nullptr) continue;
      keys[i].resize(at(c.num_tokens * dim));
      view->keys(p, 0, c.num_tokens, keys[i]);
      contexts[i] = {c.num_tokens, c.block_tokens,
                     // Without gaps a question may stand before documents that are not kept whole.
                     std::max(asked.first_position - c.offset, c.num_tokens), keys[i]};
    }
    for (std::size_t h = 0; h < heads.heads.size(); ++h) {
      const SelectionHeads::Head& head = heads.heads[h];
      if (!(SelectionHeads::Pair{head.layer, head.head / group} == pairs[p])) continue;
      const auto first = static_cast<std::int64_t>(h) * words;
      QUIRE_RETURN_IF_ERROR(
          add_head_scores(*input.rope, dim,
                          {std::span(asked.queries).subspan(at(first * dim), at(words * dim)),
                           std::span(asked.outside).subspan(at(first), at(words))},
                          contexts, weight, scores));
    }
  }
  return scores;
}

BlockScores smooth(std::span<const SelectableContext> contexts, const BlockScores& scores,
                   float share) {
  BlockScores out = scores;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    std::vector<float> own(scores[i].size());
    for (std::size_t b = 0; b < own.size(); ++b)
      own[b] = scores[i][b] / static_cast<float>(tokens_in(contexts[i], b));
    for (std::size_t b = 0; b < own.size(); ++b) {
      const float before = b > 0 ? own[b - 1] : 0, after = b + 1 < own.size() ? own[b + 1] : 0;
      out[i][b] = own[b] + share * (before + after);
    }
  }
  return out;
}

BlockScores weigh_by_words(const SelectionInput& input, BlockScores scores, float links) {
  constexpr float kLeast = 0.1f;
  const LexicalText text = lexical_text(input);
  std::vector<float> words = context_matches(text);
  if (links > 0) words = follow_titles(text, words, links);
  for (std::size_t i = 0; i < scores.size(); ++i)
    for (float& s : scores[i]) s *= (words[i] + kLeast) * (words[i] + kLeast);
  return scores;
}

Selection best_blocks(const SelectionInput& input, BlockScores scores, std::int64_t budget,
                      std::int64_t unit) {
  const std::vector<Run> runs = runs_of(input, scores, unit);
  Selection::ContextBlocks kept(input.contexts.size());
  std::int64_t used = 0;
  for (const Run& r : runs) {
    if (budget <= 0 || (used > 0 && 2 * (budget - used) < r.tokens)) break;
    used += r.tokens;
    for (std::int32_t b = r.first; b < r.end; ++b) kept[at(r.context)].push_back(b);
  }
  for (auto& list : kept) std::sort(list.begin(), list.end());
  Selection out = Selection::shared(input.num_layers, std::move(kept));
  out.scores = std::move(scores);
  return out;
}

}  // namespace quire
