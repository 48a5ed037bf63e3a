/// RowChoice chooses exactly among some rows of one KV head and attends to the chosen ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/retrieve/key_codes.h"
#include "engine/retrieve/rows/row_retriever.h"

namespace quire {

/// RowChoice holds the buffers of one KV head, reused from step to step. Threads: one at a time.
class RowChoice {
 public:
  /// Computes products of the step's queries with the keys of `rows` (ascending) and each row's
  /// vote. The vote is the logarithm of the largest softmax weight, over these rows, that a query
  /// head gives the row. Errors: kInvalidArgument.
  Status score(const HostStep& step, std::span<const std::int32_t> rows);
  /// Computes score() of many rows, preselected by key codes. `rows` (ascending) becomes the `most`
  /// rows with the largest votes by codes and the rows without codes; keys of only these are read,
  /// and softmaxes are over all of them. If this would remove few rows it removes none.
  Status score_best(const HostStep& step, const KeyCodes& codes, std::int64_t most,
                    std::vector<std::int32_t>& rows);
  /// Returns the k rows with the largest votes, as ascending indices into `rows`; ties go to the
  /// smaller row.
  std::vector<std::int32_t> best(std::int64_t k) const;
  /// Computes attention of the step's queries to rows[i] for i in `chosen` from the products of
  /// score(). It writes step.out and step.lse.
  Status attend(const HostStep& step, std::span<const std::int32_t> chosen);
  /// Computes attention to all of these rows (ascending), with the result of score() and attend()
  /// of each. It leaves no votes.
  Status attend_to(const HostStep& step, std::span<const std::int32_t> rows);

  std::span<const std::int32_t> rows() const { return rows_; }
  /// Returns the rows that these indices stand for.
  std::vector<std::int32_t> rows_at(std::span<const std::int32_t> indices) const;

 private:
  Status multiply(const HostStep& step, std::span<const std::int32_t> rows);
  /// Turns the products [group, n] with `rows` in `weights` into softmax weights, and sums the
  /// values by them.
  static Status weigh(const HostStep& step, std::span<const std::int32_t> rows, float* weights);
  /// Computes votes from products [group, n] and each query's log-sum-exp.
  void vote(std::span<const float> lse, std::int64_t n);
  std::vector<std::int32_t> rows_, attended_;
  std::vector<float> products_;  ///< [group, rows]; the buffer may be larger
  std::vector<float> votes_, weights_, lse_;
};

}  // namespace quire
