/// This file writes computed contexts to the store (sketch, segment, files), asynchronously to the
/// engine thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cachestore/store.h"
#include "engine/prefill/context_kv.h"
#include "kernels/rows/rope.h"

namespace quire {

struct WrittenContext {
  SegmentHandle segment;
  bool already_cached = false;  ///< the store had it, so nothing was written
  std::int64_t sketch_bytes = 0;
  double ms = 0;
};

/// Writes with one thread, so that two writes of equal content never race. Threads: any for
/// everything but stop(), which finishes what was submitted.
class KvWriter {
 public:
  struct Job {
    std::shared_ptr<const ContextKv> kv;
    ContextKey key;
    std::string tenant;
    /// Is called once on the writer's thread; must not block. Errors: those of the store,
    /// kResourceExhausted (out of memory). What it throws is logged.
    std::function<void(Result<WrittenContext>)> done;
  };
  /// `store` and `rope` must outlive it.
  KvWriter(Store& store, const RopeTable& rope, std::int32_t num_heads, std::string fingerprint);
  ~KvWriter();

  void submit(Job job);
  /// Returns how many contexts are not written yet, and the bytes of their values. They lie in
  /// ordinary memory, outside every other budget.
  std::size_t pending() const;
  std::int64_t pending_bytes() const;
  /// Returns whether so many bytes more may wait: all together take at most max_bytes(), and one
  /// that is larger waits alone.
  bool has_room(std::int64_t bytes) const;
  /// Returns an eighth of the store's memory tier, 1 GiB at most.
  std::int64_t max_bytes() const { return max_bytes_; }
  void stop();

 private:
  void run();
  /// Waits. Returns false at once when it is stopping.
  bool wait(std::chrono::milliseconds time);
  Result<WrittenContext> write(const Job& job);
  Result<WrittenContext> try_write(const Job& job) noexcept;

  Store& store_;
  const RopeTable& rope_;
  const std::int32_t num_heads_;
  const std::string fingerprint_;
  const std::int64_t max_bytes_;
  mutable std::mutex mu_;
  std::condition_variable cv_;
  std::deque<Job> jobs_;     // guarded by mu_
  bool stopping_ = false;    // guarded by mu_
  std::size_t running_ = 0;  // guarded by mu_
  std::int64_t bytes_ = 0;   // guarded by mu_; of jobs_ and the one that runs
  std::thread thread_;
};

}  // namespace quire
