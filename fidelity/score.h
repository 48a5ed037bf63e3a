/// What an answer is worth: exact match and F1 as SQuAD and LongBench compute them, RULER's string
/// match, agreement of tokens, divergence of distributions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// LongBench's normalisation (metrics.py, after SQuAD): lower case, ASCII punctuation removed,
/// articles a/an/the removed, white space folded. Besides, every Chinese, Japanese or Korean
/// ideograph or syllable becomes a word of its own (LongBench segments Chinese with a dictionary,
/// which is not shipped).
std::string normalize_answer(std::string_view text);

/// 1 when the normalised answer equals a normalised reference, else 0. No references: 0.
double exact_match(std::string_view answer, std::span<const std::string> references);
/// Harmonic mean of word precision and recall of normalised texts (counted with multiplicity), the
/// best over the references.
double f1_score(std::string_view answer, std::span<const std::string> references);

/// RULER (Hsieh et al. 2024, scripts/eval/synthetic/constants.py), without regard to ASCII case:
/// the share of references that occur in the answer (`all`), or 1 when any does (`any`, used for
/// QA).
double ruler_match_all(std::string_view answer, std::span<const std::string> references);
double ruler_match_any(std::string_view answer, std::span<const std::string> references);

/// Share of positions with the same token; positions past the end of the shorter one count as
/// different. 1 for two empty ones.
double token_agreement(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

/// ln softmax(logits) in f32 (the sum in f64). Logits of -inf stay -inf; NaN counts as -inf.
void log_softmax(std::span<const float> logits, std::vector<float>& out);
/// KL(p || q) in nats of two results of log_softmax() of one length; at least 0. Infinite where q
/// excludes what p does not.
double kl_divergence(std::span<const float> log_p, std::span<const float> log_q);

}  // namespace quire
