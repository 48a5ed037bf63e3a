/// Measures how the layout of host pages affects the cost of a recall. For pages it compares pages
/// with each KV head's part contiguous (HND, as in the cache) with pages of whole tokens (NHD),
/// which a recall must transpose. For single rows it compares adjacent K and V of a row (granules
/// of a token) with a head's keys before its values.
#pragma once

#include <cstdint>
#include <string>

namespace quire::bench {

struct RecallShape {
  std::int64_t context = 0;  ///< rows on the host, at least those of a recall
  std::int32_t num_kv_heads = 0, head_dim = 0, num_layers = 0;
  /// The size of one layer's recall for each KV head: `pages` pages, or as many single rows.
  std::int32_t page_tokens = 32, pages = 56;
  std::int64_t repeats = 32;
};

/// Returns four rows of the benchmark as JSON, with ",\n  " between them, for bf16 rows. Each has
/// the time and processor time of copying the new rows of a step in all layers, bytes, and the
/// number of contiguous pieces.
std::string recall_layouts(const RecallShape& shape, const char* model);

}  // namespace quire::bench
