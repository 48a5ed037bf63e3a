/// Retrievers that choose single rows: what CTkvr, its upper bound and sampling share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/plug/plug_options.h"
#include "engine/retrieve/choosing_memory.h"
#include "engine/retrieve/retriever.h"
#include "kernels/attention_mass.h"

namespace quire {

/// Numbers of rows.
struct RowPolicy {
  /// First and last rows of the prompt, which every step attends to
  std::int32_t sink = 64, window = 512;
  /// Of the answer, that join them; then the oldest of them join the rows to choose from
  std::int32_t generated = 4096;
  std::int32_t chosen = 1024;     ///< of the rest, for each KV head
  std::int32_t dense_layers = 0;  ///< of the first layers: they attend to everything
};

/// Rows of the prompt's end and of the answer that are attended to at most before the oldest may be
/// left out.
inline std::int64_t most_local(const RowPolicy& policy) {
  return std::int64_t{policy.window} + policy.generated + 2 * kPageTokens;
}

/// `decode_budget` with this default, `decode_sink`, `decode_window`, `decode_generated` and
/// `decode_dense_layers`.
std::vector<PlugOption> row_options(std::string_view budget);
/// Reads those. Errors: kInvalidArgument, field "cache.options.decode_budget": it leaves nothing to
/// choose.
Result<RowPolicy> read_row_policy(const PlugOptions& options, std::span<const PlugOption> table);

/// The part of one KV head in a step: rows on the host, of which some are attended to.
struct HostStep {
  std::int32_t layer = 0, kv_head = 0;
  KvView kv;
  KvStretch host{0, 0};          ///< rows that may be chosen
  std::int64_t prompt_end = 0;   ///< those from here on came to the host after the prompt
  const float* query = nullptr;  ///< [group, head_dim], post-RoPE
  std::int32_t group = 0;
  float scale = 0;
  float* out = nullptr;  ///< [group, head_dim]
  float* lse = nullptr;  ///< [group]
};

/// What attend_host() did.
struct HostCounts {
  std::int64_t scored = 0, attended = 0;
  double choose_ms = 0;  ///< of its time; the rest is attention to what was chosen
  /// Heads that chose anew before their turn, and those that went by an earlier choice
  std::int64_t corrected = 0, kept = 0;
};

/// One sequence. A step attends to the first rows (sink), the prompt's last rows with the answer's
/// behind them (the local range), and of the host rows between them to those that attend_host()
/// chooses; the two parts are merged by their log-sum-exps, so no row counts twice. While the local
/// range is longer than window and `generated`, its oldest page moves to the host. A layer with no
/// more host rows than a step may choose attends to everything.
class RowRetriever : public Retriever {
 public:
  Status prepare(const RetrieveInput& input) override;
  /// A device attends to everything by itself, and where attend_there() is, to what is chosen, too.
  bool looks_at(const RetrieveStep& step) const override;
  Status attend(const RetrieveStep& step) override;
  void took_to_choose(double ms) override { stats_.choose_ms += ms; }
  RetrieveStats stats() const override;

 protected:
  /// Of the request's options; input() is there already.
  virtual Result<RowPolicy> read(const PlugOptions& options) = 0;
  /// In prepare(): there are layers with more prompt rows on the host than a step may choose.
  virtual Status index(const RetrieveInput&) { return {}; }
  /// Attention of the query to rows of step.host. For several KV heads at once, in different
  /// threads.
  virtual Result<HostCounts> attend_host(const HostStep& step) = 0;
  /// attend_host() of the step takes much longer than of those of which this says no: it comes
  /// first, so that threads are done at about the same time.
  virtual bool chooses(const HostStep&) const { return true; }
  /// attend_there() is to be called where a device computes.
  virtual bool chooses_there() const { return false; }
  /// Enqueues on step.compute, for all KV heads, attention to all rows outside `host` and to the
  /// policy().chosen best of those within, which are more.
  virtual Status attend_there(const RetrieveStep& /*step*/, const KvView& /*kv*/,
                              KvStretch /*host*/) {
    return Status::unimplemented("the host attends");
  }
  /// The step was attended to for every KV head.
  virtual void end_step(const HostStep& /*of the last KV head*/) {}

  const RowPolicy& policy() const { return policy_; }
  /// Its spans and what was for prepare() alone are gone
  const RetrieveInput& input() const { return input_; }
  /// Whether steps of the layer begin sparse, and which prompt rows are on the host then.
  bool sparse(std::int32_t layer) const;
  KvStretch prompt_host(std::int32_t layer) const;
  /// Of what choosing takes there; null where the host computes. From before read() on.
  const std::shared_ptr<ChoosingMemory>& memory_there() const { return memory_there_; }
  RetrieveStats stats_;

 private:
  struct Layer {
    std::int64_t prompt_rows = 0, prompt_end = 0;  ///< rows of the prompt; where its host rows end
    std::int64_t host_end = 0;
  };
  Status attend_local(const RetrieveStep& step, const KvView& kv, const Layer& layer);
  std::int64_t host_end(std::int32_t layer, std::int64_t num_rows) const;
  bool attends_to_all(std::int32_t layer, std::int64_t host_end) const {
    return layer < policy_.dense_layers || host_end - policy_.sink <= policy_.chosen;
  }

  RowPolicy policy_;
  RetrieveInput input_;
  std::shared_ptr<ChoosingMemory> memory_there_;
  std::vector<Layer> layers_;
  std::vector<float> out_, lse_, part_lse_;  ///< [num_heads, head_dim], [num_heads]
  std::vector<std::int64_t> order_;          ///< of KV heads in a step
};

}  // namespace quire
