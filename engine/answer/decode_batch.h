/// This file runs one decode step of several sequences at once. Their rows share every matrix
/// product, and each attends to its own cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/working_cache.h"
#include "engine/compute/compute.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"
#include "engine/retrieve/retriever.h"

namespace quire {

struct DecodeRow {
  std::int32_t token_id = 0, position = 0;
  WorkingCache* cache = nullptr;
  Retriever* retriever = nullptr;
  /// How to sample its next token where the logits are computed; none: the logits are wanted.
  std::optional<SampleRule> rule;
  /// How to sample the tokens after that one, if steps of them may follow before the host reads
  /// anything. The cache has room for as many more rows.
  std::span<const SampleRule> ahead;
  Status status;  ///< out: if not OK, the row has no logits and its cache is unchanged
  /// Out: logits, [vocab_size], valid until the next step; empty if the token was sampled by
  /// `rule`.
  std::span<const float> logits;
  std::int32_t drawn = -1;  ///< out: the token sampled by `rule`; -1: the Compute does not sample
  /// Out: the tokens sampled by `ahead`, as many as steps followed. The cache then has a row of
  /// each token but the last.
  std::vector<std::int32_t> drawn_ahead;
};

/// Runs decode steps; up to 16 rows take about as long as one, as the weights are read once. On the
/// CPU a row's results do not depend on other rows: they equal those of forward() on its sequence
/// alone.
///
/// Rows with dense retrievers attend in one call of the Compute, and on a device so do rows whose
/// retrievers attend together. A step of only such rows synchronizes once, for its tokens or
/// logits. Other retrievers compute on the host, which synchronizes per layer.
///
/// A device need not wait for the host between tokens: where all rows are sampled by rules, and
/// attend to everything or to what the device chooses (Retriever::follows_unseen()), further steps
/// follow, each with the tokens of the one before, for as many as every row has rules for.
///
/// Rows for which there is no memory at once, such as that of their attention's partial results,
/// run in parts one after the other.
///
/// A step may be mixed with passes: between begin() and end() its rows enter the layers of any pass
/// that has this as ForwardWorkspace::beside and runs them in order, from the first on. end() runs
/// what is left, all of it if there was no such pass. Threads: the engine thread.
class DecodeBatch final : public RowsBeside {
 public:
  /// `most` is the largest number of rows of a mixed step.
  explicit DecodeBatch(Model& model, std::int32_t most = 16)
      : model_(model), compute_(model.compute()), memory_(compute_.memory()), most_(most) {}
  /// Runs one step. Errors of one sequence are set in its row; a returned error concerns all rows
  /// and leaves their caches unchanged.
  Status step(std::span<DecodeRow> rows);
  /// Begins a step, `mix`: of which passes may run layers. `rows` must live until end(), and no
  /// other step may run meanwhile. One that throws need not end.
  void begin(std::span<DecodeRow> rows, bool mix);
  /// Ends it. Errors: as step(). No step follows it unseen (DecodeRow::ahead) if a pass ran any
  /// layer of it.
  Status end();
  /// Returns whether passes have run layers of the step between begin() and end().
  bool mixed() const { return next_layer_ > 0 || within_; }

  std::int64_t most() const override { return most_; }
  std::int64_t waiting(const Model& model, std::int32_t layer) const override;
  bool enter(float* x) override;
  bool attends_in(DType dtype) override;
  bool attend(const QkvRows& qkv, void* out, DType dtype) override;
  void leave(const float* x) override;

 private:
  void begin_rows(std::span<DecodeRow> rows);
  void project_heads(std::span<DecodeRow> rows);
  void score_heads(std::span<DecodeRow> rows);
  Status run_parts(std::span<DecodeRow*> rows, std::size_t first);
  Status run(std::span<DecodeRow*> rows, std::size_t first);
  Status reserve(std::span<DecodeRow*> rows, std::size_t ahead);
  Status run_mixed_rest(std::span<DecodeRow*> rows);
  Status attend_mixed(const QkvRows& qkv, void* out, DType dtype);
  std::size_t steps_ahead(std::span<DecodeRow*> rows) const;
  Status run_ahead(std::span<DecodeRow*> rows, std::size_t step);
  Status run_step(std::span<DecodeRow*> rows, std::int64_t ahead);
  Status sample_all(std::span<DecodeRow*> rows, std::int64_t ahead);
  Status refresh_tables(std::span<DecodeRow*> rows);
  Status read_results(std::span<DecodeRow*> rows, std::size_t first);
  Status run_layer(std::int32_t layer, std::span<DecodeRow*> rows);
  Status rotate_and_write(std::int32_t layer, std::span<DecodeRow*> rows, const QkvRows& qkv);
  Status attend(std::int32_t layer, std::span<DecodeRow*> rows);
  bool attend_as_one(std::int32_t layer, std::span<DecodeRow*> rows);
  RetrieveStep step_of(std::int32_t layer, const DecodeRow& row, std::int64_t index);
  Result<std::int64_t> attend_together(std::int32_t layer, std::span<DecodeRow*> rows,
                                       std::int64_t first);
  Status attend_to_some(std::int32_t layer, DecodeRow& row, std::int64_t index, double* choose_ms);
  Status attend_to_all(std::int32_t layer, std::span<DecodeRow*> rows, std::int64_t first);
  Status show_hidden(std::int32_t layer, std::span<DecodeRow*> rows);
  void hand_out_hidden();
  AttentionArgs attention_args(std::int64_t first, std::int64_t rows);

  Model& model_;
  Compute& compute_;
  const std::shared_ptr<ComputeMemory> memory_;
  const std::int64_t most_;
  std::vector<DecodeRow*> active_;  ///< rows of the step since begin()
  std::int32_t next_layer_ = 0;     ///< the one that a pass may run next, with the rows beside it
  bool mixing_ = false;             ///< between begin() and end()
  bool within_ = false;             ///< the rows have attended in next_layer_ and not left it
  Status mixed_status_;             ///< of what ran beside passes
  /// A row's hidden state that a retriever gets at the end of a step.
  struct Hidden {
    HeadDriven* driven;
    std::int32_t layer;
  };
  /// Buffers for rows that a retrieval head projects together.
  std::vector<float> head_features_, head_queries_, head_keys_;
  ComputeBuffer<float> x_, query_, attention_, logits_;
  float* attended_ = nullptr;            ///< attention_, or the place beside a pass
  DType attention_dtype_ = DType::kF32;  ///< of attended_, in the current layer
  /// [shown_.size(), hidden_size]; pinned on a device, for the host reads it.
  ComputeBuffer<float> hidden_{MemoryPlace::kPinned};
  std::vector<HeadDriven*> driven_;        ///< of the step's rows; null: it chooses otherwise
  std::vector<AttendsTogether*> joining_;  ///< of the step's rows; null: it attends by itself
  std::vector<RetrieveStep> steps_;        ///< of the rows that attend together
  std::vector<Hidden> shown_;              ///< in the order of hidden_
  ComputeBuffer<std::int32_t> tokens_;     ///< sampled tokens
  std::vector<SampleRule> rules_;          ///< rules of all rows; empty: no token is sampled
  std::vector<std::int32_t> ids_, positions_, from_, dst_rows_, write_positions_;
  std::size_t followed_ = 0;  ///< steps that followed the last one
  std::vector<void*> pages_;
  std::vector<KvView> views_;
  std::vector<float> read_;  ///< logits of the step's rows
  /// The rows that run may run again if memory fails them: no retriever attended that is not as it
  /// was before.
  bool repeatable_ = true;
  std::vector<SequenceAttention> sequences_;
  std::vector<std::vector<std::int32_t>> head_rows_;
  std::vector<RowList> lists_;
};

}  // namespace quire
