/// The measurements of one question under one strategy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quire {

/// AnswerSpan is a range of a long answer.
struct AnswerSpan {
  double agreement = 1;  ///< share of its positions at which the likeliest token is recompute's
  double kl = 0;         ///< mean over all its positions, nats
  friend bool operator==(const AnswerSpan&, const AnswerSpan&) = default;
};

struct Measurement {
  /// Why the question could not be measured; the numbers are then meaningless.
  std::string skipped;
  bool has_answers = false;  ///< em and f1 are meaningful
  double em = 0, f1 = 0;
  double contains = 0;  ///< 1: the answer contains a reference, both normalised
  /// The negative log-likelihood of the first reference in nats a token, with its tokens forced;
  /// none: there is no reference, or the window has no room for it.
  std::optional<double> nll;
  /// Of recompute alone: nll and contains of the same prompt without its documents.
  std::optional<double> nll_without, contains_without;
  /// Share of the tokens of the record's support that the answer could attend to, mean over layers;
  /// none: the support is unknown.
  std::optional<double> support_kept;
  /// The same of the first answer's text where it stands in a supporting document, the best place;
  /// none: it stands in none.
  std::optional<double> answer_kept;
  double agreement = 1;  ///< share of positions with the same token as full recompute
  double kl = 0;  ///< mean over the first answer positions, in nats, with recompute's tokens forced
  double sequence_ratio = 1;   ///< attended share of the (document token, layer) pairs
  double recompute_ratio = 0;  ///< share of document tokens computed at query time
  double bytes_loaded = 0;     ///< KV read from any tier
  double ttft_ms = 0, decode_ms = 0;
  std::int64_t prompt_tokens = 0, answer_tokens = 0;
  /// Share of the rows or pages wanted by steps that was not on the device yet; none: nothing was
  /// to be copied.
  std::optional<double> moved;
  /// Among KV heads that may use the previous query's choice, the share that chose again first;
  /// none: there were no such heads.
  std::optional<double> corrected;
  /// Whether the first citation of a right answer (`em` or `contains`) names a supporting document;
  /// none: these are unknown or the answer is wrong.
  std::optional<bool> cited;
  /// The same, 0 or 1, of two simpler rules: attention alone, and the document with the highest
  /// BM25 score for the answer's words.
  std::optional<double> cited_attention, cited_words;
  /// Spans of RunOptions::span_tokens each, the last one possibly shorter; empty unless answers are
  /// long.
  std::vector<AnswerSpan> spans;
  std::string answer;
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

}  // namespace quire
