/// DeviceChoices is what the KV heads of one sequence chose, kept in a device's memory, so that no
/// decode step waits for the host to choose pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/residency/retrieval_pages.h"
#include "engine/retrieve/choice_buffers.h"
#include "engine/retrieve/choosing_memory.h"
#include "kernels/choice/page_choice.h"

namespace quire {

/// ChoosePages (kernels/choice/page_choice.h) moves the choices on. The host only says which pages
/// there are. Threads: one at a time.
class DeviceChoices {
 public:
  struct Shape {
    std::int32_t num_layers, num_heads, num_kv_heads, head_dim;
    std::int32_t selected;   ///< pages that a head chooses
    std::int64_t most_rows;  ///< most rows that a head attends to
    bool by_turn;            ///< queries of choices are kept
  };
  /// One head's choice.
  struct Choice {
    std::vector<std::int32_t> pages;  ///< ascending, as offsets from the first candidate
    std::int32_t seen = 0;            ///< as in PageHead
  };
  struct Counts {
    std::int64_t selections = 0, heads_corrected = 0, heads_kept = 0;
  };

  DeviceChoices(std::shared_ptr<ChoosingMemory> memory, const Shape& shape);
  /// Returns the upper bound of the memory, for a page per page_tokens rows and more_pages besides.
  static ChoosingNeed need(const Shape& shape, std::int64_t page_tokens, std::int64_t more_pages);

  /// Returns the layer's part in this step's call of ChoiceOps::choose_pages(), without query,
  /// bounds and candidates; the step's row is in `pages`. Before the layer's first choice the heads
  /// count as having served first_served steps. It may be called again for the same step. Errors:
  /// those of the memory.
  Result<ChoosingSequence> of(std::int32_t layer, const RetrievalPages& pages,
                              std::int32_t first_served);
  /// Says that the call was enqueued, so that the layer's heads have a choice from then on.
  void enqueued(std::int32_t layer) { layers_[at(layer)].chose = true; }
  /// Returns the lists that the call writes, for all layers in turn.
  ChosenLists lists() const { return {lists_.data(), shape_.most_rows}; }

  /// Returns whether the layer's heads have chosen here.
  bool chose(std::int32_t layer) const { return layers_[at(layer)].chose; }
  /// Reads the choices that the layer's heads have for the next step. The device is waited for.
  Result<std::vector<Choice>> read(std::int32_t layer) const;
  /// Reads what all layers count. The device is waited for.
  Result<Counts> counts() const;

 private:
  struct Layer {
    ComputeBuffer<RowRange> units;  ///< of all pages; the call writes the last one
    std::int64_t room = 0;
    std::int64_t known_rows = 0;  ///< rows of the pages that units has
    bool chose = false;
  };
  std::int64_t heads() const { return std::int64_t{shape_.num_layers} * shape_.num_kv_heads; }
  std::int64_t width() const { return std::int64_t{shape_.num_heads} * shape_.head_dim; }

  const std::shared_ptr<ChoosingMemory> memory_;
  const Shape shape_;
  std::vector<Layer> layers_;
  ComputeBuffer<PageHead> heads_;       ///< [num_layers, num_kv_heads]
  ComputeBuffer<std::int32_t> chosen_;  ///< [num_layers, 2, num_kv_heads, selected]
  ComputeBuffer<float> chosen_by_;      ///< [num_layers, num_heads, head_dim]; only with by_turn
  ComputeBuffer<std::int32_t> rows_;    ///< [num_kv_heads, most_rows], of the layer in turn
  ComputeBuffer<RowList> lists_;        ///< [num_kv_heads]
};

}  // namespace quire
