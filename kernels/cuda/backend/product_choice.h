/// Which algorithm of a library multiplies which shape, and what its failures mean. Plain C++, so
/// that every build tests it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "base/status.h"

namespace quire::cuda {

/// Returns the row count whose algorithm `rows` rows share, so that most row counts share one.
inline std::int64_t row_bucket(std::int64_t rows) {
  std::int64_t bucket = 16;
  while (bucket < rows && bucket < 4096) bucket *= 2;
  return bucket;
}

/// Remembers the algorithm of each shape. Threads: one call at a time.
template <class Algorithm>
class ProductChoice {
 public:
  struct Shape {
    int dtype;
    std::int64_t rows, n, k;
    std::int64_t ldy;  ///< row stride of the outputs, which decides how wide they can be written
    /// Outputs and row stride of the matrix that these are some outputs of; 0: n and ldy.
    std::int64_t whole_n = 0, whole_ldy = 0;
  };

  /// Returns the algorithm of the whole matrix for the shape's bucket of rows if takes(algorithm)
  /// says that it supports this shape. Else it returns that of the whole matrix for these rows, and
  /// if that is not taken, either, that of the shape alone. All answers are kept. ask(shape)
  /// returns Result<Algorithm>, whose errors are passed on and asked for again.
  template <class Ask, class Takes>
  Result<Algorithm> find(const Shape& shape, Ask ask, Takes takes) {
    const Key own = key_of(shape);
    if (const auto known = own_.find(own); known != own_.end()) return known->second;
    const bool cut = shape.whole_n > 0 && shape.whole_n != shape.n;
    Shape whole{shape.dtype, row_bucket(shape.rows), shape.n, shape.k, shape.ldy};
    if (shape.whole_n > 0) whole.n = shape.whole_n, whole.ldy = shape.whole_ldy;
    auto bucket = buckets_.find(key_of(whole));
    if (bucket == buckets_.end()) {
      QUIRE_ASSIGN_OR_RETURN(const Algorithm chosen, ask(whole));
      bucket = buckets_.emplace(key_of(whole), chosen).first;
    }
    Algorithm algorithm = bucket->second;
    if (!takes(algorithm)) {
      whole.rows = shape.rows;
      QUIRE_ASSIGN_OR_RETURN(algorithm, ask(whole));
      if (cut && !takes(algorithm)) {
        QUIRE_ASSIGN_OR_RETURN(algorithm,
                               ask({shape.dtype, shape.rows, shape.n, shape.k, shape.ldy}));
      }
    }
    if (own_.size() == kMost) own_.clear();
    own_.emplace(own, algorithm);
    return algorithm;
  }

 private:
  using Key = std::tuple<int, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t>;
  static Key key_of(const Shape& s) {
    return {s.dtype, s.rows, s.n, s.k, s.ldy, s.whole_n, s.whole_ldy};
  }
  static constexpr std::size_t kMost = 4096;  // row counts of prefill are many
  std::map<Key, Algorithm> buckets_, own_;
};

/// Returns the status of a product that could not be executed. That alone does not mean that the
/// device is lost, for a refused launch or an invalidated capture looks the same: `last`, the
/// device's last error, decides.
inline Status execution_failed(const std::string& message, const Status& last) {
  if (last.code() == Code::kDeviceLost) return last.with_context(message);
  return Status::internal(last.ok() ? message : message + " (" + last.message() + ")");
}

}  // namespace quire::cuda
