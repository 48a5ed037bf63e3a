/// Runs queries of the service's own, which give way to clients' queries.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "engine/engine.h"

namespace quire {

/// Threads: run() by one thread at a time, the other methods by any.
class IdleRunner {
 public:
  /// `engine` must outlive it, or stop() must come before the engine's end.
  explicit IdleRunner(Engine& engine) : engine_(engine) {}

  /// Returns whether the engine runs no query and none waits.
  bool idle() const;
  /// Runs a query and waits for its end. `sink` gets its events. Errors: kCancelled after yield()
  /// or stop(); those of the query.
  Status run(QueryRequest request, const std::shared_ptr<QuerySink>& sink);
  /// Cancels the running query, because a client's query begins.
  void yield();
  /// Cancels the running query and refuses further ones.
  void stop();
  /// Returns whether yield() or stop() ended the last run.
  bool yielded() const;

 private:
  Engine& engine_;
  mutable std::mutex mu_;
  std::optional<QueryHandle> at_work_;       // guarded by mu_
  bool yielded_ = false, stopping_ = false;  // guarded by mu_
};

}  // namespace quire
