/// This file computes which document blocks an answer's tokens attend to, in one pass over the
/// answer after its last token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/api/query_sink.h"
#include "engine/query/query_run.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

/// Computes the attribution of an answer. A token's share of a block is the part of its attention
/// that falls on the block's rows, averaged over all heads and layers; the first token of each
/// context does not count. The rows that produced the answer's tokens (the question's last row and
/// all answer rows but the last) run again over the working cache. Nothing is written, as every row
/// finds its own KV in place. Threads: the engine thread.
class AttributionPass {
 public:
  /// Returns whether the cache has documents and the query has a question and an answer token.
  static bool possible(const QueryRun& run, std::span<const std::int32_t> answer);

  /// Prepares the pass over the emitted tokens `answer`, the first of which is at `first_position`.
  AttributionPass(QueryRun& run, std::vector<std::int32_t> answer, std::int32_t first_position);

  /// Runs one chunk of rows. Errors: kResourceExhausted, kInternal (the cache does not match the
  /// plan).
  Status step();
  bool done() const { return next_ == answer_.size(); }
  const Attribution& result() const { return result_; }

 private:
  class Hook;
  /// Rows of one layer that hold blocks.
  struct LayerMap {
    std::vector<RowRange> ranges;
    std::vector<std::int32_t> blocks;  ///< block of each range, counted over Plan::contexts
  };
  void add(std::int32_t layer, std::span<const float> mass, std::int64_t rows);
  Status map_layers();
  Result<LayerMap> map_layer(std::int32_t layer) const;
  const LayerMap& map(std::int32_t layer) const { return maps_[maps_.size() == 1 ? 0 : at(layer)]; }

  QueryRun& run_;
  const std::vector<std::int32_t> answer_;
  const std::int32_t first_position_;
  std::vector<LayerMap> maps_;  ///< one, or one per layer
  std::size_t next_ = 0;        ///< first token not attributed yet
  Attribution result_;
};

}  // namespace quire
