/// This file computes contexts of a query while the shared tiers are still asked for their KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/prefill/context_kv.h"
#include "engine/query/query_run.h"

namespace quire {

/// Computes contexts alone, one after another, as KvSupply computes those without usable KV. What
/// is finished is written to the store and waits here for KvSupply. Threads: the engine thread.
class EarlyContexts {
 public:
  struct Wanted {
    std::int32_t context = 0;  ///< index among those of the request
    ContextKey key;
    bool writable = false;  ///< a document names the key
  };
  /// The keys are distinct, the indices ascend. `run` must outlive this.
  EarlyContexts(QueryRun& run, const std::vector<Wanted>& wanted);
  ~EarlyContexts();
  EarlyContexts(const EarlyContexts&) = delete;
  EarlyContexts& operator=(const EarlyContexts&) = delete;

  /// Returns whether step() has something to compute: a context is neither finished nor dropped,
  /// and those that wait for the plans of all queries leave room for it.
  bool left() const;
  /// Returns whether a context is begun and not finished.
  bool computing() const { return computing_ != nullptr; }
  /// Computes for about `max_ms`, but at least one layer. Errors: those of ContextPrefill.
  Status step(double max_ms);
  /// Returns whether the context is finished.
  bool finished(const ContextKey& key) const;
  /// Computes the context no further, as its KV is in the store; does nothing if it is finished or
  /// not wanted.
  void drop(const ContextKey& key);

  /// Returns a finished context, once; null if there is none.
  std::shared_ptr<const ContextKv> take(const ContextKey& key);
  /// Returns the rows of the last finished context, from which the next may go on; null if none.
  std::unique_ptr<PrefilledRows> take_rows() { return std::move(rows_); }

  /// held_bytes() returns the page bytes of the context that is being computed, wherever they are.
  /// suspend() moves them to ordinary memory, resume() back. Where there is no memory for them, the
  /// context is computed anew. Errors: those of WorkingCache::move_in(); nothing changes.
  std::int64_t held_bytes() const;
  void suspend();
  Status resume();

 private:
  struct Context {
    Wanted wanted;
    bool dropped = false, finished = false;
    std::shared_ptr<const ContextKv> kv;  ///< of a finished one that was not taken
  };
  /// Returns the number of contexts if there is none.
  std::size_t index_of(const ContextKey& key) const;
  void skip_dropped();
  /// Counts KV that waits here, or that leaves (negative).
  void count(std::int64_t bytes);

  QueryRun& run_;
  std::vector<Context> contexts_;
  std::int64_t bytes_ = 0;  ///< of finished contexts that were not taken
  std::size_t next_ = 0;    ///< the one that is computed, or not yet looked at
  std::unique_ptr<ContextPrefill> computing_;
  std::unique_ptr<PrefilledRows> rows_;
};

}  // namespace quire
