#include "engine/select/lexical_scores.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/index.h"

namespace quire {
namespace {

/// The constant k1 of BM25; blocks are equally long, so lengths need no normalisation.
constexpr float kSaturation = 1.2f;
constexpr float kFollowing = 0.5f;

/// A token, or a bigram.
std::uint64_t term(std::int32_t token) { return static_cast<std::uint32_t>(token); }
std::uint64_t term(std::int32_t first, std::int32_t second) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(first)) + 1) << 32 |
         static_cast<std::uint32_t>(second);
}

/// Assigns numbers to the question's terms.
class Terms {
 public:
  explicit Terms(std::span<const std::int32_t> question) {
    for (std::size_t i = 0; i < question.size(); ++i) {
      numbers_.try_emplace(term(question[i]), numbers_.size());
      if (i + 1 < question.size())
        numbers_.try_emplace(term(question[i], question[i + 1]), numbers_.size());
    }
  }
  std::size_t size() const { return numbers_.size(); }
  /// Calls `found(number)` for each of the question's terms that begins in [first, end).
  template <class Found>
  void each(std::span<const std::int32_t> tokens, std::size_t first, std::size_t end,
            Found&& found) const {
    for (std::size_t i = first; i < end; ++i) {
      const auto one = numbers_.find(term(tokens[i]));
      if (one == numbers_.end()) continue;  // a bigram begins with one of the question's tokens
      found(one->second);
      if (i + 1 >= tokens.size()) continue;
      if (const auto two = numbers_.find(term(tokens[i], tokens[i + 1])); two != numbers_.end())
        found(two->second);
    }
  }

 private:
  std::unordered_map<std::uint64_t, std::size_t> numbers_;
};

/// A block of the prompt with its term counts: (number, count), numbers ascending.
struct Block {
  std::size_t context, block;
  std::vector<std::pair<std::size_t, float>> counts;
};

std::vector<Block> count_terms(std::span<const SelectableContext> contexts, const Terms& terms) {
  std::vector<Block> blocks;
  std::vector<std::size_t> seen;
  for (std::size_t c = 0; c < contexts.size(); ++c) {
    const auto& tokens = contexts[c].token_ids;
    for (std::int32_t b = 0; b < contexts[c].num_blocks && !tokens.empty(); ++b) {
      const std::size_t first = at(std::int64_t{b} * contexts[c].block_tokens);
      seen.clear();
      terms.each(tokens, first, std::min(tokens.size(), first + at(contexts[c].block_tokens)),
                 [&](std::size_t t) { seen.push_back(t); });
      std::sort(seen.begin(), seen.end());
      Block& block = blocks.emplace_back(Block{c, at(b), {}});
      for (const std::size_t t : seen) {
        if (block.counts.empty() || block.counts.back().first != t)
          block.counts.emplace_back(t, 0.0f);
        block.counts.back().second += 1;
      }
    }
  }
  return blocks;
}

/// Returns the BM25 scores of the blocks, in prompt order.
std::vector<float> match(const std::vector<Block>& blocks, std::size_t num_terms) {
  std::vector<float> with(num_terms), scores;
  for (const Block& b : blocks) {
    for (const auto& [t, count] : b.counts) with[t] += 1;
  }
  const auto all = static_cast<float>(blocks.size());
  for (const Block& b : blocks) {
    float sum = 0;
    for (const auto& [t, count] : b.counts) {
      sum += std::log(1 + (all - with[t] + 0.5f) / (with[t] + 0.5f)) * count * (kSaturation + 1) /
             (count + kSaturation);
    }
    scores.push_back(sum);
  }
  return scores;
}

}  // namespace

BlockScores lexical_matches(std::span<const SelectableContext> contexts,
                            std::span<const std::int32_t> question) {
  BlockScores out;
  for (const SelectableContext& c : contexts) out.emplace_back(at(c.num_blocks));
  const Terms terms(question);
  const std::vector<Block> blocks = count_terms(contexts, terms);
  const std::vector<float> own = match(blocks, terms.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) out[blocks[i].context][blocks[i].block] = own[i];
  return out;
}

std::vector<float> context_matches(std::span<const SelectableContext> contexts,
                                   std::span<const std::int32_t> question) {
  constexpr float kLengthShare = 0.75f;  // the constant b of BM25
  const std::set<std::int32_t> terms(question.begin(), question.end());
  std::vector<std::unordered_map<std::int32_t, float>> counts(contexts.size());
  std::unordered_map<std::int32_t, float> with;
  float texts = 0, tokens = 0;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    if (contexts[i].token_ids.empty()) continue;
    texts += 1;
    tokens += static_cast<float>(contexts[i].token_ids.size());
    for (const std::int32_t t : contexts[i].token_ids)
      if (terms.contains(t)) counts[i][t] += 1;
    for (const auto& [t, count] : counts[i]) with[t] += 1;
  }
  std::vector<float> out(contexts.size());
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const float length = static_cast<float>(contexts[i].token_ids.size()) * texts / tokens;
    for (const std::int32_t t : terms) {
      const auto found = counts[i].find(t);
      if (found == counts[i].end()) continue;
      out[i] += std::log(1 + (texts - with[t] + 0.5f) / (with[t] + 0.5f)) * found->second *
                (kSaturation + 1) /
                (found->second + kSaturation * (1 - kLengthShare + kLengthShare * length));
    }
  }
  return out;
}

BlockScores spread(std::span<const SelectableContext> contexts, const BlockScores& matches,
                   float fade) {
  BlockScores out = matches;
  for (std::size_t c = 0; c < contexts.size(); ++c) {
    if (contexts[c].token_ids.empty()) continue;
    float before = 0;
    for (std::size_t b = 0; b < out[c].size(); ++b) {
      const float own = matches[c][b];
      out[c][b] += before + (b + 1 < out[c].size() ? kFollowing * matches[c][b + 1] : 0);
      before = fade * std::max(before, own);
    }
  }
  return out;
}

BlockScores lexical_scores(std::span<const SelectableContext> contexts,
                           std::span<const std::int32_t> question) {
  return spread(contexts, lexical_matches(contexts, question));
}

}  // namespace quire
