/// Tokens of placed contexts, computed again a chunk of rows at a time so that no pass holds up the
/// decode steps of others.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"

namespace quire {

/// Says which layers of the working cache hold the stored rows already: values arrive while lower
/// layers run.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  virtual bool placed(std::int32_t layer) const = 0;
  virtual bool all_placed() const = 0;
};

/// What a pass did.
struct RecomputeReport {
  /// [context] tokens carried through the pass and replaced in a layer, ascending
  std::vector<std::vector<std::int32_t>> tokens;
  /// (layer, token) pairs with new KV; by num_layers and document tokens it is the recompute ratio
  std::int64_t replaced = 0;
  /// (layer, token) pairs that were run, padded ones included: what the pass cost
  std::int64_t projected = 0;
  /// The context whose stored KV is not that of its tokens, when step() failed with kCorruption.
  std::int32_t wrong_context = -1;
};

/// One pass over a working cache that nobody else changes until it is done. Rows run in ascending
/// positions, so a chunk sees what the chunks before it wrote and the result does not depend on how
/// the rows are cut. Threads: the engine thread.
class RecomputePass {
 public:
  virtual ~RecomputePass() = default;
  virtual bool done() const = 0;
  /// step() can go on; else it waits for rows to be placed.
  virtual bool ready() const { return gate_ == nullptr || gate_->all_placed(); }
  /// One forward call of at most max_rows rows (>= 1), as far as layers are placed; with the last
  /// rows also what is written at the end. Not called once done(). Until a call is through all
  /// layers, the next step() goes on with it in the workspace it began with.
  ///
  /// Layer 0 of a token depends on nothing but the token, so there new KV must equal the stored one
  /// (SAM-4) within rounding between machines. A context that fails is not what its key says:
  /// kCorruption, and report().wrong_context names it. Its rows may then be written again from a
  /// fresh prefill and the pass prepared anew; what the failed pass had written is written again by
  /// the new one. Errors: kCorruption, kResourceExhausted, kInternal (a stored block was not
  /// loaded). After any, the pass is done and its padding gone.
  virtual Status step(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
                      std::int64_t max_rows) = 0;
  const RecomputeReport& report() const { return report_; }
  /// `hook` sees the rows that are replaced while they run, after what the pass decided on them,
  /// and decides nothing. Before the first step(); it must outlive the pass. Null: nobody.
  void observe(ForwardHook* hook) { observer_ = hook; }
  /// Before the first step(); it must outlive the pass. Null: all layers are placed.
  void wait_on(const LayerGate* gate) { gate_ = gate; }

 protected:
  const LayerGate* gate_ = nullptr;
  ForwardHook* observer_ = nullptr;
  RecomputeReport report_;
};

}  // namespace quire
