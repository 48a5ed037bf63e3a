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
    for (auto& word : split_words(text.title, stemmer_)) {
      ++words.counts[word];
      ++words.length;
      words.title.push_back(std::move(word));
    }
    words.title = different(std::move(words.title));
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

double WordSupport::bm25(const ContextWords& context, const Weights& wanted) const {
  double score = 0;
  const double norm = kSaturation * (1 - kLengthShare +
                                     kLengthShare * static_cast<double>(context.length) /
                                         std::max(mean_length_, 1.0));
  for (const auto& [word, weight] : wanted) {
    const auto found = context.counts.find(word);
    if (found == context.counts.end()) continue;
    const double count = found->second;
    score += weight * count * (kSaturation + 1) / (count + norm);
  }
  return score;
}

std::vector<ContextEvidence> WordSupport::evidence(std::string_view part) {
  Weights of_question, wanted;
  for (const std::string& word : question_) of_question[word] = wanted[word] = rarity(word);
  for (const std::string& word : split_words(part, stemmer_)) wanted[word] = rarity(word);
  const auto held = [](const Weights& words, auto&& holds) {
    double sum = 0, all = 0;
    for (const auto& [word, weight] : words) {
      all += weight;
      if (holds(word)) sum += weight;
    }
    return all > 0 ? sum / all : 0;
  };
  double best = 0, second = 0;
  std::vector<ContextEvidence> out;
  for (const ContextWords& c : contexts_) {
    ContextEvidence& e = out.emplace_back();
    e.score = bm25(c, wanted);
    second = std::max(second, std::min(best, e.score));
    best = std::max(best, e.score);
    e.question = held(of_question, [&c](const std::string& w) { return c.counts.contains(w); });
    if (c.title.empty()) continue;
    Weights title;
    for (const std::string& word : c.title) title[word] = rarity(word);
    e.title = held(title, [&wanted](const std::string& w) { return wanted.contains(w); });
  }
  for (ContextEvidence& e : out) {
    if (best <= 0) break;
    e.share = e.score / best;
    e.lead = (e.score - (e.score < best ? best : second)) / best;
  }
  return out;
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
    scores.push_back(bm25(c, wanted));
    mean += scores.back() / total;
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
