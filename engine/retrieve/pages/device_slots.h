/// DeviceSlots is what the slots of one sequence's layers hold, kept in a device's memory, so that
/// no decode step waits for the host to bring pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/cache/kv_table.h"
#include "engine/compute/choice_ops.h"
#include "engine/residency/resident_pages.h"
#include "engine/retrieve/choosing_memory.h"

namespace quire {

/// FillSlots (kernels/choice/page_slots.h) moves the contents on. A layer's ResidentPages has the
/// memory of the slots; what they hold it knows only until begin(). Threads: one at a time.
class DeviceSlots {
 public:
  struct Shape {
    std::int32_t num_layers, num_kv_heads, num_slots, page_tokens;
  };

  DeviceSlots(std::shared_ptr<ChoosingMemory> memory, const Shape& shape);
  /// Returns the upper bound of the memory.
  static ChoosingNeed need(const Shape& shape);

  /// Takes over the slots of a layer that has left the device, with the pages that they hold; does
  /// nothing if it has. Errors: those of the memory.
  Status begin(std::int32_t layer, const ResidentPages& slots);
  bool began(std::int32_t layer) const { return layers_[at(layer)].slots.pages != nullptr; }
  /// Returns the layer's part in this step's call of ChoiceOps::fill_slots(), for its part in
  /// choose_pages().
  SequenceSlots of(std::int32_t layer, const KvView& kv, const ChoosingSequence& choosing);

  /// Reads the pages that a KV head has in slots, ascending. The device is waited for.
  Result<std::vector<std::int32_t>> pages(std::int32_t layer, std::int32_t head) const;
  /// Reads what all layers counted. The device is waited for.
  Result<SlotCounts> counts() const;

 private:
  struct Layer {
    KvView slots{};                  ///< ResidentPages::listed()
    std::unique_ptr<KvTable> table;  ///< of it
  };
  std::int64_t heads() const { return std::int64_t{shape_.num_layers} * shape_.num_kv_heads; }
  std::int64_t slots_of_layer() const {
    return std::int64_t{shape_.num_kv_heads} * shape_.num_slots;
  }

  const std::shared_ptr<ChoosingMemory> memory_;
  const Shape shape_;
  std::vector<Layer> layers_;
  ComputeBuffer<PageSlot> slots_;     ///< [num_layers, num_kv_heads, num_slots]
  ComputeBuffer<SlotCounts> counts_;  ///< [num_layers, num_kv_heads]
};

}  // namespace quire
