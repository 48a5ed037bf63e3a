/// This file declares how the slots of a layer that has left a device are filled there: what every
/// KV head of many sequences chose (kernels/choice/page_choice.h) is copied from the host's memory,
/// as far as it is not in a slot yet. The kernels are in kernels/cuda/choice/page_slots.cuh. The
/// host does the same with ResidentPages (engine/residency/resident_pages.h).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "kernels/choice/page_choice.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/kv_gather.h"

namespace quire {

/// PageSlot is what a slot of a KV head holds. Devices load it as one word of 8 bytes.
struct alignas(8) PageSlot {
  std::int32_t unit;  ///< -1: none
  std::int32_t rows;  ///< its first rows that were copied
  bool operator==(const PageSlot&) const = default;
};

/// SlotCounts counts the copies for one KV head of a sequence in a layer.
struct SlotCounts {
  std::int64_t wanted;    ///< units that steps attended to
  std::int64_t copied;    ///< units that got a slot
  std::int64_t rows;      ///< rows copied with them
  std::int64_t appended;  ///< rows added to units that had a slot
};

/// SlotSequence is one sequence in one layer. All pointers are device memory, `kv_pages` and
/// `slot_pages` being lists there; the pages of `kv_pages` may be pinned memory of the host.
struct SlotSequence {
  const void* const* kv_pages;  ///< of the cache, as in KvView
  void* const* slot_pages;      ///< of the slots, as in MutableKvView
  const RowRange* units;        ///< as in ChoosingSequence, as are:
  const PageHead* heads;
  const std::int32_t* chosen;
  std::int32_t* rows;
  RowList* lists;
  PageSlot* slots;     ///< [num_kv_heads, num_slots]
  SlotCounts* counts;  ///< [num_kv_heads]
  std::int32_t num_units;
};

/// A head wants its first units, what it chose, and all units that it had no choice of yet. Units
/// that have a slot keep it. Others get slots of units that are not wanted, in ascending order
/// both; slots that are left then hold nothing. What a slot lacks of its unit's rows is copied: all
/// of them, or those that came since. Row `slot * unit_rows + i` of the slots is the i-th row of a
/// unit.
///
/// Then the head's list of rows names the slots' rows, units in ascending order. With `coming` only
/// heads take part that have a choice for the next step; they get its units, and no list changes.
///
/// A head wants at most num_slots units, of at most unit_rows rows each.
inline constexpr std::int32_t kMostSlots = 6144;  ///< their lists fit the shared memory of a block
struct FillSlotsArgs {
  const SlotSequence* sequences;  ///< [num_sequences] in device memory
  std::int64_t num_sequences;
  KvView cache;         ///< only its shape: dtype, heads and strides of all sequences
  MutableKvView slots;  ///< the same
  std::int32_t num_first, selected, num_slots, unit_rows;
  std::int64_t most_rows;  ///< most rows of a list
  bool coming;
  // Scratch memory, undefined before and after.
  KvMove* moves;            ///< [num_sequences, num_kv_heads, num_slots]
  std::int32_t* num_moves;  ///< [num_sequences, num_kv_heads]
};

namespace internal {

/// Checks everything but what lies in device memory.
inline Status check_slots(const FillSlotsArgs& a) {
  KvGatherArgs copies{};
  copies.src = a.cache;
  copies.dst = a.slots;
  QUIRE_RETURN_IF_ERROR(check_gather(copies));
  if (a.num_sequences < 0) return Status::invalid("num_sequences", "must not be negative");
  if (a.num_first < 0) return Status::invalid("num_first", "must not be negative");
  if (a.selected < 1) return Status::invalid("selected", "must be positive");
  if (a.num_slots < a.num_first + a.selected)
    return Status::invalid("num_slots", "must hold the first units and the chosen ones");
  if (a.num_slots > kMostSlots)
    return Status::invalid("num_slots", "must be at most " + std::to_string(kMostSlots));
  if (a.unit_rows < 1) return Status::invalid("unit_rows", "must be positive");
  if (a.most_rows < 0) return Status::invalid("most_rows", "must not be negative");
  return {};
}

}  // namespace internal
}  // namespace quire
