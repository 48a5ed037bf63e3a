/// Vectors under labels, searched by inner product.
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

/// Vectors lie in lists. With one list every search is exact: each vector is compared. With more,
/// each list has a centre (k-means over the vectors there were), and an unfiltered search reads the
/// lists whose centres are nearest, an eighth of them and at least eight; a filtered one reads all,
/// and is exact again.
///
/// Threads: const methods concurrently, others alone. In memory only.
class VectorIndex {
 public:
  /// One list. `dimension` > 0.
  static Result<VectorIndex> make(std::int64_t dimension);
  VectorIndex(VectorIndex&&) noexcept;
  VectorIndex& operator=(VectorIndex&&) noexcept;
  ~VectorIndex();

  /// vectors: [labels.size(), dimension] row-major; copied. Labels are not there yet and not
  /// negative. Errors: kResourceExhausted, kInternal; some of the labels may be there then.
  Status add(std::span<const std::int64_t> labels, std::span<const float> vectors);
  /// Labels that are not there are passed over. Takes a pass over all labels.
  Status remove(std::span<const std::int64_t> labels);

  using Filter = std::function<bool(std::int64_t label)>;
  /// Best first, equal scores by label; at most `limit`, fewer than there are only where lists are
  /// not read. query: [dimension]. Errors: kInternal.
  Result<std::vector<VectorMatch>> search(std::span<const float> query, std::size_t limit,
                                          const Filter& filter = {}) const;

  /// The same vectors in `num_lists` lists (at most one for each vector), whose centres are found
  /// here: seconds for large ones.
  Result<VectorIndex> in_lists(std::int64_t num_lists) const;

  std::int64_t dimension() const;
  std::int64_t num_lists() const;
  std::int64_t size() const;
  std::int64_t memory_bytes() const;  ///< counted, not measured

 private:
  struct State;
  explicit VectorIndex(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire
