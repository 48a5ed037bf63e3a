/// One decode step of several sequences at once: their rows share every matrix product, each attends to its own cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/working_cache.h"
#include "engine/model/model.h"
#include "engine/retrieve/retriever.h"
#include "kernels/base/status.h"

namespace quire {

struct DecodeRow {
  std::int32_t token_id = 0, position = 0;
  WorkingCache* cache = nullptr;
  Retriever* retriever = nullptr;
  Status status;               ///< out: not OK means this row has no logits and its cache is as before
  std::span<const float> logits;  ///< out: [vocab_size], valid until the next step
};

/// Up to 16 rows take about as long as one (the weights are read once). A row's numbers do not depend on the other rows:
/// they are those of forward() on this sequence alone. Threads: the engine thread.
class DecodeBatch {
 public:
  explicit DecodeBatch(Model& model) : model_(model) {}
  /// Errors of one sequence stay in its row; what is returned concerns them all (and leaves their caches as they were).
  Status step(std::span<DecodeRow> rows);

 private:
  Status run(std::span<DecodeRow*> rows);
  Status run_layer(std::int32_t layer, std::span<DecodeRow*> rows);
  Model& model_;
  std::vector<float> x_, query_, attention_, logits_;
  std::vector<std::int32_t> ids_, positions_;
  std::vector<std::uint8_t> raw_;
};

}  // namespace quire
