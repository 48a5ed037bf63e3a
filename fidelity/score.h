/// Scores answers: exact match and F1 as in SQuAD and LongBench, RULER's string match, agreement of
/// tokens, divergence of distributions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Normalises as LongBench does (metrics.py, after SQuAD): lower case, ASCII punctuation removed,
/// articles a/an/the removed, white space folded. Two things are different. Articles stay where
/// nothing else is left, as "A" is an answer to a question with choices. Every Chinese, Japanese or
/// Korean ideograph or syllable becomes a separate word (LongBench segments Chinese with a
/// dictionary, which is not shipped).
std::string normalize_answer(std::string_view text);

// A reference of articles alone keeps these in the answer, too, for the three scores that follow.
// Where the answer has other words, the reference "A" is its capital alone, since "a" is an article
// there; an "A" that begins a sentence is taken for the letter.

/// Returns 1 if the normalised answer equals a normalised reference, else 0. Without references it
/// is 0.
double exact_match(std::string_view answer, std::span<const std::string> references);
/// Returns 1 if the normalised answer contains the words of a normalised reference one behind the
/// other, else 0. It sees right answers in sentences, which exact_match() does not.
double contains_answer(std::string_view answer, std::span<const std::string> references);
/// Returns the harmonic mean of word precision and recall of normalised texts (counted with
/// multiplicity), the best over the references.
double f1_score(std::string_view answer, std::span<const std::string> references);

/// Score as in RULER (Hsieh et al. 2024, scripts/eval/synthetic/constants.py), ignoring ASCII case.
/// `all` returns the share of references that occur in the answer; `any`, used for QA, returns 1 if
/// one does.
double ruler_match_all(std::string_view answer, std::span<const std::string> references);
double ruler_match_any(std::string_view answer, std::span<const std::string> references);

/// Returns the share of positions with the same token; positions past the end of the shorter one
/// count as different. Two empty ones give 1.
double token_agreement(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

/// Computes ln softmax(logits) in f32 (the sum in f64). Logits of -inf stay -inf; NaN counts as
/// -inf.
void log_softmax(std::span<const float> logits, std::vector<float>& out);
/// Returns KL(p
///
/// q) in nats of two results of log_softmax() with equal length; at least 0. It is infinite if q
/// excludes what p does not.
double kl_divergence(std::span<const float> log_p, std::span<const float> log_q);

}  // namespace quire
