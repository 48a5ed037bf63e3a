/// TokenSlots holds single rows of one layer on the device, KV head by KV head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/residency/device_pool.h"
#include "kernels/rows/kv.h"

namespace quire {

/// SlotLoad describes the copy of a row of the host's cache to a slot.
struct SlotLoad {
  std::int32_t row = 0, slot = 0;
  bool operator==(const SlotLoad&) const = default;
};

/// SlotMap records which row of one KV head each slot holds. One map serves every layer with the
/// same rows, because the wanted rows do not depend on the layer.
class SlotMap {
 public:
  explicit SlotMap(std::int32_t num_slots) : row_of_(to_size(num_slots), -1) {}

  /// Assigns slots to `rows` (ascending, at most as many as slots): rows with a slot keep it, the
  /// others take slots of unwanted rows, both ascending. Those slots count as holding them from now
  /// on; `loads` receives what must be copied before they are attended to.
  void want(std::span<const std::int32_t> rows, std::vector<SlotLoad>& loads);

  /// Returns the slots of the rows wanted last, in their order.
  std::span<const std::int32_t> slots() const { return slots_; }
  std::span<const std::int32_t> row_of() const { return row_of_; }  ///< by slot; -1: none

 private:
  std::vector<std::int32_t> row_of_;   ///< by slot
  std::vector<std::int32_t> slot_of_;  ///< by row; -1 or past the end: no slot
  std::vector<std::int32_t> slots_;
};

/// TokenSlots is the memory of one layer's slots: [slots / kPageTokens][2 (K,
/// V)][num_kv_heads][kPageTokens][head_dim]. Threads: the engine thread; copies to slots may run on
/// another thread.
class TokenSlots {
 public:
  /// Allocates the slots. Errors: kResourceExhausted.
  static Result<TokenSlots> create(DevicePool& pool, std::int32_t num_kv_heads,
                                   std::int32_t head_dim, DType dtype, std::int32_t num_slots);
  static std::int64_t bytes_for(std::int32_t num_kv_heads, std::int32_t head_dim, DType dtype,
                                std::int32_t num_slots);

  /// Returns the slots as a cache for kv_gather(), one row per slot.
  MutableKvView slots() const;
  /// Returns the bytes that copying one row of one KV head moves.
  std::int64_t row_bytes() const { return 2 * half_row_bytes_; }
  /// Returns the slots for attention with lists. Every row has position 0, because listed slots
  /// were chosen for the query.
  KvView view() const;
  std::int64_t bytes() const { return memory_.size(); }

 private:
  PoolMemory memory_;
  std::vector<void*> pages_;
  std::vector<std::int32_t> positions_;
  std::int32_t num_kv_heads_ = 0, head_dim_ = 0;
  std::int64_t half_row_bytes_ = 0;
  DType dtype_ = DType::kF16;
};

}  // namespace quire
