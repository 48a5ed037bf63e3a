/// This file embeds one text: it runs the tokens chunk by chunk through the forward pass and
/// averages the last hidden states.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/api/requests.h"
#include "engine/query/query_resources.h"

namespace quire {

/// Embeds one text. Threads: the engine thread.
class EmbedTask {
 public:
  using Done = std::function<void(Result<std::vector<float>>)>;

  /// Creates the task; the request must be checked.
  EmbedTask(QueryResources& core, EmbedRequest request, Done done);

  /// Returns the bytes of its working cache, which is freed when the task is done.
  std::int64_t working_bytes() const;
  /// Runs one chunk. Returns true if the task is done and `done` was called.
  bool step();
  bool cancelled() const {
    return request_.cancelled && request_.cancelled->load(std::memory_order_relaxed);
  }
  /// suspend() moves its pages to ordinary memory; resume() moves them back. Errors: those of
  /// WorkingCache; the pages stay where they are.
  Status suspend();
  Status resume();
  /// Ends it early; does nothing if it is done. What `done` throws is logged.
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
