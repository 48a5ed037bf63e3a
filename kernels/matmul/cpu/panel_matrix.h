/// This file declares what the CPU's packed matrices share: the rows they are packed from, argument
/// checks, and distribution of panels over threads. Only .cc files of this folder include it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matmul/cpu/matmul_kernels.h"
#include "kernels/matmul/group_of_blocks.h"
#include "kernels/matmul/matmul.h"
#include "kernels/parallel.h"

namespace quire::cpu {

/// up to this many rows, a whole panel is streamed once from memory
inline constexpr std::int64_t kFewRows = 32;
inline constexpr std::int64_t kBlockRows = 256;  ///< rows whose inputs stay in L2

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Presents the rows of several matrices as one matrix.
struct StackedRows {
  std::span<const WeightPart> parts;
  std::int64_t k;
  DType dtype;  ///< dtype of the parts that are not blocks

  /// Reads row n as f32.
  void read(std::int64_t n, float* out) const {
    for (const WeightPart& part : parts) {
      if (n < part.n) return read_weight_row(part, n, k, dtype, out);
      n -= part.n;
    }
  }
};

/// Cuts [0, items) into pieces, each half of a thread's share of what is left. The last ones have
/// two items, or one where items are few.
class ShrinkingPieces {
 public:
  ShrinkingPieces(std::int64_t items, std::int64_t threads)
      : items_(items), divisor_(2 * threads), least_(items >= 4 * threads ? 2 : 1) {
    for (std::int64_t begin = 0; begin < items_; begin += size(begin)) ++count_;
  }
  std::int64_t count() const { return count_; }
  /// Returns first and end of piece i.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t i) const {
    std::int64_t begin = 0;
    for (; i > 0; --i) begin += size(begin);
    return {begin, begin + size(begin)};
  }

 private:
  std::int64_t size(std::int64_t begin) const {
    const std::int64_t left = items_ - begin;
    return std::min(left, ceil_div(ceil_div(left, divisor_), least_) * least_);
  }

  std::int64_t items_, divisor_, least_, count_ = 0;
};

/// Implements shape, argument checks and distribution of panels over threads.
class PanelMatrix : public PackedMatrix {
 public:
  PanelMatrix(std::int64_t n, std::int64_t k, std::int64_t panels)
      : n_(n), k_(k), panels_(panels) {}
  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return k_; }

  Status multiply(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
                  std::int64_t ldy) const override {
    if (m < 0) return Status::invalid("m", "must not be negative");
    if (m == 0) return {};
    if (x == nullptr || y == nullptr)
      return Status::invalid("x", "multiply needs non-null x and y");
    if (ldx < k_)
      return Status::invalid(
          "ldx", "must be at least k = " + std::to_string(k_) + ", is " + std::to_string(ldx));
    if (ldy < n_)
      return Status::invalid(
          "ldy", "must be at least n = " + std::to_string(n_) + ", is " + std::to_string(ldy));
    run(x, m, ldx, bias, y, ldy);
    return {};
  }

 protected:
  virtual void run(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
                   std::int64_t ldy) const = 0;

  /// Calls fn(first panel, last panel), inline below `least_work` operations. Pieces become smaller
  /// towards the end: a thread that is slower than others then delays them by a small piece only.
  template <class F>
  void over_panels(std::int64_t m, double least_work, F&& fn) const {
    const double work = 2.0 * static_cast<double>(std::max<std::int64_t>(m, 16)) *
                        static_cast<double>(k_) * static_cast<double>(n_);
    const std::int64_t threads = num_threads();
    if (threads == 1 || work < least_work) return fn(std::int64_t{0}, panels_);
    const ShrinkingPieces pieces(panels_, threads);
    parallel_tasks(pieces.count(), [&](std::int64_t i) {
      const auto [begin, end] = pieces.range(i);
      fn(begin, end);
    });
  }

  /// Returns the output for columns [column, column + columns) and `rows` rows from `row` on.
  PanelOutput output(std::int64_t column, std::int64_t columns, std::int64_t row, std::int64_t rows,
                     const float* bias, float* padded_bias, float* y, std::int64_t ldy,
                     bool first) const {
    const float* from = bias == nullptr ? nullptr : bias + column;
    if (from != nullptr && columns < kPanelColumns) {  // kernels read whole panels of bias
      std::copy(from, from + columns, padded_bias);
      std::fill(padded_bias + columns, padded_bias + kPanelColumns, 0.0f);
      from = padded_bias;
    }
    return PanelOutput{y + row * ldy + column, ldy, rows, columns, from, first};
  }

  std::int64_t n_, k_, panels_;
};

}  // namespace quire::cpu
