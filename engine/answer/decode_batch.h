/// One decode step of several sequences at once: their rows share every matrix product, each
/// attends to its own cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/working_cache.h"
#include "engine/model/compute.h"
#include "engine/model/model.h"
#include "engine/retrieve/retriever.h"

namespace quire {

struct DecodeRow {
  std::int32_t token_id = 0, position = 0;
  WorkingCache* cache = nullptr;
  Retriever* retriever = nullptr;
  /// How its next token may be drawn where the logits lie; none: they are wanted
  std::optional<DrawRule> rule;
  Status status;  ///< out: not OK means this row has no logits and its cache is as before
  /// Out: [vocab_size], valid until the next step; none where the token was drawn
  std::span<const float> logits;
  std::int32_t drawn = -1;  ///< out: the token drawn by `rule`; -1: whoever computes does not draw
};

/// Up to 16 rows take about as long as one (the weights are read once). On the CPU a row's numbers
/// do not depend on the other rows: they are those of forward() on this sequence alone. Threads:
/// the engine thread. Rows whose retriever brings every row attend in one call of the Compute; on a
/// device a step of such rows alone waits once, for its tokens, or logits. The other retrievers
/// compute on the host, which waits for each layer.
class DecodeBatch {
 public:
  explicit DecodeBatch(Model& model)
      : model_(model), compute_(model.compute()), memory_(compute_.memory()) {}
  /// Errors of one sequence stay in its row; what is returned concerns them all (and leaves their
  /// caches as they were).
  Status step(std::span<DecodeRow> rows);

 private:
  void begin_rows(std::span<DecodeRow> rows);
  void project_heads(std::span<DecodeRow> rows);
  Status run(std::span<DecodeRow*> rows);
  Status run_layers(std::span<DecodeRow*> rows);
  Status read_results(std::span<DecodeRow*> rows);
  Status run_layer(std::int32_t layer, std::span<DecodeRow*> rows);
  Status write_rows(std::int32_t layer, std::span<DecodeRow*> rows, const QkvRows& qkv);
  Status attend(std::int32_t layer, std::span<DecodeRow*> rows);
  Status attend_to_some(std::int32_t layer, DecodeRow& row, std::int64_t index, double* choose_ms);
  Status attend_to_all(std::int32_t layer, std::span<DecodeRow*> rows, std::int64_t first);
  Status show_hidden(std::int32_t layer, std::span<DecodeRow*> rows);
  void hand_out_hidden();
  AttentionArgs attention_args(std::int64_t first, std::int64_t rows);

  Model& model_;
  Compute& compute_;
  const std::shared_ptr<ComputeMemory> memory_;
  /// A row's state that a retriever gets at the end of a step.
  struct Hidden {
    Retriever* retriever;
    std::int32_t layer;
  };
  /// Of rows that a retrieval head projects together
  std::vector<float> head_features_, head_queries_, head_keys_;
  ComputeBuffer<float> x_, query_, attention_, logits_;
  ComputeBuffer<float> hidden_;         ///< [shown_.size(), hidden_size], on a device
  std::vector<Hidden> shown_;           ///< in the order of hidden_
  ComputeBuffer<std::int32_t> tokens_;  ///< drawn
  std::vector<DrawRule> rules_;         ///< of all rows; empty: none is drawn
  std::vector<std::int32_t> ids_, positions_, from_, dst_rows_, write_positions_;
  std::vector<void*> pages_;
  std::vector<float> read_;  ///< logits, where those of a device are copied
  std::vector<SequenceAttention> sequences_;
  std::vector<std::vector<std::int32_t>> head_rows_;
  std::vector<RowList> lists_;
};

}  // namespace quire
