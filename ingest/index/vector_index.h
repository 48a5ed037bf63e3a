/// Stores vectors under labels and searches them by inner product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace quire {

struct VectorMatch {
  std::int64_t label = 0;
  float score = 0;
};

/// Vectors are stored in lists. With one list every search compares each vector and is exact. With
/// more, each list has a centre (k-means over the vectors at that time). An unfiltered search then
/// reads the lists with the nearest centres, an eighth of them and at least eight. A filtered
/// search reads all and is exact.
///
/// Threads: const methods concurrently, others exclusively. The index is in memory only.
class VectorIndex {
 public:
  /// Makes an index with one list. `dimension` > 0.
  static Result<VectorIndex> make(std::int64_t dimension);
  VectorIndex(VectorIndex&&) noexcept;
  VectorIndex& operator=(VectorIndex&&) noexcept;
  ~VectorIndex();

  /// Adds copies of `vectors`, [labels.size(), dimension] row-major. Labels must be new and not
  /// negative. Errors: kResourceExhausted, kInternal; some of the vectors may then have been added.
  Status add(std::span<const std::int64_t> labels, std::span<const float> vectors);
  /// Removes vectors and skips unknown labels. It costs a pass over all labels.
  Status remove(std::span<const std::int64_t> labels);

  using Filter = std::function<bool(std::int64_t label)>;
  /// Returns at most `limit` matches, best first, equal scores by label. It returns fewer than
  /// exist only if some lists are not read. `query`: [dimension]. Errors: kInternal.
  Result<std::vector<VectorMatch>> search(std::span<const float> query, std::size_t limit,
                                          const Filter& filter = {}) const;

  /// Returns the same vectors in `num_lists` lists (at most one per vector). It computes their
  /// centres, which takes seconds for large indexes.
  Result<VectorIndex> in_lists(std::int64_t num_lists) const;

  std::int64_t dimension() const;
  std::int64_t num_lists() const;
  std::int64_t size() const;
  std::int64_t memory_bytes() const;  ///< estimated by counting, not measured

 private:
  struct State;
  explicit VectorIndex(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire
