#include "engine/answer/cited_blocks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/index.h"

namespace quire {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Returns the bytes of the mark that ends a sentence at `at`; 0: none. Full-width marks need no
/// white space after them.
std::size_t sentence_mark(std::string_view text, std::size_t at) {
  // U+3002, U+FF01, U+FF1F
  constexpr std::array<std::string_view, 3> kFullWidth = {"\xE3\x80\x82", "\xEF\xBC\x81",
                                                          "\xEF\xBC\x9F"};
  for (const std::string_view mark : kFullWidth) {
    if (text.substr(at, mark.size()) == mark) return mark.size();
  }
  if (text[at] == '\n') return 1;
  const bool mark = text[at] == '.' || text[at] == '!' || text[at] == '?';
  return mark && at + 1 < text.size() && is_space(text[at + 1]) ? 1 : 0;
}

/// Sums the shares that the tokens of one sentence give to each block.
std::vector<double> sentence_shares(const Attribution& a,
                                    std::span<const std::int32_t> sentence_of_token,
                                    std::int32_t sentence) {
  std::vector<double> sums(to_size(a.num_blocks));
  for (std::size_t t = 0; t < sentence_of_token.size(); ++t) {
    if (sentence_of_token[t] != sentence) continue;
    for (std::size_t b = 0; b < sums.size(); ++b) sums[b] += double{a.share[t * sums.size() + b]};
  }
  return sums;
}

struct BlockPlace {
  std::int32_t context, block;
};

/// Returns ranges of neighbouring blocks above the threshold.
std::vector<CitedBlocks> runs_of(std::span<const BlockPlace> places,
                                 const std::vector<double>& weights, double threshold) {
  std::vector<CitedBlocks> runs;
  for (std::size_t b = 0; b < places.size(); ++b) {
    if (weights[b] < threshold || weights[b] <= 0) continue;
    const bool joins = !runs.empty() && runs.back().context == places[b].context &&
                       runs.back().first_block + runs.back().num_blocks == places[b].block;
    if (!joins) runs.push_back({0, 0, places[b].context, places[b].block, 0, 0, std::nullopt});
    ++runs.back().num_blocks;
    runs.back().weight += weights[b];
  }
  return runs;
}

/// Returns each context of enough confidence once, with its strongest block and the neighbours.
std::vector<CitedBlocks> trusted(std::span<const BlockPlace> places,
                                 const std::vector<double>& weights,
                                 const std::vector<ContextEvidence>& evidence,
                                 const CitationRule& rule) {
  std::vector<CitedBlocks> out;
  for (std::size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    const std::int32_t context = places[begin].context;
    while (end < places.size() && places[end].context == context) ++end;
    const double confidence = rule.confidence.of(evidence[at(context)]);
    std::size_t first = begin;
    for (std::size_t b = begin; b < end; ++b)
      if (weights[b] > weights[first]) first = b;
    const double least = rule.neighbour * weights[first];
    if (confidence < rule.least_confidence || !(weights[first] > 0)) continue;
    std::size_t last = first;
    while (first > begin && weights[first - 1] >= least && weights[first - 1] > 0) --first;
    while (last + 1 < end && weights[last + 1] >= least && weights[last + 1] > 0) ++last;
    CitedBlocks& cited = out.emplace_back();
    cited.context = context;
    cited.first_block = places[first].block;
    cited.num_blocks = static_cast<std::int32_t>(last - first + 1);
    for (std::size_t b = first; b <= last; ++b) cited.weight += weights[b];
    cited.confidence = confidence;
  }
  return out;
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> answer_sentences(std::string_view answer,
                                                                  std::size_t shortest) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  const auto trimmed = [answer](std::size_t begin, std::size_t end) {
    while (begin < end && is_space(answer[begin])) ++begin;
    while (end > begin && is_space(answer[end - 1])) --end;
    return std::pair(begin, end);
  };
  std::size_t begin = 0;
  for (std::size_t at = 0; at < answer.size();) {
    const std::size_t mark = sentence_mark(answer, at);
    at += std::max<std::size_t>(mark, 1);
    if (mark == 0) continue;
    const auto part = trimmed(begin, at);
    // The sentence continues.
    if (part.second - part.first < std::max<std::size_t>(shortest, 1)) continue;
    out.push_back(part);
    begin = at;
  }
  const auto rest = trimmed(begin, answer.size());
  if (rest.first == rest.second) return out;
  if (rest.second - rest.first < shortest && !out.empty()) {
    out.back().second = rest.second;
  } else {
    out.push_back(rest);
  }
  return out;
}

CitedAnswer cite(const Plan& plan, const Attribution& attribution, std::string_view answer,
                 std::span<const std::size_t> token_ends, const CitationRule& rule,
                 WordSupport* words) {
  std::vector<BlockPlace> places;
  for (std::size_t c = 0; c < plan.contexts.size(); ++c) {
    for (std::size_t b = 0; b < plan.contexts[c].blocks.size(); ++b)
      places.push_back({static_cast<std::int32_t>(c), static_cast<std::int32_t>(b)});
  }
  const auto tokens = to_size(attribution.num_tokens);
  if (count_of(places) != attribution.num_blocks || token_ends.size() < tokens) return {};
  const auto sentences = answer_sentences(answer, rule.shortest_sentence);
  if (sentences.empty()) return {};
  std::vector<std::int32_t> sentence_of_token(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::size_t last = token_ends[t] > 0 ? token_ends[t] - 1 : 0;
    std::size_t s = 0;
    while (s + 1 < sentences.size() && sentences[s + 1].first <= last) ++s;
    sentence_of_token[t] = static_cast<std::int32_t>(s);
  }
  CitedAnswer out;
  for (std::size_t s = 0; s < sentences.size(); ++s) {
    std::vector<double> weights = sentence_shares(attribution, sentence_of_token,
                                                  static_cast<std::int32_t>(s));
    double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (total > 0)
      for (double& w : weights) w /= total;
    if (words) {
      const auto [begin, end] = sentences[s];
      const std::string_view sentence = answer.substr(begin, end - begin);
      if (words->found(sentence).value_or(1) < rule.least_found) {
        out.unsupported.push_back(sentences[s]);
        continue;
      }
      const std::vector<double> found = words->of(sentence);
      const double part = std::accumulate(found.begin(), found.end(), 0.0) > 0
                              ? (total > 0 ? rule.words : 1.0)
                              : 0.0;
      for (std::size_t b = 0; b < std::min(found.size(), weights.size()); ++b)
        weights[b] = part * found[b] + (1 - part) * weights[b];
      if (part > 0) total = 1;
    }
    if (!(total > 0)) {
      out.unsupported.push_back(sentences[s]);
      continue;
    }
    std::vector<CitedBlocks> runs;
    if (words) {
      const auto [begin, end] = sentences[s];
      runs = trusted(places, weights, words->evidence(answer.substr(begin, end - begin)), rule);
    } else {
      const double best = *std::max_element(weights.begin(), weights.end());
      runs = runs_of(places, weights, std::min(rule.min_weight, best));
    }
    if (runs.empty()) out.unsupported.push_back(sentences[s]);
    std::ranges::stable_sort(runs, std::greater(), [](const CitedBlocks& r) {
      return std::pair(r.confidence.value_or(0), r.weight);
    });
    if (runs.size() > static_cast<std::size_t>(rule.most_per_sentence))
      runs.resize(to_size(rule.most_per_sentence));
    while (runs.size() > 1 && runs.back().confidence.value_or(1) < rule.least_further)
      runs.pop_back();
    for (CitedBlocks& r : runs) {
      r.answer_begin = sentences[s].first;
      r.answer_end = sentences[s].second;
      out.blocks.push_back(r);
    }
  }
  return out;
}

}  // namespace quire
