#include "engine/retrieve/pages/device_slots.h"

#include <algorithm>
#include <utility>

#include "base/index.h"

namespace quire {

DeviceSlots::DeviceSlots(std::shared_ptr<ChoosingMemory> memory, const Shape& shape)
    : memory_(std::move(memory)), shape_(shape), layers_(at(shape.num_layers)) {}

ChoosingNeed DeviceSlots::need(const Shape& shape) {
  const std::int64_t layers = shape.num_layers, heads = layers * shape.num_kv_heads,
                     rows = std::int64_t{shape.num_slots} * shape.page_tokens;
  return {bytes_of<PageSlot>(heads * shape.num_slots) + bytes_of<SlotCounts>(heads) +
              layers * KvTable::bytes_for(rows),
          0};
}

Status DeviceSlots::begin(std::int32_t layer, const ResidentPages& slots) {
  if (began(layer)) return {};
  if (counts_.data() == nullptr) {
    QUIRE_RETURN_IF_ERROR(counts_.reserve(memory_, heads()));
    const std::vector<SlotCounts> none(to_size(heads()));
    QUIRE_RETURN_IF_ERROR(
        memory_->write(counts_.data(), none.data(), bytes_of<SlotCounts>(count_of(none))));
  }
  QUIRE_RETURN_IF_ERROR(slots_.reserve(memory_, shape_.num_layers * slots_of_layer()));
  std::vector<PageSlot> held;
  for (std::int32_t head = 0; head < shape_.num_kv_heads; ++head) {
    for (std::int32_t slot = 0; slot < shape_.num_slots; ++slot) {
      const std::int32_t page = slots.page_in(head, slot);
      held.push_back({page, page < 0 ? 0 : slots.rows_in(head, slot)});
    }
  }
  QUIRE_RETURN_IF_ERROR(memory_->write(slots_.data() + layer * slots_of_layer(), held.data(),
                                       bytes_of<PageSlot>(count_of(held))));
  Layer& one = layers_[at(layer)];
  one.table = std::make_unique<KvTable>(*memory_);
  // Here, where a lack of room concerns this sequence alone.
  QUIRE_RETURN_IF_ERROR(one.table->reserve(slots.slots().num_rows));
  one.slots = slots.listed();
  one.slots.table = one.table.get();
  return {};
}

SequenceSlots DeviceSlots::of(std::int32_t layer, const KvView& kv,
                              const ChoosingSequence& choosing) {
  SlotSequence heads{};
  heads.units = choosing.units;
  heads.heads = choosing.heads;
  heads.chosen = choosing.chosen;
  heads.rows = choosing.rows;
  heads.lists = choosing.lists;
  heads.num_units = choosing.num_units;
  heads.slots = slots_.data() + layer * slots_of_layer();
  heads.counts = counts_.data() + std::int64_t{layer} * shape_.num_kv_heads;
  return {kv, layers_[at(layer)].slots, heads};
}

Result<std::vector<std::int32_t>> DeviceSlots::pages(std::int32_t layer, std::int32_t head) const {
  std::vector<PageSlot> held(to_size(shape_.num_slots));
  QUIRE_RETURN_IF_ERROR(memory_->read(
      slots_.data() + layer * slots_of_layer() + std::int64_t{head} * shape_.num_slots,
      bytes_of<PageSlot>(shape_.num_slots), held.data()));
  std::vector<std::int32_t> out;
  for (const PageSlot& slot : held) {
    if (slot.unit >= 0) out.push_back(slot.unit);
  }
  std::ranges::sort(out);
  return out;
}

Result<SlotCounts> DeviceSlots::counts() const {
  SlotCounts out{};
  std::vector<SlotCounts> each(to_size(counts_.data() != nullptr ? heads() : 0));
  QUIRE_RETURN_IF_ERROR(
      memory_->read(counts_.data(), bytes_of<SlotCounts>(count_of(each)), each.data()));
  for (const SlotCounts& one : each) {
    out.wanted += one.wanted;
    out.copied += one.copied;
    out.rows += one.rows;
    out.appended += one.appended;
  }
  return out;
}

}  // namespace quire
