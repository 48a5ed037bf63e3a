#include "engine/answer/word_support.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/index.h"
#include "base/words.h"

namespace quire {
namespace {

constexpr double kSaturation = 1.2, kLengthShare = 0.75;

std::vector<std::string> different(std::vector<std::string> words) {
  std::ranges::sort(words);
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

}  // namespace

WordSupport::WordSupport(const Plan& plan, const std::vector<CitedText>& contexts,
                         std::string_view question, std::string_view language)
    : stemmer_(language) {
  question_ = different(split_words(question, stemmer_));
  std::size_t length = 0;
  for (std::size_t c = 0; c < plan.contexts.size(); ++c) {
    ContextWords& words = contexts_.emplace_back();
    const auto& blocks = plan.contexts[c].blocks;
    words.blocks.resize(blocks.size());
    num_blocks_ += blocks.size();
    if (c >= contexts.size()) continue;
    const CitedText& text = contexts[c];
    for (auto& word : split_words(text.title, stemmer_)) ++words.counts[word], ++words.length;
    std::vector<std::vector<std::string>> of_block(blocks.size());
    for (Word& word : placed_words(text.text, stemmer_)) {
      ++words.counts[word.text];
      ++words.length;
      for (std::size_t b = 0; b < std::min(blocks.size(), text.blocks.size()); ++b) {
        const auto& [begin, end] = text.blocks[b];
        if (word.begin >= begin && word.begin < end && blocks[b].kept_layers > 0)
          of_block[b].push_back(word.text);
      }
    }
    for (std::size_t b = 0; b < blocks.size(); ++b)
      words.blocks[b] = different(std::move(of_block[b]));
    for (const auto& [word, count] : words.counts) ++document_counts_[word];
    length += words.length;
  }
  if (!contexts_.empty())
    mean_length_ = static_cast<double>(length) / static_cast<double>(contexts_.size());
}

double WordSupport::rarity(const std::string& word) const {
  const auto found = document_counts_.find(word);
  const double holding = found == document_counts_.end() ? 1 : found->second;
  return std::log(1 + (static_cast<double>(contexts_.size()) - holding + 0.5) / (holding + 0.5));
}

std::optional<double> WordSupport::found(std::string_view part) {
  std::map<std::string, double> wanted;
  double all = 0;
  for (const std::string& word : split_words(part, stemmer_)) {
    if (std::ranges::binary_search(question_, word) || wanted.contains(word)) continue;
    all += wanted[word] = rarity(word);
  }
  if (wanted.empty()) return std::nullopt;
  double most = 0;
  for (const ContextWords& c : contexts_) {
    double held = 0;
    for (const auto& [word, weight] : wanted) held += c.counts.contains(word) ? weight : 0;
    most = std::max(most, held / all);
  }
  return most;
}

std::vector<double> WordSupport::of(std::string_view part) {
  std::vector<double> out(num_blocks_);
  std::map<std::string, double> wanted;
  for (const std::string& word : question_) wanted[word] = 1;
  for (const std::string& word : split_words(part, stemmer_)) wanted[word] = 1;
  const auto total = static_cast<double>(contexts_.size());
  for (auto& [word, weight] : wanted) weight = document_counts_.contains(word) ? rarity(word) : 0;
  std::vector<double> scores;
  double mean = 0;
  for (const ContextWords& c : contexts_) {
    double score = 0;
    const double norm = kSaturation * (1 - kLengthShare +
                                       kLengthShare * static_cast<double>(c.length) /
                                           std::max(mean_length_, 1.0));
    for (const auto& [word, weight] : wanted) {
      const auto found = c.counts.find(word);
      if (found == c.counts.end()) continue;
      const double count = found->second;
      score += weight * count * (kSaturation + 1) / (count + norm);
    }
    scores.push_back(score);
    mean += score / total;
  }
  // A lone context is not above the mean, and has all the support there is.
  if (scores.size() == 1) mean = 0;
  double sum = 0;
  std::size_t at = 0;
  for (std::size_t c = 0; c < contexts_.size(); ++c) {
    const double share = std::max(0.0, scores[c] - mean);
    std::vector<double> of_block;
    double all = 0;
    for (const auto& words : contexts_[c].blocks) {
      double covered = 0;
      for (const std::string& word : words)
        if (const auto found = wanted.find(word); found != wanted.end()) covered += found->second;
      of_block.push_back(covered * covered);
      all += covered * covered;
    }
    for (std::size_t b = 0; b < of_block.size(); ++b, ++at) {
      if (all > 0) out[at] = share * of_block[b] / all;
      sum += out[at];
    }
  }
  if (sum > 0)
    for (double& x : out) x /= sum;
  return out;
}

}  // namespace quire
