/// This file recomputes tokens of placed contexts in chunks of rows, so that no pass delays the
/// decode steps of others.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"

namespace quire {

/// Tells which layers of the working cache hold all stored rows, as values arrive while lower
/// layers run. On a device rows whose values have arrived count as placed, and bring() places them.
/// The host then packs a layer while the device computes the one below.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  virtual bool placed(std::int32_t layer) const = 0;
  virtual bool all_placed() const = 0;
  /// Is called before a pass runs through a layer that counts as placed. Errors: those of placing.
  virtual Status bring(std::int32_t layer) = 0;
};

/// Reports what a pass did.
struct RecomputeReport {
  /// Tokens that ran through the pass and were replaced in some layer, [context], ascending.
  std::vector<std::vector<std::int32_t>> tokens;
  /// Number of (layer, token) pairs with new KV. Divided by num_layers and document tokens it is
  /// the recompute ratio.
  std::int64_t replaced = 0;
  /// Number of (layer, token) pairs that were run, padding included; this is the cost of the pass.
  std::int64_t projected = 0;
  /// The context whose stored KV does not belong to its tokens, if step() failed with kCorruption.
  std::int32_t wrong_context = -1;
};

/// A pass over a working cache that nobody else changes until it is done. Rows run in ascending
/// positions, so a chunk sees what earlier chunks wrote, and the result does not depend on the
/// chunk size. Threads: the engine thread.
class RecomputePass {
 public:
  virtual ~RecomputePass() = default;
  virtual bool done() const = 0;
  /// Returns whether step() can continue; else it waits for rows to be placed.
  virtual bool ready() const { return gate_ == nullptr || gate_->all_placed(); }
  /// Returns whether step() brings each layer by itself; else all are brought before.
  virtual bool brings_layers() const { return false; }
  /// Runs one forward call of at most max_rows rows (>= 1), as far as layers are placed; the last
  /// call also does the final writes. It must not be called once done(). Until a call has run all
  /// layers, the next step() continues it with the workspace it began with.
  ///
  /// Layer 0 of a token depends only on the token, so new KV must equal the stored KV there, within
  /// rounding between machines. On a mismatch step() fails with kCorruption and
  /// report().wrong_context names the context. Its rows may then be rewritten from a fresh prefill
  /// and a new pass prepared, which rewrites everything the failed pass wrote. Errors: kCorruption,
  /// kResourceExhausted, kInternal (a stored block was not loaded). After any error the pass is
  /// done and its padding is removed.
  virtual Status step(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
                      std::int64_t max_rows) = 0;
  const RecomputeReport& report() const { return report_; }
  /// Sets a hook that sees the replaced rows while they run, after the pass has processed them; it
  /// cannot change them. Call before the first step(); `hook` must outlive the pass, and null means
  /// none.
  void observe(ForwardHook* hook) { observer_ = hook; }
  /// Sets the gate that the pass waits on; null: all layers are placed. Call before the first
  /// step(); it must outlive the pass.
  void wait_on(LayerGate* gate) { gate_ = gate; }

 protected:
  LayerGate* gate_ = nullptr;
  ForwardHook* observer_ = nullptr;
  RecomputeReport report_;
};

}  // namespace quire
