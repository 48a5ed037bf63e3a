/// This file limits the rows of a prefill chunk, so that it takes no longer than decoding queries
/// can be kept waiting.
#pragma once

#include <cstdint>

namespace quire {

/// Halves the size if a chunk took too long and doubles it if one took less than half of the
/// allowed time. The size follows measurements, as the cost of a row depends on the number of rows
/// and on what they attend to. Threads: one at a time.
class ChunkSizer {
 public:
  static constexpr std::int32_t kStep = 16;

  /// Creates a sizer; `largest` is a multiple of kStep.
  explicit ChunkSizer(std::int32_t largest)
      : largest_(largest), size_(largest < kFirst ? largest : kFirst) {}

  std::int32_t size() const { return size_; }
  /// Records that a chunk of `rows` rows took `ms` of `allowed_ms`.
  void measured(std::int32_t rows, double ms, double allowed_ms) {
    if (ms > allowed_ms) {
      // A shorter chunk that takes too long shows that longer ones do, too.
      const std::int32_t half = (rows < size_ ? rows : size_) / 2;
      size_ = half / kStep * kStep < kStep ? kStep : half / kStep * kStep;
    } else if (rows >= size_ && ms < allowed_ms / 2) {
      size_ = 2 * size_ < largest_ ? 2 * size_ : largest_;
    }
  }

 private:
  static constexpr std::int32_t kFirst = 64;
  const std::int32_t largest_;
  std::int32_t size_;
};

}  // namespace quire
