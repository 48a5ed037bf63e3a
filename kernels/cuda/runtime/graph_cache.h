/// This file declares a cache of decode steps as CUDA graphs, captured once per bucket, such as a
/// number of rows, and launched with one call.
#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "kernels/cuda/runtime/handles.h"

namespace quire::cuda {

struct GraphStats {
  std::int64_t captures = 0, launches = 0, evictions = 0;
};

/// Keeps one graph per bucket, at most `capacity` of them, and evicts the least recently used.
/// Threads: those of the driver.
class GraphCache {
 public:
  /// Enqueues the step's work on the stream. Values passed to kernels and all pointers become fixed
  /// in the graph.
  using Record = std::function<Status(StreamHandle)>;

  /// Creates an empty cache. `driver` must outlive it. capacity >= 1.
  GraphCache(DeviceDriver& driver, std::size_t capacity);

  /// Launches the graph of `bucket` on `stream`. The graph is captured first if there is none or if
  /// it was captured for another `version`. `version` identifies all that is fixed in the graph
  /// (addresses, lengths that shape launches). `record` must neither synchronize nor allocate.
  /// Errors: those of record() and of the driver. After an error the bucket has no graph;
  /// after one of a capture the stream is unchanged.
  Status run(std::int64_t bucket, std::uint64_t version, StreamHandle stream, const Record& record);
  /// Drops all graphs, for example when memory that they point to moves.
  void clear() { entries_.clear(); }
  const GraphStats& stats() const { return stats_; }

 private:
  struct Entry {
    std::int64_t bucket;
    std::uint64_t version;
    Graph graph;
  };
  Result<Graph> capture(StreamHandle stream, const Record& record);

  DeviceDriver& driver_;
  const std::size_t capacity_;
  std::list<Entry> entries_;  // most recently used first
  GraphStats stats_;
};

}  // namespace quire::cuda
