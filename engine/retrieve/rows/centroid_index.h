/// CentroidIndex is an inverted file whose centroids are queries: the rows that matter to a query
/// are those that similar queries attended to (CTkvr).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/compute/compute.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/prompt_queries.h"
#include "kernels/attention/attention.h"
#include "kernels/choice/voted_lists.h"
#include "kernels/rows/kv.h"

namespace quire {

/// Appends the indices of set bits, ascending.
void append_marked(std::span<const std::uint64_t> bits, std::vector<std::int32_t>& rows);

/// IndexScratch is memory in which a Compute makes the lists of one layer after another.
struct IndexScratch {
  explicit IndexScratch(Compute& makes) : compute(makes) {}
  Compute& compute;
  ComputeBuffer<float> queries, lse, out, votes;
  ComputeBuffer<std::int32_t> best;
};

struct CentroidInput {
  const PromptQueries* queries = nullptr;  ///< queries of the layer, oldest first: the centroids
  std::int32_t layer = 0;
  KvView kv;
  std::int32_t num_heads = 0;
  RowRange host{0, 0};             ///< the only rows in lists
  std::int64_t list_rows = 0;      ///< at most, in a list
  std::int64_t num_centroids = 0;  ///< at most: those of the last rows
  /// The memory of the Compute that multiplies queries with centroids; null: recall() does.
  std::shared_ptr<ComputeMemory> memory;
  /// The Compute that makes the lists, in whose memory `kv` lies; null: the host does, and `kv`
  /// lies in ordinary memory.
  IndexScratch* in_place = nullptr;
};

/// CentroidIndex indexes one layer and has a list of rows for each KV head and centroid. The list
/// holds the rows with the largest softmax weight that the centroid's row gave to rows at its
/// position or before, by the largest over the KV head's query heads; ties go to the smaller row.
/// Centroids are normalised f16, [num_heads][num_centroids][head_dim]; lists are one bit for each
/// row up to host.end. Both lie in pinned memory if a Compute multiplies, because the host replaces
/// them; else centroids lie in the pool and lists in ordinary memory. Threads: the engine thread;
/// recall() and replace_oldest() of different KV heads may run concurrently.
class CentroidIndex {
 public:
  /// Builds the index. Errors: kResourceExhausted (no device memory for the centroids).
  static Result<CentroidIndex> build(DevicePool& device, const CentroidInput& input);
  static std::int64_t device_bytes_for(std::int32_t num_heads, std::int32_t head_dim,
                                       std::int64_t num_centroids);
  static std::int64_t list_bytes_for(std::int32_t num_kv_heads, std::int64_t num_centroids,
                                     std::int64_t host_end);

  /// Marks in `seen` (a bit per row up to host.end) the rows in the lists of the `probes` centroids
  /// nearest to the queries. Nearest is by the largest cosine over the KV head's query heads, and
  /// ties go to the older one; `query` is [group, head_dim].
  Status recall(std::int32_t kv_head, const float* query, std::int64_t probes,
                std::vector<std::uint64_t>& seen) const;
  /// Returns the centroids as f16 keys of num_heads KV heads, in CentroidInput::memory if set.
  /// key_products() of a step's normalised queries with them are the cosines by which recall()
  /// finds the nearest.
  KvView centroids() const;
  bool in_compute_memory() const { return in_compute_memory_; }
  /// Returns the lists as list_union() takes them, by centroid number, in CentroidInput::memory if
  /// set. recall() is the union of the lists of the nearest centroids.
  const std::uint64_t* lists() const { return lists_.data(); }
  std::int64_t list_words() const { return list_words_; }
  /// Replaces the oldest centroid of the KV head by this query and its list. Call it for every KV
  /// head, then advance().
  void replace_oldest(std::int32_t kv_head, const float* query, std::span<const std::int32_t> rows);
  void advance();

  std::int64_t num_centroids() const { return num_centroids_; }
  std::int64_t num_replaced() const { return num_replaced_; }
  std::int64_t device_bytes() const {
    return device_bytes_for(num_heads_, head_dim_, num_centroids_);
  }
  /// Returns the rows in the i-th oldest centroid's list, ascending.
  std::vector<std::int32_t> list(std::int32_t kv_head, std::int64_t i) const;

 private:
  CentroidIndex() = default;
  Status build_lists(const CentroidInput& input);
  Status make_lists(IndexScratch& scratch, VotedListsArgs args) const;
  std::vector<RowRange> missing_rows(std::span<const float> lse) const;
  AttentionArgs attention_of(const VotedListsArgs& args, const RowRange& rows) const;
  Status complete_lse(const VotedListsArgs& args, std::span<float> lse) const;
  void store_centroid(std::int32_t head, std::int64_t slot, const float* query);
  std::int64_t slot_of(std::int64_t i) const { return (oldest_ + i) % num_centroids_; }
  std::uint64_t* list_at(std::int32_t kv_head, std::int64_t slot) {
    return lists_.data() + (kv_head * num_centroids_ + slot) * list_words_;
  }
  const std::uint64_t* list_at(std::int32_t kv_head, std::int64_t slot) const {
    return lists_.data() + (kv_head * num_centroids_ + slot) * list_words_;
  }

  std::int32_t num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
  std::int64_t num_centroids_ = 0, oldest_ = 0, num_replaced_ = 0, list_words_ = 0;
  void mark_nearest(std::int32_t kv_head, std::vector<float> cosines, std::int64_t probes,
                    std::vector<std::uint64_t>& seen) const;
  PoolMemory memory_;  ///< of the centroids, or
  ComputeBuffer<std::uint16_t> compute_memory_{MemoryPlace::kPinned};
  bool in_compute_memory_ = false;
  std::uint16_t* values_ = nullptr;  ///< the centroids
  std::vector<const void*>
      pages_;  ///< pages of values_, so that it is a cache of num_heads KV heads
  ComputeBuffer<std::uint64_t> lists_{MemoryPlace::kPinned};  ///< [num_kv_heads][slot][list_words_]
};

}  // namespace quire
