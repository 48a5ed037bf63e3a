/// Stores vectors under labels, in memory and on disk, and searches them by inner product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

struct VectorMatch {
  std::int64_t label = 0;
  float score = 0;
};

/// Vectors are stored in lists. With one list every search compares each vector and is exact. With
/// more, each list has a centre (k-means over a sample of the vectors at that time). An unfiltered
/// search then reads the lists with the nearest centres: an eighth of them, at least eight, and at
/// least those that hold about 25,000 vectors. A filtered search reads all and is exact. Where a
/// vector lies makes no difference to results.
///
/// Threads: const methods concurrently, others exclusively.
class VectorIndex {
 public:
  /// Makes an empty index, `dimension` > 0: with one list, or with those of centres() of another
  /// index, [lists, dimension] row-major, f16. Errors: kCorruption (a centre
  /// is not finite), kResourceExhausted, kInternal.
  static Result<VectorIndex> make(std::int64_t dimension,
                                  std::span<const std::uint16_t> centres = {});
  VectorIndex(VectorIndex&&) noexcept;
  VectorIndex& operator=(VectorIndex&&) noexcept;
  ~VectorIndex();

  /// Adds copies of `vectors`, [labels.size(), dimension] row-major, f16, to memory. Labels must be
  /// new and not negative. Errors: kResourceExhausted, kInternal; some of the vectors may then have
  /// been added.
  Status add(std::span<const std::int64_t> labels, std::span<const std::uint16_t> vectors);
  /// Removes vectors and skips unknown labels. It costs a pass over all labels. A file that is
  /// mostly empty is written anew. Errors: of that; the vectors are then removed, too.
  Status remove(std::span<const std::int64_t> labels);
  /// Moves vectors that take at least `bytes` of memory, or all that remain there, to a file in
  /// `folder`, which may grow by `most_growth` bytes. Errors: kIo, kResourceExhausted (no room for
  /// all of them); some may then have been moved.
  Status move_to_disk(const std::string& folder, std::int64_t bytes, std::int64_t most_growth);

  using Filter = std::function<bool(std::int64_t label)>;
  struct Found {
    std::vector<VectorMatch> matches;      ///< best first, equal scores by label
    std::vector<std::int64_t> unreadable;  ///< were to be compared, but the disk failed
  };
  /// Returns at most `limit` matches. It returns fewer than exist only if some lists are not read
  /// or some vectors cannot be read. `query`: [dimension]. Errors: kInternal, kResourceExhausted.
  Result<Found> search(std::span<const float> query, std::size_t limit,
                       const Filter& filter = {}) const;

  /// Says which list each vector is to be in.
  struct ListPlan;
  /// Chooses the centres of `num_lists` lists (at most one per vector), which takes seconds for
  /// large indexes. It keeps 64 vectors a list in memory meanwhile.
  Result<std::shared_ptr<ListPlan>> plan_lists(std::int64_t num_lists) const;
  /// Puts the vectors into other lists. The index must be as it was when `plan` was made.
  void regroup(ListPlan& plan);

  /// Returns the centres of the lists, [num_lists, dimension] row-major, f16; empty: one list.
  std::vector<std::uint16_t> centres() const;

  std::int64_t dimension() const;
  std::int64_t num_lists() const;
  std::int64_t size() const;
  /// Estimated by counting, without the room that lists keep for growth (at most an eighth).
  std::int64_t memory_bytes() const;
  std::int64_t movable_bytes() const;  ///< the part of it that move_to_disk() frees
  std::int64_t disk_bytes() const;

 private:
  struct State;
  explicit VectorIndex(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire
