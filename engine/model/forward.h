/// Every path of the engine uses this one forward pass: ingest, full prefill, recomputation,
/// question and decode.
///
/// A pass runs some rows (tokens at positions) through the layers over a WorkingCache. Callers that
/// need more (capturing raw KV at ingest, recomputing different tokens in different layers,
/// blending new KV with old) attach a ForwardHook; no caller has a forward pass of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/cache/working_cache.h"
#include "engine/compute/compute.h"
#include "engine/model/model.h"
#include "kernels/attention/attention.h"

namespace quire {

/// LayerPass is one layer of a pass, as a hook sees it. Where ForwardHook::needs_host() is true,
/// everything enqueued has run and the hook reads copies of the data on the host. Elsewhere the
/// hook decides by rows and positions and enqueues. `rows` are the pass rows still active in this
/// layer, ascending.
struct LayerPass {
  std::int32_t layer;
  std::span<const std::int32_t> rows;       ///< indices into the pass's token_ids
  std::span<const std::int32_t> positions;  ///< of those rows
  QkvRows qkv;                              ///< raw (before RoPE), one row per active row
  /// The log-sum-exps [rows.size(), num_heads]. Null before attention and where no hook needs them;
  /// NaN in rows that did not attend.
  const float* lse;
  WorkingCache* cache;
  /// Decisions of the hook. Preset: write every row to its planned cache row, and carry every row
  /// on.
  /// Per active row: whether new K and V are written into the cache. If not, the cache keeps its
  /// content, and the hook must fill an appended row.
  std::vector<std::uint8_t>* write;
  /// Per active row: whether the next layer needs its output. A row dropped before attention does
  /// not attend (but is written), and cannot come back.
  std::vector<std::uint8_t>* carry_on;
  /// Per active row: the destination row in this layer, of the same position; -1: none.
  std::vector<std::int64_t>* cache_rows;
  Compute* compute;  ///< its memory holds qkv and lse
  /// The projections (keys and values; q is null) and log-sum-exps in host memory, where the hook
  /// needs the host at that point.
  QkvRows host_qkv{};
  const float* host_lse = nullptr;
};

/// HookPoint says when a hook is called within a layer.
enum class HookPoint : std::uint8_t { kProjection, kAttend, kAttention };

class ForwardHook {
 public:
  virtual ~ForwardHook() = default;
  /// Returns whether the hook itself reads or writes the pass's results on the host at that point;
  /// the answer is the same throughout a pass. If not, the host does not synchronize before the
  /// call; the hook may enqueue on `compute` and gets what it fetches before the pass ends. If so,
  /// everything enqueued has run, and the host gets copies: LayerPass::host_qkv and host_lse, and
  /// in attend() operands and results of `dense`.
  virtual bool needs_host(std::int32_t /*layer*/, HookPoint, Compute& /*compute*/) const {
    return true;
  }
  /// Returns whether the hook needs LayerPass::lse after attention although needs_host() is false.
  virtual bool wants_lse(std::int32_t /*layer*/) const { return false; }
  /// Runs after the raw projections, before K and V are written and before attention. It may change
  /// the three decision vectors, add rows to the layer's cache and read stored KV.
  virtual Status after_projection(LayerPass&) { return {}; }
  /// Runs once K and V are written, for the rows still carried on, at ascending positions if the
  /// pass's are. True: the hook has computed out and lse of all rows of `dense` itself. False: the
  /// pass computes `dense`.
  virtual Result<bool> attend(LayerPass&, const AttentionArgs& /*dense*/) { return false; }
  /// Runs after attention of the layer. It may rewrite cache rows (fusion), drop rows it added, and
  /// clear more of carry_on.
  virtual Status after_attention(LayerPass&) { return {}; }
};

/// HiddenTap reads the residual stream of a pass.
class HiddenTap {
 public:
  virtual ~HiddenTap() = default;
  /// Returns the layers whose input it reads, in any order, possibly repeated.
  virtual std::span<const std::int32_t> layers() const = 0;
  /// Takes x: [rows.size(), hidden_size] f32 entering `layer`, valid for this call only. `rows` are
  /// the pass rows still active in that layer, ascending.
  virtual void take(std::int32_t layer, std::span<const std::int32_t> rows, const float* x) = 0;
};

/// RowsBeside are rows of other sequences, those of a decode step, that enter layers beside the
/// rows of a pass: products then read the weights once for both. They attend by themselves, and
/// nothing of the pass depends on them. Where a device computes, its products have more rows and
/// may differ in the last bits. Threads: the engine thread.
class RowsBeside {
 public:
  virtual ~RowsBeside() = default;
  /// Returns the most rows that there ever are.
  virtual std::int64_t most() const = 0;
  /// Returns how many rows wait to enter `layer` of `model`; 0: none.
  virtual std::int64_t waiting(const Model& model, std::int32_t layer) const = 0;
  /// Copies their hidden states to x, [rows, hidden_size]. False: they do not enter.
  virtual bool enter(float* x) = 0;
  /// Returns whether they can attend with results of `dtype`.
  virtual bool attends_in(DType dtype) = 0;
  /// Writes their keys and values to their caches, then attends: `qkv` are their projections, `out`
  /// [rows, num_heads * head_dim] of `dtype`. False: they are not part of the layer any more.
  virtual bool attend(const QkvRows& qkv, void* out, DType dtype) = 0;
  /// Takes their hidden states behind the layer. What enter() began ends here, or the rows find
  /// that the layer failed.
  virtual void leave(const float* x) = 0;
};

struct ForwardRequest {
  std::span<const std::int32_t> token_ids;
  std::span<const std::int32_t> positions;  ///< same length
  /// The cache row that each token writes to, the same in every layer (existing rows are
  /// overwritten). Empty: rows are appended to every layer, as in ordinary prefill and decode.
  std::span<const std::int64_t> cache_rows;
  WorkingCache* cache;
  ForwardHook* hook = nullptr;
  HiddenTap* tap = nullptr;
  /// The rows whose final hidden state is wanted, as ascending indices; usually the last. If
  /// `logits` is not null, their logits are written to it, [logit_rows.size(), vocab_size].
  std::span<const std::int32_t> logit_rows;
  float* logits = nullptr;
  float* hidden = nullptr;  ///< optional [logit_rows.size(), hidden_size], before the final norm
};

/// ForwardWorkspace holds the buffers of a pass; the engine thread reuses them between calls.
class ForwardWorkspace {
 public:
  /// `kept` holds the carried-on rows before they replace all rows.
  ComputeBuffer<float> x, q, attention, lse, kept, logits;
  /// The lse scattered to its rows, and one row of NaNs.
  ComputeBuffer<float> spread_lse, no_lse;
  /// Copies for hooks and taps that need the host.
  std::vector<float> host_rows, host_out, host_lse;
  HostRows host_kv;
  std::vector<std::int32_t> rows, positions;
  std::vector<std::uint8_t> write, carry_on;
  std::vector<std::int64_t> cache_rows;
  /// The rows that may enter the layers of passes with this workspace; null: none. The same
  /// throughout a pass.
  RowsBeside* beside = nullptr;
};

/// Runs the pass. Without a hook, only logit_rows attend in the last layer. Rows attend to every
/// cache row of their layer whose position is <= their own, their own new rows included, unless a
/// hook attends for them. New raw K and V are rounded to the KV dtype *before* RoPE, exactly as a
/// store round trip rounds them, so recomputed and reused rows have the same bits. On error the
/// cache may hold extra rows: the caller truncates. Where the model computes on a device, layers
/// are enqueued one after another. The pass synchronizes before it calls a tap or a hook with
/// needs_host(), and at its end, where hooks get what they fetched (FetchOps::deliver), also
/// after an error. Errors: kInvalidArgument, kResourceExhausted, kDeviceLost.
Status forward(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace);

/// ForwardPass is forward() that can pause between layers. Other passes of the model may run
/// meanwhile, with their own workspaces. What the request points to, `model` and `workspace` must
/// live until it is done.
class ForwardPass {
 public:
  ForwardPass(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace);
  ~ForwardPass();
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  /// Runs the next layer; the last one also writes logits and hidden states. Errors: those of
  /// forward(), after which the pass is over.
  Status step();
  bool done() const;
  /// Returns the layer that step() runs next.
  std::int32_t layer() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
