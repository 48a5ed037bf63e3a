/// Embedding of one text: its tokens through the one forward pass, chunk by chunk, the last hidden
/// states averaged.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/api/requests.h"
#include "engine/query/query_resources.h"

namespace quire {

/// Threads: the engine thread.
class EmbedTask {
 public:
  using Done = std::function<void(Result<std::vector<float>>)>;

  /// The request was checked.
  EmbedTask(QueryResources& core, EmbedRequest request, Done done);

  /// Of its working cache, which is gone once the task is over.
  std::int64_t working_bytes() const;
  /// One chunk. True: it is over, `done` was called.
  bool step();
  bool cancelled() const {
    return request_.cancelled && request_.cancelled->load(std::memory_order_relaxed);
  }
  /// Moves its pages out to ordinary memory, and back in.
  void suspend();
  Status resume();
  /// Ends it early; nothing if it is over.
  void fail(const Status& status);

 private:
  Status run_chunk();
  std::vector<float> mean() const;

  QueryResources& core_;
  const EmbedRequest request_;
  Done done_;
  std::optional<WorkingCache> cache_;
  std::vector<double> sums_;  ///< [hidden_size]
  std::size_t next_ = 0;      ///< first token not yet run
};

}  // namespace quire
