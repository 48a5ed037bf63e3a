/// This file holds the kernels that fill the slots of a layer that has left the device
/// (kernels/choice/page_slots.h): one decides by tables what is copied where, one copies.
///
/// Cost for a KV head at head_dim d, elements of e bytes:
///   tables  8 bytes and a binary search in shared memory a slot, 28 bytes a wanted unit, 4 written
///           for each row. One block a head, a dozen barriers for 128 units: latency bounds it
///   copies  2 * e * d bytes a missing row from pinned memory, as kv_gather.cuh: the bus bounds
///           them; blocks without a copy read one counter
/// On an H100 steps of four sequences that bring 300 MB took 6.3 ms longer than over pages on the
/// device; the bus copies as much in 5.4 ms.
#pragma once

#include "kernels/choice/page_slots.h"
#include "kernels/cuda/choice/select.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/rows/kv_gather.cuh"

namespace quire::cuda {

/// One thread block per (KV head, sequence). Ascending lists stand in shared memory: the wanted
/// units with their slots, those of them that have none, and the slots that are free.
struct AssignSlotsKernel {
  static constexpr int kThreads = 128;
  FillSlotsArgs a;

  static constexpr int kScratchBytes = kThreads / 32 * static_cast<int>(sizeof(std::int32_t));
  int shared_bytes() const { return begin_of(kScratch) + kScratchBytes; }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().x, sequence = device.block_idx().y,
                       row = sequence * a.cache.num_kv_heads + m;
    const SlotSequence* const s = a.sequences + sequence;
    const PageHead* const head = device.load(&s->heads) + m;
    if (a.coming && device.load(&head->coming) == 0) {
      if (device.thread_idx() == 0) device.store(a.num_moves + row, 0);
      return;
    }
    const int count = want(device, s, m, head);
    PageSlot* const slots = device.load(&s->slots) + m * a.num_slots;
    const int missing = give_slots(device, slots, count);
    fill(device, s, m, slots, row, count, missing);
  }

 private:
  enum Array { kWanted, kSlotOf, kMissing, kFree, kScratch };
  static_assert(kScratch * kMostSlots * static_cast<int>(sizeof(std::int32_t)) + kScratchBytes <=
                kPortableSharedBytes);
  /// The byte at which a list of num_slots numbers begins.
  QUIRE_HOST_DEVICE int begin_of(Array array) const {
    return array * a.num_slots * static_cast<int>(sizeof(std::int32_t));
  }
  template <class Device>
  QUIRE_DEVICE auto list(Device& device, Array array) const {
    return device.template shared<std::int32_t>(begin_of(array), a.num_slots);
  }
  template <class Device>
  QUIRE_DEVICE auto scratch(Device& device) const {
    return device.template shared<std::int32_t>(begin_of(kScratch), kThreads / 32);
  }

  /// Lists the units that the head wants and returns how many there are.
  template <class Device>
  QUIRE_DEVICE int want(Device& device, const SlotSequence* s, std::int64_t m,
                        const PageHead* head) const {
    const std::int32_t which = device.load(&head->current) ^ (a.coming ? 1 : 0),
                       units = device.load(&s->num_units),
                       first = a.num_first < units ? a.num_first : units;
    const std::int32_t* const chosen = device.load(&s->chosen) +
                                       (which * a.cache.num_kv_heads + m) * a.selected;
    std::int32_t unseen = device.load(&head->seen[which]);
    unseen = unseen < first ? first : unseen > units ? units : unseen;
    int count = first + a.selected + units - unseen;
    if (count > a.num_slots) count = a.num_slots;  // no address is wrong for it
    auto wanted = list(device, kWanted);
    auto slot_of = list(device, kSlotOf);
    for (int i = device.thread_idx(); i < count; i += kThreads) {
      std::int32_t unit = i;
      if (i >= first + a.selected)
        unit = unseen + i - first - a.selected;
      else if (i >= first)
        unit = a.num_first + device.load(chosen + i - first);
      wanted[i] = unit;
      slot_of[i] = -1;
    }
    device.sync_threads();
    return count;
  }

  /// Returns the first wanted unit that is not before `unit`.
  template <class Device>
  QUIRE_DEVICE int place_of(Device& device, std::int32_t unit, int count) const {
    auto wanted = list(device, kWanted);
    int low = 0, high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      const std::int32_t there = wanted[middle];
      if (there < unit)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  /// Finds the slots of wanted units, empties the others, and gives them to units that have none.
  /// Returns how many these are.
  template <class Device>
  QUIRE_DEVICE int give_slots(Device& device, PageSlot* slots, int count) const {
    auto wanted = list(device, kWanted);
    auto slot_of = list(device, kSlotOf);
    auto missing = list(device, kMissing);
    auto free = list(device, kFree);
    int num_free = 0;
    for (int first = 0; first < a.num_slots; first += kThreads) {
      const int slot = first + device.thread_idx();
      bool is_free = false;
      if (slot < a.num_slots) {
        const PageSlot held = device.load(slots + slot);
        const int i = held.unit < 0 ? count : place_of(device, held.unit, count);
        std::int32_t unit = -1;
        if (i < count) unit = wanted[i];
        is_free = i == count || unit != held.unit;
        if (is_free)
          device.store(slots + slot, PageSlot{-1, 0});
        else
          slot_of[i] = slot;
      }
      num_free += append(device, is_free, slot, num_free, free);
    }
    int num_missing = 0;
    for (int first = 0; first < count; first += kThreads) {
      const int i = first + device.thread_idx();
      bool lacks = false;
      if (i < count) {
        const std::int32_t slot = slot_of[i];
        lacks = slot < 0;
      }
      num_missing += append(device, lacks, i, num_missing, missing);
    }
    for (int i = device.thread_idx(); i < num_missing; i += kThreads) {
      const std::int32_t of = missing[i];
      // A unit that is wanted twice, which scores that are NaN can cause, may find none.
      std::int32_t slot = 0;
      if (i < num_free) slot = free[i];
      slot_of[of] = slot;
    }
    device.sync_threads();
    return num_missing;
  }

  /// Appends the values of threads that have one to a list of `length`, and returns how many.
  template <class Device, class List>
  QUIRE_DEVICE int append(Device& device, bool has, std::int32_t value, int length, List to) const {
    std::int32_t total;
    const std::int32_t place = length +
                               block_prefix_sum(device, has ? 1 : 0, scratch(device), total);
    if (has) to[place] = value;
    device.sync_threads();
    return total;
  }

  /// Lists copies and rows, notes what slots hold then, and counts.
  template <class Device>
  QUIRE_DEVICE void fill(Device& device, const SlotSequence* s, std::int64_t m, PageSlot* slots,
                         std::int64_t row, int count, int missing) const {
    auto wanted = list(device, kWanted);
    auto slot_of = list(device, kSlotOf);
    const RowRange* const units = device.load(&s->units);
    KvMove* const moves = a.moves + row * a.num_slots;
    std::int32_t* const rows = device.load(&s->rows) + m * a.most_rows;
    std::int32_t num_moves = 0, copied = 0, appended = 0;
    std::int64_t length = 0;
    for (int first = 0; first < count; first += kThreads) {
      const int i = first + device.thread_idx();
      std::int32_t slot = 0, has = 0, begin = 0, held = 0;
      if (i < count) {
        const std::int32_t unit = wanted[i];
        slot = slot_of[i];
        begin = static_cast<std::int32_t>(device.load(&units[unit].begin));
        has = static_cast<std::int32_t>(device.load(&units[unit].end)) - begin;
        if (has > a.unit_rows) has = a.unit_rows;
        const PageSlot now = device.load(slots + slot);
        held = now.rows < has ? now.rows : has;
        if (held < has) device.store(slots + slot, PageSlot{unit, has});
      }
      std::int32_t total;
      const std::int32_t move = num_moves + block_prefix_sum(device, held < has ? 1 : 0,
                                                             scratch(device), total);
      if (held < has)
        device.store(moves + move, KvMove{static_cast<std::int32_t>(m), begin + held,
                                          slot * a.unit_rows + held, has - held});
      num_moves += total;
      device.sync_threads();
      (void)block_prefix_sum(device, held == 0 ? has : 0, scratch(device), total);
      copied += total;
      device.sync_threads();
      (void)block_prefix_sum(device, held > 0 ? has - held : 0, scratch(device), total);
      appended += total;
      device.sync_threads();
      if (a.coming) continue;
      const std::int64_t to = length + block_prefix_sum(device, has, scratch(device), total);
      for (std::int32_t r = 0; r < has && to + r < a.most_rows; ++r)
        device.store(rows + to + r, slot * a.unit_rows + r);
      length += total;
      device.sync_threads();
    }
    if (device.thread_idx() != 0) return;
    device.store(a.num_moves + row, num_moves);
    SlotCounts* const counts = device.load(&s->counts) + m;
    add(device, &counts->wanted, a.coming ? 0 : count);
    add(device, &counts->copied, missing);
    add(device, &counts->rows, copied);
    add(device, &counts->appended, appended);
    if (a.coming) return;
    RowList* const lists = device.load(&s->lists) + m;
    device.store(&lists->rows, static_cast<const std::int32_t*>(rows));
    device.store(&lists->length, length < a.most_rows ? length : a.most_rows);
  }

  template <class Device>
  QUIRE_DEVICE static void add(Device& device, std::int64_t* to, std::int64_t n) {
    device.store(to, device.load(to) + n);
  }
};

/// One thread block per copy that a KV head of a sequence may need; blocks without one leave at
/// once.
struct CopyToSlotsKernel {
  static constexpr int kThreads = KvGatherKernel::kThreads;
  FillSlotsArgs a;
  std::int32_t pieces;  ///< number of 16-byte pieces in a row of K or V

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().z * a.cache.num_kv_heads + device.block_idx().y;
    if (device.block_idx().x >= device.load(a.num_moves + row)) return;
    const SlotSequence* const s = a.sequences + device.block_idx().z;
    KvGatherArgs copy{a.cache, a.slots, a.moves + row * a.num_slots, a.num_slots, a.unit_rows};
    copy.src.pages = device.load(&s->kv_pages);
    copy.dst.pages = device.load(&s->slot_pages);
    KvGatherKernel{copy, pieces}(device);
  }
};

/// Launches the kernels one after the other. Errors: kInvalidArgument (shapes; what lies in device
/// memory is not checked).
template <class Launcher>
Status launch_fill_slots(Launcher& launcher, const FillSlotsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_slots(a));
  const AssignSlotsKernel assign{a};
  QUIRE_RETURN_IF_ERROR(launcher.launch(
      {{a.cache.num_kv_heads, a.num_sequences, 1}, assign.kThreads, assign.shared_bytes()},
      assign));
  return launcher.launch({{a.num_slots, a.cache.num_kv_heads, a.num_sequences},
                          KvGatherKernel::threads_for(a.cache, a.unit_rows),
                          0},
                         CopyToSlotsKernel{a, KvGatherKernel::pieces_of(a.cache)});
}

}  // namespace quire::cuda
