/// Which document blocks the tokens of an answer looked at: one pass over the answer after its last
/// token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/api/query_sink.h"
#include "engine/query/query_run.h"
#include "kernels/attention_mass.h"

namespace quire {

/// A token's share of a block is the part of its attention that falls on the block's rows, averaged
/// over all heads and layers; the first token of a context counts nothing. The rows that gave the
/// answer's tokens (the question's last one, and all but the last of the answer) go through the one
/// forward pass again, over the working cache as it stands. Nothing is written: every row finds its
/// own KV where it was. Threads: the engine thread.
class AttributionPass {
 public:
  /// Whether there are documents in the cache, a question, and a token.
  static bool possible(const QueryRun& run, std::span<const std::int32_t> answer);

  /// `answer`: the tokens given out. `first_position`: of the first of them.
  AttributionPass(QueryRun& run, std::vector<std::int32_t> answer, std::int32_t first_position);

  /// One chunk of rows. Errors: kResourceExhausted, kInternal (the cache is not what the plan
  /// says).
  Status step();
  bool done() const { return next_ == answer_.size(); }
  const Attribution& result() const { return result_; }

 private:
  class Hook;
  /// Rows of one layer that hold a block.
  struct LayerMap {
    std::vector<KvStretch> stretches;
    std::vector<std::int32_t> blocks;  ///< of each stretch, counted over Plan::contexts
  };
  void add(std::int32_t layer, std::span<const float> mass, std::int64_t rows);
  Status map_layers();
  Result<LayerMap> map_layer(std::int32_t layer) const;
  const LayerMap& map(std::int32_t layer) const {
    return maps_[maps_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }

  QueryRun& run_;
  const std::vector<std::int32_t> answer_;
  const std::int32_t first_position_;
  std::vector<LayerMap> maps_;  ///< one, or one per layer
  std::size_t next_ = 0;        ///< first token not attributed yet
  Attribution result_;
};

}  // namespace quire
