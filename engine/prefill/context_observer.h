/// A context observer watches the prefill of one context at ingest and makes one record of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/forward.h"

namespace quire {

/// Says which rows of a chunk's pass belong to the context.
struct ChunkRows {
  std::int64_t skip = 0;         ///< first rows, which are the ingest prefix
  std::int64_t first_token = 0;  ///< token of the context in row `skip`
  std::int64_t rows_before = 0;  ///< rows of the cache before the context: prefix, left context
};

/// Chunks come in order; each runs all layers before the next begins. Threads: the engine thread.
/// Errors of all calls: those of Compute. Chunks and threads must not change a bit of the record.
class ContextObserver {
 public:
  virtual ~ContextObserver() = default;
  /// Returns a tap for the chunks' passes; null: none. At most one observer of a context has one.
  virtual HiddenTap* tap() { return nullptr; }
  /// Runs after the projections of a layer. It enqueues on pass.compute and fetches results.
  virtual Status after_projection(const LayerPass& /*pass*/, const ChunkRows& /*rows*/) {
    return {};
  }
  /// Runs after a chunk's last layer, with the tokens and positions of its pass.
  virtual Status end_chunk(std::span<const std::int32_t> /*token_ids*/,
                           std::span<const std::int32_t> /*positions*/) {
    return {};
  }
  /// Returns how many more rows the observer wants to run over the finished context's cache. While
  /// it is not 0, run_more() is called.
  virtual std::int64_t rows_left() const { return 0; }
  /// Runs at most `max_rows` (>= 1) of those rows. Rows that it appends must have left the cache
  /// once rows_left() is 0.
  virtual Status run_more(Model& /*model*/, WorkingCache& /*cache*/,
                          ForwardWorkspace& /*workspace*/, std::int64_t /*max_rows*/) {
    return {};
  }
  /// Returns the record, once all of the context has run; empty: there is none.
  virtual Result<std::vector<std::byte>> finish() = 0;
};

}  // namespace quire
