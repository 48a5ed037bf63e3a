/// What the layout of host pages costs a recall. Of pages: pages of which each KV head's part lies
/// in one piece (HND, as the cache has them) against pages of whole tokens (NHD), which a recall
/// has to turn into the device's parts. Of single rows: K and V of a row side by side (granules of
/// a token) against the head's keys in front of its values.
#pragma once

#include <cstdint>
#include <string>

namespace quire::bench {

struct RecallShape {
  std::int64_t context = 0;  ///< rows on the host, at least those of a recall
  std::int32_t num_kv_heads = 0, head_dim = 0, num_layers = 0;
  /// A recall of one layer: as many pages, or rows of so many pages, for each KV head
  std::int32_t page_tokens = 32, pages = 56;
  std::int64_t repeats = 32;
};

/// Four rows of the benchmark as JSON, ",\n  " between them: the time and the processor time that
/// copying what a step wants anew in all layers takes from either layout, bytes, and pieces that
/// lie in a row. bf16 rows.
std::string recall_layouts(const RecallShape& shape, const char* model);

}  // namespace quire::bench
