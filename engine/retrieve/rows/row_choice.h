/// Exact choice among some rows of one KV head, and attention to what was chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/retrieve/key_codes.h"
#include "engine/retrieve/rows/row_retriever.h"

namespace quire {

/// Buffers of one KV head, reused from step to step. Threads: one at a time.
class RowChoice {
 public:
  /// Products of the step's queries with the keys of `rows` (ascending), and from them each row's
  /// vote: the logarithm of the largest softmax weight, over these rows, that a query head gives
  /// it. Errors: kInvalidArgument.
  Status score(const HostStep& step, std::span<const std::int32_t> rows);
  /// The same of many rows: by the codes of their keys `rows` (ascending) becomes the `most` with
  /// the largest votes and those that have no codes, and only keys of these are looked at;
  /// softmaxes are over all of them. Where few would go none does.
  Status score_best(const HostStep& step, const KeyCodes& codes, std::int64_t most,
                    std::vector<std::int32_t>& rows);
  /// The k rows with the largest votes, as indices into `rows`, ascending; ties go to the smaller
  /// row.
  std::vector<std::int32_t> best(std::int64_t k) const;
  /// Attention of the step's queries to rows[i] for i in `chosen`, with the products there are:
  /// step.out and step.lse.
  Status attend(const HostStep& step, std::span<const std::int32_t> chosen);
  /// Attention to these rows (ascending), all of them: what score() and attend() of each would
  /// give. Then there are no votes.
  Status attend_to(const HostStep& step, std::span<const std::int32_t> rows);

  std::span<const std::int32_t> rows() const { return rows_; }
  /// The rows that these indices stand for.
  std::vector<std::int32_t> rows_at(std::span<const std::int32_t> indices) const;

 private:
  Status multiply(const HostStep& step, std::span<const std::int32_t> rows);
  /// Of products [group, n] in `weights` with `rows`: softmaxes, and values by them.
  static Status weigh(const HostStep& step, std::span<const std::int32_t> rows, float* weights);
  /// Of products [group, n], with the log-sum-exp of each query's.
  void vote(std::span<const float> lse, std::int64_t n);
  std::vector<std::int32_t> rows_, attended_;
  std::vector<float> products_;  ///< [group, rows], and maybe room behind that
  std::vector<float> votes_, weights_, lse_;
};

}  // namespace quire
