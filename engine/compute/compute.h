/// Compute is the interface of what a forward pass, its hooks and a decode step compute with.
///
/// It has two implementations: the CPU (make_cpu_compute), and a device behind engine/device, which
/// computes in its own memory. The graph (llama_model.h), the pass (forward.h), hooks, retrievers
/// and the decode step (answer/decode_batch.h) are written once, against both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/compute/attention_ops.h"
#include "engine/compute/choice_ops.h"
#include "engine/compute/fetch_ops.h"
#include "engine/compute/kv_ops.h"
#include "engine/compute/linear_ops.h"
#include "engine/sample/draw.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rows/rope.h"

namespace quire {

/// ComputeMatrix is a weight matrix W [n, k] in memory that its Compute reads. Immutable.
class ComputeMatrix {
 public:
  virtual ~ComputeMatrix() = default;
  virtual std::int64_t n() const = 0;
  virtual std::int64_t k() const = 0;
  /// Returns the bytes that a decode step must read.
  virtual std::int64_t bytes() const = 0;
};

/// ComputeValues holds plain values in memory that their Compute reads. Immutable, shared.
struct ComputeValues {
  std::shared_ptr<const void> data;
  std::int64_t bytes = 0;
  bool empty() const { return data == nullptr; }
  const float* floats() const { return static_cast<const float*>(data.get()); }
};

/// Compute owns weights and gives the operations on them, in families by what they work on.
///
/// Memory. The operands that each family names lie in memory() if it is not null, else anywhere.
/// Weights lie in what pack() and upload() returned.
///
/// Order. Calls take effect in their order. With a memory() they may return before they have run:
/// the host reads results after synchronize(), or by fetch(). Without one they have run when they
/// return.
///
/// Bits. On the CPU a row's result depends on nothing but the row (kernels/README.md). A device
/// guarantees that within an operation that uses the same kernel; products with another number of
/// rows may differ in the last bits.
///
/// Threads: one at a time, except for pack(), upload() and what a family names. Errors:
/// kInvalidArgument, kResourceExhausted, kDeviceLost.
class Compute {
 public:
  virtual ~Compute() = default;
  /// Returns "cpu" or "cuda".
  virtual std::string name() const = 0;
  /// Returns the memory that this Compute works in; null: the host computes, in any memory.
  virtual std::shared_ptr<ComputeMemory> memory() const = 0;
  bool on_host() const { return memory() == nullptr; }
  /// Returns how many devices hold a share of each matrix. The first has all the rest: memory() is
  /// its memory.
  virtual std::int64_t devices() const { return 1; }
  /// Returns the least bytes that a device with nothing but shares has free for them; no limit
  /// where there is none. Errors: as ComputeMemory::budget().
  virtual Result<std::int64_t> share_budget(const char* /*setting*/) {
    return std::numeric_limits<std::int64_t>::max();
  }
  /// Returns the memory for pages of KV (MemoryPlace::kPages) that attention() and kv() take:
  /// memory(), or with splits_kv() one that cuts each page over the devices. That one is made once,
  /// for pages [num_kv_heads] of so many bytes a head, and twins share it. Errors: kInvalidArgument
  /// (pages of another shape).
  virtual Result<std::shared_ptr<ComputeMemory>> page_memory(std::int32_t /*num_kv_heads*/,
                                                             std::int64_t /*head_bytes*/) {
    return memory();
  }
  /// Returns whether each device has pages and attention of some KV heads alone. Then retrievers
  /// find no pages on the first device: choice() and lists in memory do not work.
  virtual bool splits_kv() const { return false; }
  /// Makes a Compute that shares the weights and may run concurrently with this one.
  virtual std::shared_ptr<Compute> twin() const = 0;
  Status synchronize() const { return quire::synchronize(memory().get()); }

  // Weights. The caller may free the arguments afterwards. The results must not outlive the Compute
  // or its twins.
  virtual Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts,
                                                      std::int64_t k, DType dtype,
                                                      WeightFormat format) = 0;
  /// Packs the gate and up projections, which are stacked in this order with equally many outputs,
  /// for LinearOps::feed_forward() alone. `bias` [outputs] is the one that it will get, or empty.
  virtual Result<std::unique_ptr<ComputeMatrix>> pack_gate_up(std::span<const WeightPart> parts,
                                                              std::int64_t k, DType dtype,
                                                              WeightFormat format,
                                                              std::span<const float> /*bias*/) {
    return pack(parts, k, dtype, format);
  }
  virtual Result<ComputeValues> upload(std::span<const std::byte> values) = 0;
  /// Registers the table for operations that rotate, for as long as the returned object lives. The
  /// table must live as long.
  virtual Result<std::shared_ptr<const void>> register_rope(const RopeTable& table) = 0;

  virtual LinearOps& linear() = 0;
  virtual AttentionOps& attention() = 0;
  virtual KvOps& kv() = 0;
  virtual ChoiceOps& choice() = 0;
  virtual FetchOps& fetch() = 0;

  /// Copies to ordinary memory after everything enqueued before has run.
  virtual Status read_bytes(const void* x, std::int64_t bytes, void* out) = 0;
  Status read(const float* x, std::int64_t n, float* out) {
    return read_bytes(x, n * static_cast<std::int64_t>(sizeof(float)), out);
  }
  /// Returns whether sample() works. If not, the caller reads the logits to sample tokens.
  virtual bool samples() const { return false; }
  /// Samples tokens[i], in memory(), from logits[i, :vocab] by rules[i] as sample_token() does.
  /// Errors: kInvalidArgument (vocab of 2^22 or more), kUnimplemented (samples() is false).
  virtual Status sample(const float* logits, std::int64_t vocab, std::span<const SampleRule> rules,
                        std::int32_t* tokens);

  /// Begins a decode step of `rows` rows that ends with end_step(); also a step abandoned after an
  /// error must end. The calls in between may be recorded and replayed as one graph when the same
  /// calls come again, with the same results. `ahead` counts the steps since the host last waited.
  virtual void begin_step(std::int64_t /*rows*/, std::int64_t /*ahead*/ = 0) {}
  virtual Status end_step() { return {}; }
};

std::shared_ptr<Compute> make_cpu_compute();

}  // namespace quire
