/// The one forward pass every path of the engine uses: ingest, full prefill, recomputation,
/// question, decode.
///
/// A pass runs some rows (tokens at positions) through the layers over a WorkingCache. Who needs
/// more than that (capturing raw KV at ingest, recomputing different tokens in different layers,
/// blending new KV with old) hangs a ForwardHook into it; nobody gets a forward pass of his own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/cache/working_cache.h"
#include "engine/model/compute.h"
#include "engine/model/model.h"
#include "kernels/attention.h"

namespace quire {

/// One layer of a pass, as a hook sees it. Where a hook looks (ForwardHook::looks_at) all that was
/// enqueued has run, and it may read and write what it is shown; elsewhere it decides by rows and
/// positions, and enqueues. `rows` are the pass rows still active in this layer, ascending.
struct LayerPass {
  std::int32_t layer;
  std::span<const std::int32_t> rows;       ///< indices into the pass's token_ids
  std::span<const std::int32_t> positions;  ///< of those rows
  QkvRows qkv;                              ///< raw (before RoPE), one row per active row
  /// [rows.size(), num_heads]; null before attention and where no hook looks or wants it, NaN in
  /// rows that did not attend
  const float* lse;
  WorkingCache* cache;
  /// Decisions, preset to: write every row to its planned cache row, and carry every row on.
  /// Per active row: write new K, V into the cache (else the cache keeps what it has; what an
  /// appended row holds is then up to the hook)
  std::vector<std::uint8_t>* write;
  /// Per active row: its output is needed by the next layer; a row dropped before attention does
  /// not attend (but is written), and cannot come back
  std::vector<std::uint8_t>* carry_on;
  /// Per active row: destination row in this layer, of the same position; -1: none
  std::vector<std::int64_t>* cache_rows;
  Compute* compute;  ///< whose memory qkv and lse lie in
};

/// When a hook is called within a layer.
enum class HookPoint : std::uint8_t { kProjection, kAttend, kAttention };

class ForwardHook {
 public:
  virtual ~ForwardHook() = default;
  /// Whether the hook itself reads or writes what the pass computes when it is called there. Where
  /// it does not, nobody waits for a device before the call; it may enqueue (`compute` is the
  /// pass's, its hooks() what can be enqueued), and what it fetches is handed to it before the pass
  /// ends. The same answer throughout a pass.
  virtual bool looks_at(std::int32_t /*layer*/, HookPoint, Compute& /*compute*/) const {
    return true;
  }
  /// LayerPass::lse is needed after attention though the hook does not look.
  virtual bool wants_lse(std::int32_t /*layer*/) const { return false; }
  /// After the raw projections, before K and V are written and before attention. May change the
  /// three decision vectors, add rows to the layer's cache and read stored KV.
  virtual Status after_projection(LayerPass&) { return {}; }
  /// Once K and V are written. True: it has computed what `dense` says, out and lse of all of its
  /// rows, in a way of its own. False: the pass computes just that. The rows are those still
  /// carried on, at ascending positions if the pass's are.
  virtual Result<bool> attend(LayerPass&, const AttentionArgs& /*dense*/) { return false; }
  /// After attention of the layer. May rewrite cache rows (fusion), drop rows it added, and clear
  /// more of carry_on.
  virtual Status after_attention(LayerPass&) { return {}; }
};

/// Sees the residual stream on its way through a pass.
class HiddenTap {
 public:
  virtual ~HiddenTap() = default;
  /// Layers whose input it sees; any order, may repeat.
  virtual std::span<const std::int32_t> layers() const = 0;
  /// x: [rows.size(), hidden_size] f32 entering `layer`. `rows` are the pass rows still active
  /// there, ascending. For this call only.
  virtual void take(std::int32_t layer, std::span<const std::int32_t> rows, const float* x) = 0;
};

struct ForwardRequest {
  std::span<const std::int32_t> token_ids;
  std::span<const std::int32_t> positions;  ///< same length
  /// Cache row each token writes to, the same in every layer (existing rows are overwritten).
  /// Empty: rows are appended to every layer, which is the ordinary prefill and decode.
  std::span<const std::int64_t> cache_rows;
  WorkingCache* cache;
  ForwardHook* hook = nullptr;
  HiddenTap* tap = nullptr;
  /// Rows whose final hidden state is wanted, ascending indices; usually the last. Their logits are
  /// written to `logits` [logit_rows.size(), vocab_size] when it is not null.
  std::span<const std::int32_t> logit_rows;
  float* logits = nullptr;
  float* hidden = nullptr;  ///< optional [logit_rows.size(), hidden_size], before the final norm
};

/// Buffers of a pass, reused between calls by the engine thread.
class ForwardWorkspace {
 public:
  /// Kept: rows that go on, before they take the place of all rows
  ComputeBuffer<float> x, q, attention, lse, kept, logits;
  /// On a device: lse moved to its rows, and one row of NaNs
  ComputeBuffer<float> spread_lse, no_lse;
  std::vector<std::int32_t> rows, positions;
  std::vector<std::uint8_t> write, carry_on;
  std::vector<std::int64_t> cache_rows;
};

/// Runs the pass. Without a hook, only logit_rows attend in the last layer. Rows attend to every
/// cache row of their layer whose position is <= their own, their own new rows included, unless a
/// hook attends for them. New raw K and V are rounded to the KV dtype *before* RoPE, exactly as a
/// store round trip rounds them, so recomputed and reused rows have the same bits. On error the
/// cache may hold extra rows: the caller truncates. Where the model computes on a device, layers
/// are enqueued one behind the other; a pass waits for them before it calls a hook that looks or a
/// tap, and at its end, where hooks get what they fetched (HookCompute::deliver), also where it is
/// given up. Errors: kInvalidArgument, kResourceExhausted, kDeviceLost.
Status forward(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace);

/// The same pass, left between layers and taken up again: other passes of the model may run
/// meanwhile, with workspaces of their own. What the request points to, `model` and `workspace`
/// must stay until it is done.
class ForwardPass {
 public:
  ForwardPass(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace);
  ~ForwardPass();
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  /// Runs the next layer; the last one also writes logits and hidden states. Errors as forward();
  /// the pass is over then.
  Status step();
  bool done() const;
  /// The layer that step() runs next.
  std::int32_t layer() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
