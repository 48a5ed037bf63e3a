#include "engine/select/lexical_scores.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <unordered_map>

#include "base/index.h"

namespace quire {
namespace {

/// The constant k1 of BM25; blocks are equally long, so lengths need no normalisation.
constexpr float kSaturation = 1.2f;
constexpr float kFollowing = 0.5f;

/// A word, or a pair of neighbouring words.
std::uint64_t term(std::int32_t word) { return static_cast<std::uint32_t>(word); }
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
  /// Calls `found(number)` for each of the question's terms that begins with word `i`.
  template <class Found>
  void each(std::span<const LexicalText::Word> words, std::size_t i, Found&& found) const {
    const auto one = numbers_.find(term(words[i].id));
    if (one == numbers_.end()) return;  // a pair begins with one of the question's words
    found(one->second);
    if (i + 1 >= words.size()) return;
    if (const auto two = numbers_.find(term(words[i].id, words[i + 1].id)); two != numbers_.end())
      found(two->second);
  }

 private:
  std::unordered_map<std::uint64_t, std::size_t> numbers_;
};

/// A block of the prompt with its term counts: (number, count), numbers ascending.
struct Block {
  std::size_t context, block;
  std::vector<std::pair<std::size_t, float>> counts;
};

std::vector<Block> count_terms(std::span<const SelectableContext> contexts, const LexicalText& text,
                               const Terms& terms) {
  std::vector<Block> blocks;
  std::vector<std::size_t> seen;
  for (std::size_t c = 0; c < contexts.size(); ++c) {
    const auto& words = text.contexts[c];
    std::size_t next = 0;
    for (std::int32_t b = 0; b < contexts[c].num_blocks && !words.empty(); ++b) {
      const std::int64_t end = (std::int64_t{b} + 1) * contexts[c].block_tokens;
      seen.clear();
      for (; next < words.size() && words[next].token < end; ++next)
        terms.each(words, next, [&](std::size_t t) { seen.push_back(t); });
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

LexicalText lexical_text(const SelectionInput& input) {
  LexicalText text;
  std::unordered_map<std::string, std::int32_t> ids;
  const auto read = [&](std::span<const std::int32_t> tokens) {
    std::vector<LexicalText::Word> words;
    if (!input.words) {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        words.push_back({tokens[i], static_cast<std::int32_t>(i)});
      return words;
    }
    for (TokenWord& word : input.words(tokens)) {
      const auto id = static_cast<std::int32_t>(ids.size());
      words.push_back({ids.try_emplace(std::move(word.text), id).first->second, word.token});
    }
    return words;
  };
  const auto question = input.question_words.empty() ? input.question : input.question_words;
  for (const LexicalText::Word& word : read(question)) text.question.push_back(word.id);
  for (const SelectableContext& c : input.contexts) text.contexts.push_back(read(c.token_ids));
  for (const SelectableContext& c : input.contexts) {
    std::vector<std::int32_t>& title = text.titles.emplace_back();
    if (!input.title_words || c.title.empty()) continue;
    for (std::string& word : input.title_words(c.title)) {
      const auto id = static_cast<std::int32_t>(ids.size());
      title.push_back(ids.try_emplace(std::move(word), id).first->second);
    }
  }
  return text;
}

BlockScores lexical_matches(std::span<const SelectableContext> contexts, const LexicalText& text) {
  BlockScores out;
  for (const SelectableContext& c : contexts) out.emplace_back(at(c.num_blocks));
  const Terms terms(text.question);
  const std::vector<Block> blocks = count_terms(contexts, text, terms);
  const std::vector<float> own = match(blocks, terms.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) out[blocks[i].context][blocks[i].block] = own[i];
  return out;
}

std::vector<float> context_matches(const LexicalText& text) {
  constexpr float kLengthShare = 0.75f;  // the constant b of BM25
  const std::set<std::int32_t> terms(text.question.begin(), text.question.end());
  const std::size_t num_contexts = text.contexts.size();
  std::vector<std::unordered_map<std::int32_t, float>> counts(num_contexts);
  std::unordered_map<std::int32_t, float> with;
  float texts = 0, words = 0;
  for (std::size_t i = 0; i < num_contexts; ++i) {
    if (text.contexts[i].empty()) continue;
    texts += 1;
    words += static_cast<float>(text.contexts[i].size());
    for (const LexicalText::Word& word : text.contexts[i])
      if (terms.contains(word.id)) counts[i][word.id] += 1;
    for (const auto& [t, count] : counts[i]) with[t] += 1;
  }
  std::vector<float> out(num_contexts);
  for (std::size_t i = 0; i < num_contexts; ++i) {
    const float length = static_cast<float>(text.contexts[i].size()) * texts / words;
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

std::vector<float> follow_titles(const LexicalText& text, std::span<const float> matches,
                                 float share) {
  std::unordered_map<std::int32_t, std::vector<std::size_t>> beginning;  // titles by first word
  for (std::size_t i = 0; i < text.titles.size(); ++i)
    if (!text.titles[i].empty()) beginning[text.titles[i].front()].push_back(i);
  std::vector<float> best(matches.size());
  for (std::size_t from = 0; from < text.contexts.size() && !beginning.empty(); ++from) {
    const std::vector<LexicalText::Word>& words = text.contexts[from];
    for (std::size_t w = 0; w < words.size(); ++w) {
      const auto named = beginning.find(words[w].id);
      if (named == beginning.end()) continue;
      for (const std::size_t i : named->second) {
        const std::vector<std::int32_t>& title = text.titles[i];
        // A document names itself in its header, and in each of its chunks.
        if (title == text.titles[from] || words.size() - w < title.size()) continue;
        const bool here = std::equal(
            title.begin(), title.end(), words.begin() + static_cast<std::ptrdiff_t>(w),
            [](std::int32_t id, const LexicalText::Word& word) { return id == word.id; });
        if (here) best[i] = std::max(best[i], matches[from]);
      }
    }
  }
  std::vector<float> out(matches.begin(), matches.end());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += share * best[i];
  return out;
}

BlockScores spread(std::span<const SelectableContext> contexts, const BlockScores& matches,
                   float fade) {
  BlockScores out = matches;
  for (std::size_t c = 0; c < contexts.size(); ++c) {
    float before = 0;
    for (std::size_t b = 0; b < out[c].size(); ++b) {
      const float own = matches[c][b];
      out[c][b] += before + (b + 1 < out[c].size() ? kFollowing * matches[c][b + 1] : 0);
      before = fade * std::max(before, own);
    }
  }
  return out;
}

BlockScores lexical_scores(std::span<const SelectableContext> contexts, const LexicalText& text) {
  return spread(contexts, lexical_matches(contexts, text));
}

}  // namespace quire
