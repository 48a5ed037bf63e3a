/// RowRetriever is the base of retrievers that choose single rows: CTkvr, its upper bound and
/// sampling.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/retrieve/choosing_memory.h"
#include "engine/retrieve/retrieve_options.h"
#include "engine/retrieve/retriever.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

/// RowPolicy holds the options of row retrievers: numbers of rows. `sink` and `window` are the
/// first and last rows of the prompt, which every step attends to.
struct RowPolicy : RetrieveOptions {
  RowPolicy() {
    budget = 1600;
    sink = 64;
    window = 512;
  }
  /// The rows of the answer that join the window; beyond that the oldest become candidates.
  std::int32_t generated = 4096;
  std::int32_t chosen = 1024;  ///< of the rest, for each KV head; finish() computes it

  /// Adapts sink and window to the budget. Errors: kInvalidArgument, field
  /// "<field>.decode_budget": it leaves nothing to choose.
  Status finish(std::string_view field);
};

/// Returns the upper bound of the prompt's last rows and the answer's rows that are always attended
/// to, before the oldest may become candidates.
inline std::int64_t most_local(const RowPolicy& policy) {
  return std::int64_t{policy.window} + policy.generated + 2 * kPageTokens;
}

/// Returns the options `decode_budget`, `decode_sink`, `decode_window`, `decode_generated` and
/// `decode_dense_layers`.
OptionFields<RowPolicy> row_options();

/// HostStep is the part of one KV head in a step: rows on the host, some of which it attends to.
struct HostStep {
  std::int32_t layer = 0, kv_head = 0;
  KvView kv;
  RowRange host{0, 0};           ///< rows that may be chosen
  std::int64_t prompt_end = 0;   ///< rows from here on came to the host after the prompt
  const float* query = nullptr;  ///< [group, head_dim], post-RoPE
  std::int32_t group = 0;
  float scale = 0;
  float* out = nullptr;  ///< [group, head_dim]
  float* lse = nullptr;  ///< [group]
};

/// HostCounts says what attend_host() did.
struct HostCounts {
  std::int64_t scored = 0, attended = 0;
  double choose_ms = 0;  ///< part of its time; the rest is attention to the chosen rows
  /// Heads that chose anew before their turn, and heads that reused an earlier choice.
  std::int64_t corrected = 0, kept = 0;
};

/// RowRetriever serves one sequence. A step attends to the first rows (sink), to the prompt's last
/// rows followed by the answer's (the local range), and to those host rows between them that
/// attend_host() chooses. The two parts are merged by their log-sum-exps, so no row counts twice.
/// While the local range is longer than window and `generated`, its oldest page moves to the host.
/// A layer with no more host rows than a step may choose attends to everything. Of a long prompt
/// prepare_more() takes a layer a call: all of them off the device first, then into the index.
class RowRetriever : public Retriever, public PreparesInPieces {
 public:
  Status prepare(const SequenceContext& sequence, const AssembledPrompt& prompt) override;
  bool prepared() const override { return to_leave_.empty() && to_index_.empty(); }
  Status prepare_more() override;
  /// Returns false for dense steps, and for all steps if chooses_by_votes().
  bool needs_host(const RetrieveStep& step) const override;
  Status attend(const RetrieveStep& step) override;
  void synchronize() override;
  RetrieveStats stats() const override;

 protected:
  RowRetriever(RetrieverTraits traits, const RowPolicy& policy)
      : Retriever(traits), policy_(policy) {}
  /// Makes the state of a sequence. It runs in prepare(), where sequence() is already set.
  virtual void begin_sequence(const AssembledPrompt& prompt) = 0;
  /// Runs in prepare() if some layers have more prompt rows than a step may choose. Returns whether
  /// those layers leave the device and get an index; without, everything stays as it is.
  virtual Result<bool> begin_index(const AssembledPrompt&) { return false; }
  /// Indexes a layer with more prompt rows than a step may choose, which the host can read. It runs
  /// once for each, ascending, after all of them left the device.
  virtual Status index(std::int32_t /*layer*/) { return {}; }
  /// Computes attention of the query to rows of step.host. Several KV heads call it concurrently in
  /// different threads. It is not called if chooses_by_votes().
  virtual Result<HostCounts> attend_host(const HostStep&) {
    return Status::unimplemented("attend_by_votes() serves the steps");
  }
  /// Returns whether attend_host() of the step takes much longer than of steps for which this is
  /// false. Such steps run first, so that threads finish at about the same time.
  virtual bool chooses(const HostStep&) const { return true; }
  /// Returns whether attend_by_votes() serves the steps: the choice stays in the Compute's memory.
  virtual bool chooses_by_votes() const { return false; }
  /// Computes on step.compute, for all KV heads, attention to all rows outside `host` and to the
  /// policy().chosen best rows in it. `host` has more rows than that.
  virtual Status attend_by_votes(const RetrieveStep& /*step*/, const KvView& /*kv*/,
                                 RowRange /*host*/) {
    return Status::unimplemented("each KV head attends by itself");
  }
  /// The attention of a step to the first rows and to the rows from `first_row` on, which a
  /// Compute computed.
  struct StaticPart {
    std::span<const float> out, lse;  ///< [num_heads, head_dim], [num_heads]
    std::int64_t first_row = 0;
  };
  /// Attends like attend(), on the host to the other rows alone. The layer is sparse.
  Status attend_beside(const RetrieveStep& step, const StaticPart& part);
  /// Returns the end of the rows that a step over num_rows rows may choose from.
  std::int64_t host_end(std::int32_t layer, std::int64_t num_rows) const;
  /// Runs after every KV head attended in the step.
  virtual void end_step(const HostStep& /*of the last KV head*/) {}

  const RowPolicy& policy() const { return policy_; }
  const SequenceContext& sequence() const { return sequence_; }
  /// Returns whether steps of the layer begin sparse; prompt_host() then returns the prompt rows on
  /// the host.
  bool sparse(std::int32_t layer) const;
  RowRange prompt_host(std::int32_t layer) const;
  /// Returns the device memory for choosing, valid from before begin_sequence() on; null where the
  /// host computes.
  const std::shared_ptr<ChoosingMemory>& buffer_memory() const { return device_memory_; }

 private:
  struct Layer {
    std::int64_t prompt_rows = 0,
                 prompt_end = 0;  ///< prompt rows; end of the host range within them
    std::int64_t host_end = 0;
    HostRows rows;  ///< for the host to attend to, where they do not lie in its memory
  };
  Status attend_step(const RetrieveStep& step, const StaticPart* part);
  Status attend_local(const RetrieveStep& step, const KvView& kv, const Layer& layer);
  Status take_part(const RetrieveStep& step, const KvView& kv, const Layer& layer,
                   const StaticPart& part);
  bool attends_to_all(std::int32_t layer, std::int64_t host_end) const {
    return layer < policy_.dense_layers || host_end - policy_.sink <= policy_.chosen;
  }

  const RowPolicy policy_;
  SequenceContext sequence_;
  std::shared_ptr<ChoosingMemory> device_memory_;
  std::vector<Layer> layers_;
  std::vector<std::int32_t> to_leave_, to_index_;  ///< layers left to prepare, the next one last
  bool leaving_ = false;                           ///< copies of layers may still run
  std::vector<float> out_, lse_, part_lse_;        ///< [num_heads, head_dim], [num_heads]
  std::vector<std::int64_t> order_;                ///< order of KV heads in a step
};

}  // namespace quire
