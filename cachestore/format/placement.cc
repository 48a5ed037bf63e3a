#include "cachestore/format/placement.h"

namespace quire {

void ValueSlots::add(std::uint32_t payload_bytes, std::uint32_t count) {
  if (count == 0) return;
  if (!runs_.empty() && runs_.back().payload_bytes == payload_bytes) {
    runs_.back().count += count;
  } else {
    runs_.push_back({payload_bytes, count});
  }
}

std::uint64_t ValueSlots::size() const {
  std::uint64_t n = 0;
  for (const Run& run : runs_) n += run.count;
  return n;
}

std::uint64_t ValueSlots::bytes() const {
  std::uint64_t n = 0;
  for (const Run& run : runs_) n += run.count * slot_bytes(run.payload_bytes);
  return n;
}

std::optional<ValueSlots::Slot> ValueSlots::find(std::uint64_t position) const {
  std::uint64_t begin = 0;
  for (const Run& run : runs_) {
    const std::uint64_t step = slot_bytes(run.payload_bytes);
    if (position < run.count) return Slot{begin + position * step + kLead, run.payload_bytes};
    position -= run.count;
    begin += run.count * step;
  }
  return std::nullopt;
}

std::optional<ValueSlots::Slot> Placement::find(const record::ValueName& name) const {
  const std::uint64_t num_values = std::uint64_t{num_blocks} * values_per_block;
  if (name.part == record::Part::kSketch) {
    if (name.block >= num_sketches || name.group != 0) return std::nullopt;
    return slots.find(num_values + name.block);
  }
  if (name.block >= num_blocks || name.group >= values_per_block) return std::nullopt;
  return slots.find(std::uint64_t{name.block} * values_per_block + name.group);
}

}  // namespace quire
