#include "engine/select/linked_scores.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::size_t kSources = 8;  ///< most blocks whose names are followed, best first
/// Least score of these blocks, relative to the best one.
constexpr float kSourceMatch = 0.5f;
/// A name occurs in at most a fifth of the documents and an eighth of the blocks, where two are
/// always allowed: frequent bigrams link nothing.
constexpr std::size_t kFew = 2, kDocumentsPart = 5, kBlocksPart = 8;
/// Weight of a block's own match with the question, and share of the largest overlap at which a
/// score saturates.
constexpr float kRelation = 0.5f, kEnough = 0.5f;

using Pair = std::uint64_t;

Pair pair_of(std::int32_t first, std::int32_t second) {
  return static_cast<Pair>(static_cast<std::uint32_t>(first)) << 32 |
         static_cast<std::uint32_t>(second);
}

struct Block {
  std::size_t context, block;
  std::vector<Pair> pairs;  ///< bigrams that begin in it, each once
};

struct Occurrence {
  std::size_t blocks = 0, documents = 0, last_document = 0;
};

class Links {
 public:
  Links(std::span<const SelectableContext> contexts, const LexicalText& text) {
    for (std::size_t i = 0; i + 1 < text.question.size(); ++i)
      asked_.insert(pair_of(text.question[i], text.question[i + 1]));
    for (std::size_t c = 0; c < contexts.size(); ++c) add(contexts[c], text.contexts[c], c);
    most_documents_ = std::max(kFew, contexts.size() / kDocumentsPart);
    most_blocks_ = std::max(kFew, blocks_.size() / kBlocksPart);
  }
  const std::vector<Block>& blocks() const { return blocks_; }

  bool is_name(Pair pair) const {
    const Occurrence& seen = seen_.at(pair);
    return seen.blocks >= 2 && seen.blocks <= most_blocks_ && seen.documents <= most_documents_ &&
           !asked_.contains(pair);
  }
  /// Returns the weight of sharing the name, which is larger if fewer blocks have it.
  float weight(Pair pair) const {
    return std::log(1 +
                    static_cast<float>(blocks_.size()) / static_cast<float>(seen_.at(pair).blocks));
  }

 private:
  void add(const SelectableContext& context, std::span<const LexicalText::Word> words,
           std::size_t c) {
    std::size_t next = 0;
    for (std::int32_t b = 0; b < context.num_blocks; ++b) {
      Block& block = blocks_.emplace_back(Block{c, at(b), {}});
      const std::int64_t end = (std::int64_t{b} + 1) * context.block_tokens;
      for (; next + 1 < words.size() && words[next].token < end; ++next)
        block.pairs.push_back(pair_of(words[next].id, words[next + 1].id));
      std::sort(block.pairs.begin(), block.pairs.end());
      block.pairs.erase(std::unique(block.pairs.begin(), block.pairs.end()), block.pairs.end());
      for (const Pair pair : block.pairs) {
        Occurrence& seen = seen_[pair];
        seen.blocks += 1;
        if (seen.documents == 0 || seen.last_document != c) seen.documents += 1;
        seen.last_document = c;
      }
    }
  }
  std::vector<Block> blocks_;
  std::unordered_map<Pair, Occurrence> seen_;
  std::unordered_set<Pair> asked_;
  std::size_t most_documents_ = 0, most_blocks_ = 0;
};

/// Returns the indices of the best matching blocks, best first.
std::vector<std::size_t> best_of(const std::vector<float>& own) {
  const float most = own.empty() ? 0 : *std::max_element(own.begin(), own.end());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i] > 0 && own[i] >= kSourceMatch * most) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return own[a] > own[b]; });
  order.resize(std::min(order.size(), kSources));
  return order;
}

}  // namespace

BlockScores linked_scores(std::span<const SelectableContext> contexts, const LexicalText& text,
                          const BlockScores& matches, float fade) {
  BlockScores out;
  for (const SelectableContext& c : contexts) out.emplace_back(at(c.num_blocks));
  const Links links(contexts, text);
  const std::vector<Block>& blocks = links.blocks();
  std::vector<float> own;
  for (const Block& b : blocks) own.push_back(matches[b.context][b.block]);
  const std::vector<std::size_t> sources = best_of(own);
  if (sources.empty()) return out;
  const float best = own[sources.front()];
  std::unordered_map<Pair, float> names;  // score of the best block that holds it
  for (const std::size_t source : sources) {
    const float match = own[source] / best * (own[source] / best);
    for (std::size_t i = source;
         i < std::min(blocks.size(), source + 2) && blocks[i].context == blocks[source].context;
         ++i) {
      for (const Pair pair : blocks[i].pairs) {
        if (!links.is_name(pair)) continue;
        float& value = names[pair];
        value = std::max(value, match);
      }
    }
  }
  std::vector<float> shared(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (std::find(sources.begin(), sources.end(), i) != sources.end()) continue;
    for (const Pair pair : blocks[i].pairs) {
      if (const auto name = names.find(pair); name != names.end())
        shared[i] += name->second * links.weight(pair);
    }
  }
  const float most = *std::max_element(shared.begin(), shared.end());
  if (most <= 0) return out;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (shared[i] <= 0) continue;
    out[blocks[i].context][blocks[i].block] = (1 - kRelation) *
                                                  std::min(1.0f, shared[i] / (kEnough * most)) +
                                              kRelation * std::min(1.0f, own[i] / (kEnough * best));
  }
  return spread(contexts, out, fade);
}

}  // namespace quire
