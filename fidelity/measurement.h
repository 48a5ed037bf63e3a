/// What one question under one strategy gave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quire {

/// A stretch of a long answer.
struct AnswerSpan {
  double agreement = 1;  ///< share of its positions at which the likeliest token is recompute's
  double kl = 0;         ///< mean over all its positions, nats
  friend bool operator==(const AnswerSpan&, const AnswerSpan&) = default;
};

struct Measurement {
  std::string skipped;       ///< why it could not be asked; the numbers are then meaningless
  bool has_answers = false;  ///< em and f1 mean something
  double em = 0, f1 = 0;
  double agreement = 1;  ///< with the tokens of full recompute, share of positions
  double kl = 0;         ///< mean over the first answer positions, nats, recompute's tokens forced
  double sequence_ratio = 1;   ///< share of (document token, layer) pairs attended to
  double recompute_ratio = 0;  ///< share of document tokens computed at query time
  double bytes_loaded = 0;     ///< KV read from any tier
  double ttft_ms = 0, decode_ms = 0;
  std::int64_t prompt_tokens = 0, answer_tokens = 0;
  /// Of the rows or pages that steps wanted, the share that was not on the device yet; none:
  /// nothing was to move
  std::optional<double> moved;
  /// Of the KV heads that may go by the query before, the share that chose anew first; none: there
  /// were no such
  std::optional<double> corrected;
  /// Of a right answer with known supporting documents: its first citation names one
  std::optional<bool> cited;
  /// Of RunOptions::span_tokens each, the last one maybe shorter; empty unless answers are long
  /// ones
  std::vector<AnswerSpan> spans;
  std::string answer;
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

}  // namespace quire
