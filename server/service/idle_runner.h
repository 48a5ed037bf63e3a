/// Runs queries of the service's own, which give way to clients' queries.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/engine.h"

namespace quire {

/// Threads: run() by one thread at a time, the other methods by any.
class IdleRunner {
 public:
  /// `engine` must outlive it, or stop() must come before the engine's end. `others_idle`, if
  /// given, says whether other engines on the same cores are idle; any thread may call it.
  explicit IdleRunner(Engine& engine, std::function<bool()> others_idle = {})
      : engine_(engine), others_idle_(std::move(others_idle)) {}

  /// Returns whether the engine runs no query and none waits, and others are idle.
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
  const std::function<bool()> others_idle_;
  mutable std::mutex mu_;
  std::optional<QueryHandle> at_work_;       // guarded by mu_
  bool yielded_ = false, stopping_ = false;  // guarded by mu_
};

}  // namespace quire
