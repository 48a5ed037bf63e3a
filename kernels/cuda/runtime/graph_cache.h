/// Decode steps as graphs: recorded once for a size of batch, then launched with one call.
#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "kernels/cuda/runtime/handles.h"

namespace quire::cuda {

/// The size of batch that a step of `batch` >= 1 sequences runs in: 1, 2, 4, 8, then the next
/// multiple of 8 up to 64, of 32 beyond. Rows past the batch are idle.
std::int64_t batch_bucket(std::int64_t batch);

struct GraphStats {
  std::int64_t captures = 0, launches = 0, evictions = 0;
};

/// Keeps one graph for each bucket, at most `capacity` of them, least recently used first out.
/// Threads: those of the driver.
class GraphCache {
 public:
  /// Enqueues the step's work on the stream; what it passes to kernels by value and every pointer
  /// is fixed in the graph.
  using Record = std::function<Status(StreamHandle)>;

  /// `driver` must outlive it. capacity >= 1.
  GraphCache(DeviceDriver& driver, std::size_t capacity);

  /// Launches the graph of `bucket` on `stream`. It is recorded first when there is none, or when
  /// `version` is not the one it was recorded for: version stands for all that is fixed in the
  /// graph (addresses, lengths that shape launches). `record` must neither wait nor allocate.
  /// Errors: those of record() and of the driver; the bucket then has no graph, and the stream is
  /// as before.
  Status run(std::int64_t bucket, std::uint64_t version, StreamHandle stream, const Record& record);
  /// Drops all graphs, as when memory that they point to moves.
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
