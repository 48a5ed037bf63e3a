#include "engine/calibrate/citation_calibration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/answer/cited_blocks.h"

namespace quire {
namespace {

constexpr std::size_t kFolds = 5;
constexpr int kRounds = 30;           ///< of Newton's method, which has converged long before
constexpr double kLeastShare = 1e-4;  ///< no example costs more than -ln of it
constexpr double kLargest = 1000;     ///< of a constant in a record

using Row4 = std::array<double, 4>;
using Rows = std::vector<std::pair<Row4, double>>;

Row4 word_features(const ContextEvidence& e) { return {1, e.share, e.lead, e.question}; }
Row4 title_features(const ContextEvidence& e) { return {1, e.share, e.question, *e.title}; }

/// Returns the constants of a logistic regression.
Row4 fitted(const Rows& examples) {
  Row4 w{};
  for (int round = 0; round < kRounds; ++round) {
    std::array<std::array<double, 5>, 4> m{};  // Hessian, and the gradient behind it
    for (std::size_t i = 0; i < 4; ++i) {
      const double ridge = i > 0 ? 1 : 1e-6;
      m[i][i] = ridge;
      m[i][4] = ridge * w[i];
    }
    for (const auto& [x, y] : examples) {
      const double p = 1 / (1 + std::exp(-std::inner_product(x.begin(), x.end(), w.begin(), 0.0)));
      for (std::size_t i = 0; i < 4; ++i) {
        m[i][4] += (p - y) * x[i];
        for (std::size_t j = 0; j < 4; ++j) m[i][j] += p * (1 - p) * x[i] * x[j];
      }
    }
    for (std::size_t i = 0; i < 4; ++i) {  // Gauss-Jordan; the matrix is positive definite
      for (std::size_t j = 5; j-- > i;) m[i][j] /= m[i][i];
      for (std::size_t k = 0; k < 4; ++k) {
        if (k == i) continue;
        for (std::size_t j = 5; j-- > i;) m[k][j] -= m[k][i] * m[i][j];
      }
    }
    for (std::size_t i = 0; i < 4; ++i) w[i] -= m[i][4];
  }
  return w;
}

double loss_of(double probability, bool right) {
  return -std::log(std::max(right ? probability : 1 - probability, kLeastShare));
}

/// Adds what a rule with the usual least confidences names of one sentence's documents.
void count_named(std::vector<std::pair<double, bool>> documents, CitationQuality& quality) {
  const CitationRule rule;
  std::ranges::stable_sort(documents, std::greater(), &std::pair<double, bool>::first);
  const std::size_t most = std::min<std::size_t>(documents.size(),
                                                 static_cast<std::size_t>(rule.most_per_sentence));
  for (std::size_t i = 0; i < most; ++i) {
    if (documents[i].first < (i == 0 ? rule.least_confidence : rule.least_further)) break;
    ++quality.named;
    quality.right += documents[i].second;
  }
}

/// `confidence_of` returns the probability of an example.
template <typename ConfidenceOf>
CitationQuality quality_of(std::span<const CitationExample> examples,
                           ConfidenceOf&& confidence_of) {
  CitationQuality out;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::pair<double, bool>>> sentences;
  for (const CitationExample& e : examples) {
    const double p = confidence_of(e);
    out.loss += loss_of(p, e.right);
    sentences[{e.question, e.sentence}].emplace_back(p, e.right);
  }
  out.loss /= static_cast<double>(std::max<std::size_t>(examples.size(), 1));
  for (auto& [name, documents] : sentences) count_named(std::move(documents), out);
  return out;
}

/// Returns the number of questions with a right and with a wrong document.
std::size_t telling_questions(std::span<const CitationExample> examples) {
  std::map<std::size_t, std::array<bool, 2>> seen;
  for (const CitationExample& e : examples) seen[e.question][e.right ? 1 : 0] = true;
  return static_cast<std::size_t>(
      std::ranges::count_if(seen, [](const auto& q) { return q.second[0] && q.second[1]; }));
}

}  // namespace

CitationConfidence fit_citation_confidence(std::span<const CitationExample> examples) {
  Rows words, titles;
  for (const CitationExample& e : examples) {
    words.emplace_back(word_features(e.evidence), e.right ? 1 : 0);
    if (e.evidence.title) titles.emplace_back(title_features(e.evidence), e.right ? 1 : 0);
  }
  CitationConfidence out = fitted_confidence();
  if (const Row4 w = fitted(words); !words.empty()) out.by_words = {w[0], w[1], w[2], w[3]};
  if (const Row4 t = fitted(titles); !titles.empty()) out.by_title = {t[0], t[1], t[2], t[3]};
  return out;
}

Result<CitationCalibration> calibrate_citations(std::span<const CitationExample> examples) {
  CitationCalibration out;
  out.questions = telling_questions(examples);
  if (out.questions < kLeastCitationQuestions) {
    return Status::precondition(std::to_string(out.questions) +
                                " questions have supporting and other documents; " +
                                std::to_string(kLeastCitationQuestions) + " are needed");
  }
  std::set<std::size_t> numbers;
  for (const CitationExample& e : examples) numbers.insert(e.question);
  std::map<std::size_t, std::size_t> fold;
  for (const std::size_t question : numbers) {
    const std::size_t next = fold.size() % kFolds;
    fold[question] = next;
  }
  std::array<CitationConfidence, kFolds> without;
  for (std::size_t f = 0; f < kFolds; ++f) {
    std::vector<CitationExample> rest;
    std::ranges::copy_if(examples, std::back_inserter(rest),
                         [&](const CitationExample& e) { return fold.at(e.question) != f; });
    without[f] = fit_citation_confidence(rest);
  }
  out.confidence = fit_citation_confidence(examples);
  out.fitted = quality_of(examples, [&](const CitationExample& e) {
    return without[fold.at(e.question)].of(e.evidence);
  });
  out.before = quality_of(
      examples, [](const CitationExample& e) { return fitted_confidence().of(e.evidence); });
  if (!(out.fitted.loss < out.before.loss))
    return Status::precondition(
        "on questions left out the constants of this program tell right documents as well");
  return out;
}

std::string citation_confidence_record(const Digest& fingerprint) {
  return "citation-confidence/" + fingerprint.hex();
}

std::string encode_citation_confidence(const CitationConfidence& c) {
  std::string text = "1";
  for (const double value :
       {c.by_words.constant, c.by_words.share, c.by_words.lead, c.by_words.question,
        c.by_title.constant, c.by_title.share, c.by_title.question, c.by_title.title}) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text.append(" ").append(digits.data(), end);
  }
  return text;
}

Result<CitationConfidence> decode_citation_confidence(std::string_view text) {
  if (!text.starts_with("1 ")) return Status::corruption("citation confidence: unknown version");
  std::array<double, 8> v{};
  const char *at = text.data() + 1, *const end = text.data() + text.size();
  for (double& value : v) {
    if (at == end || *at++ != ' ')
      return Status::corruption("citation confidence: a field is missing");
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || !(std::abs(value) <= kLargest))
      return Status::corruption("citation confidence: a field is not a number up to 1000");
    at = next;
  }
  if (at != end) return Status::corruption("citation confidence: text behind the fields");
  return CitationConfidence{{v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}};
}

Status save_citation_confidence(Store& store, const Digest& fingerprint,
                                const CitationConfidence& confidence) {
  return store.put_meta(citation_confidence_record(fingerprint),
                        encode_citation_confidence(confidence));
}

Status drop_citation_confidence(Store& store, const Digest& fingerprint) {
  const Status status = store.delete_meta(citation_confidence_record(fingerprint));
  return status.code() == Code::kNotFound ? Status() : status;
}

Result<CitationConfidence> load_citation_confidence(Store& store, const Digest& fingerprint) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text,
                         store.get_meta(citation_confidence_record(fingerprint)));
  return decode_citation_confidence(text);
}

}  // namespace quire
