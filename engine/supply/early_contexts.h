/// This file computes contexts of a query while the shared tiers are still asked for their KV.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/prefill/context_kv.h"
#include "engine/query/query_run.h"

namespace quire {

/// Computes contexts alone, one after another, as KvSupply computes those without usable KV. What
/// is finished waits here for it. Threads: the engine thread.
class EarlyContexts {
 public:
  struct Wanted {
    std::int32_t context = 0;  ///< index among those of the request
    ContextKey key;
  };
  /// The keys are distinct, the indices ascend. `run` must outlive this.
  EarlyContexts(QueryRun& run, const std::vector<Wanted>& wanted);

  /// Returns whether a context is neither finished nor dropped.
  bool left() const { return computing_ || next_ < contexts_.size(); }
  /// Returns whether a context is begun and not finished.
  bool computing() const { return computing_ != nullptr; }
  /// Computes for about `max_ms`, but at least one layer. Errors: those of ContextPrefill.
  Status step(double max_ms);
  /// Stops computing the context, as its KV is in the store; does nothing if it is finished or of
  /// another query.
  void drop(const ContextKey& key);

  /// Returns a finished context, once; null if there is none.
  std::shared_ptr<const ContextKv> take(const ContextKey& key);
  /// Returns the rows of the last finished context, from which the next may go on; null if none.
  std::unique_ptr<PrefilledRows> take_rows() { return std::move(rows_); }

  /// held_bytes() returns the page bytes of the context that is being computed, wherever they are.
  /// suspend() moves them to ordinary memory, resume() back.
  std::int64_t held_bytes() const;
  void suspend();
  Status resume();

 private:
  struct Context {
    Wanted wanted;
    bool dropped = false;
    std::shared_ptr<const ContextKv> kv;  ///< null: not finished, or taken
  };
  Context* find(const ContextKey& key);
  void skip_dropped();

  QueryRun& run_;
  std::vector<Context> contexts_;
  std::size_t next_ = 0;  ///< the one that is computed, or not yet looked at
  std::unique_ptr<ContextPrefill> computing_;
  std::unique_ptr<PrefilledRows> rows_;
};

}  // namespace quire
