#include "fidelity/score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace quire {
namespace {

/// Returns the next code point of valid UTF-8; an invalid byte counts as one code point.
char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at++);
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  char32_t c = more == 3   ? first & 0x07u
               : more == 2 ? first & 0x0fu
               : more == 1 ? first & 0x1fu
                           : first;
  for (int i = 0; i < more && at < text.size() && (byte(at) & 0xc0u) == 0x80; ++i)
    c = (c << 6) | (byte(at++) & 0x3fu);
  return c;
}

void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xc0 | (c >> 6)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | (c >> 12)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out.push_back(static_cast<char>(0xf0 | (c >> 18)));
    out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3f)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

/// Covers Latin, Greek and Cyrillic; other scripts of answers have no case.
char32_t lower(char32_t c) {
  if (c >= U'A' && c <= U'Z') return c + 32;
  if (c >= 0xc0 && c <= 0xde && c != 0xd7) return c + 32;
  if ((c >= 0x100 && c <= 0x137) || (c >= 0x14a && c <= 0x177)) return c | 1;
  if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return c % 2 == 1 ? c + 1 : c;
  if (c == 0x178) return 0xff;
  if (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) return c + 32;
  if (c >= 0x410 && c <= 0x42f) return c + 32;
  if (c >= 0x400 && c <= 0x40f) return c + 80;
  return c;
}

bool is_space(char32_t c) {
  return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x3000;
}
bool is_ascii_punctuation(char32_t c) {
  return c < 0x80 && c > 32 && c != 127 && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
         !(c >= 'a' && c <= 'z');
}
/// Returns whether LongBench removes the mark from Chinese answers.
bool is_cjk_punctuation(char32_t c) {
  return (c >= 0x3001 && c <= 0x303f) || (c >= 0xff00 && c <= 0xff0f) ||
         (c >= 0xff1a && c <= 0xff20);
}
bool is_cjk(char32_t c) {
  return (c >= 0x3040 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x20000 && c <= 0x3ffff);
}

struct Word {
  std::string text;      ///< in lower case, without punctuation
  bool capital = false;  ///< it is written with a capital letter
};

std::vector<Word> split(std::string_view text) {
  std::vector<Word> words;
  Word word;
  const auto end_word = [&] {
    if (!word.text.empty()) words.push_back(std::move(word));
    word = {};
  };
  for (std::size_t at = 0; at < text.size();) {
    const char32_t written = next_code_point(text, at), c = lower(written);
    if (is_ascii_punctuation(c) || is_cjk_punctuation(c)) continue;
    if (is_space(c) || is_cjk(c)) end_word();
    if (is_space(c)) continue;
    if (word.text.empty()) word.capital = written != c;
    append_utf8(c, word.text);
    if (is_cjk(c)) end_word();
  }
  end_word();
  return words;
}

bool is_article(const Word& word) {
  return word.text == "a" || word.text == "an" || word.text == "the";
}

/// Returns the words of a text without articles, unless there is nothing else.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  const std::vector<Word> all = split(text);
  const bool articles_alone = std::ranges::all_of(all, is_article);
  for (const Word& w : all)
    if (articles_alone || !is_article(w)) words.push_back(w.text);
  return words;
}

/// Returns the words of an answer that are compared with those of the reference. Those of a
/// reference that is articles alone are kept in it. In a sentence, the letter A is told from the
/// article by its capital.
std::vector<std::string> words_for(std::string_view reference, std::string_view answer) {
  const std::vector<Word> wanted = split(reference), said = split(answer);
  if (wanted.empty() || !std::ranges::all_of(wanted, is_article)) return words_of(answer);
  const bool letter = wanted.size() == 1 && wanted[0].text == "a" && wanted[0].capital;
  const bool by_capital = letter && !std::ranges::all_of(said, is_article);
  std::vector<std::string> words;
  for (const Word& w : said) {
    const bool is_wanted = std::ranges::find(wanted, w.text, &Word::text) != wanted.end() &&
                           (!by_capital || w.capital);
    if (is_wanted || !is_article(w)) words.push_back(w.text);
  }
  return words;
}

std::string ascii_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

double f1_of(const std::vector<std::string>& answer, const std::vector<std::string>& reference) {
  std::map<std::string_view, int> counts;
  for (const auto& w : reference) ++counts[w];
  int common = 0;
  for (const auto& w : answer) {
    const auto found = counts.find(w);
    if (found != counts.end() && found->second-- > 0) ++common;
  }
  if (common == 0) return 0;
  const double precision = static_cast<double>(common) / static_cast<double>(answer.size());
  const double recall = static_cast<double>(common) / static_cast<double>(reference.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

std::string normalize_answer(std::string_view text) {
  std::string out;
  for (const auto& word : words_of(text)) out.append(out.empty() ? "" : " ").append(word);
  return out;
}

double exact_match(std::string_view answer, std::span<const std::string> references) {
  return std::ranges::any_of(references,
                             [&](const auto& r) { return words_for(r, answer) == words_of(r); })
             ? 1
             : 0;
}

double contains_answer(std::string_view answer, std::span<const std::string> references) {
  return std::ranges::any_of(references, [&](const std::string& reference) {
    const std::vector<std::string> words = words_of(reference);
    const std::vector<std::string> said = words_for(reference, answer);
    return !words.empty() &&
           std::search(said.begin(), said.end(), words.begin(), words.end()) != said.end();
  });
}

double f1_score(std::string_view answer, std::span<const std::string> references) {
  double best = 0;
  for (const auto& r : references) best = std::max(best, f1_of(words_for(r, answer), words_of(r)));
  return best;
}

double ruler_match_all(std::string_view answer, std::span<const std::string> references) {
  if (references.empty()) return 0;
  const std::string text = ascii_lower(answer);
  double found = 0;
  for (const auto& r : references) found += text.find(ascii_lower(r)) != std::string::npos ? 1 : 0;
  return found / static_cast<double>(references.size());
}

double ruler_match_any(std::string_view answer, std::span<const std::string> references) {
  return ruler_match_all(answer, references) > 0 ? 1 : 0;
}

double token_agreement(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const std::size_t both = std::min(a.size(), b.size()), all = std::max(a.size(), b.size());
  if (all == 0) return 1;
  std::size_t same = 0;
  for (std::size_t i = 0; i < both; ++i) same += a[i] == b[i] ? 1 : 0;
  return static_cast<double>(same) / static_cast<double>(all);
}

void log_softmax(std::span<const float> logits, std::vector<float>& out) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  out.assign(logits.begin(), logits.end());
  float top = kNever;
  for (float& x : out) {
    if (std::isnan(x)) x = kNever;
    top = std::max(top, x);
  }
  if (!std::isfinite(top)) return;
  double sum = 0;
  for (const float x : out) sum += std::exp(static_cast<double>(x - top));
  const auto log_sum = static_cast<float>(std::log(sum)) + top;
  for (float& x : out) x -= log_sum;
}

double kl_divergence(std::span<const float> log_p, std::span<const float> log_q) {
  double sum = 0;
  for (std::size_t i = 0; i < log_p.size() && i < log_q.size(); ++i) {
    if (!std::isfinite(log_p[i])) continue;
    const double p = std::exp(static_cast<double>(log_p[i]));
    if (p > 0) sum += p * (static_cast<double>(log_p[i]) - static_cast<double>(log_q[i]));
  }
  return std::max(0.0, sum);
}

}  // namespace quire
