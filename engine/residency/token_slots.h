/// Single rows of one layer on the device, KV head by KV head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/residency/device_pool.h"
#include "kernels/kv.h"

namespace quire {

/// A row of the host's cache to be copied to a slot.
struct SlotLoad {
  std::int32_t row = 0, slot = 0;
  bool operator==(const SlotLoad&) const = default;
};

/// Which row of one KV head each slot holds. One map serves every layer whose rows are the same:
/// what is wanted does not depend on the layer.
class SlotMap {
 public:
  explicit SlotMap(std::int32_t num_slots) : row_of_(static_cast<std::size_t>(num_slots), -1) {}

  /// Makes room for `rows` (ascending, no more than there are slots): rows that have a slot keep
  /// it, the others take slots of rows that are not wanted, both ascending. From here on those
  /// slots count as holding them: `loads` gets what must be copied before they are attended to.
  void want(std::span<const std::int32_t> rows, std::vector<SlotLoad>& loads);

  /// Of the rows wanted last, in their order.
  std::span<const std::int32_t> slots() const { return slots_; }
  std::span<const std::int32_t> row_of() const { return row_of_; }  ///< by slot; -1: none

 private:
  std::vector<std::int32_t> row_of_;   ///< by slot
  std::vector<std::int32_t> slot_of_;  ///< by row, -1 or past the end: none
  std::vector<std::int32_t> slots_;
};

/// The memory behind the slots of one layer: [slots / kPageTokens][2 (K,
/// V)][num_kv_heads][kPageTokens][head_dim]. Threads: the engine thread; what is copied to slots
/// may be copied on another one.
class TokenSlots {
 public:
  /// Errors: kResourceExhausted.
  static Result<TokenSlots> create(DevicePool& pool, std::int32_t num_kv_heads,
                                   std::int32_t head_dim, DType dtype, std::int32_t num_slots);
  static std::int64_t bytes_for(std::int32_t num_kv_heads, std::int32_t head_dim, DType dtype,
                                std::int32_t num_slots);

  /// A slot is a row, for kv_gather().
  MutableKvView slots() const;
  /// What copying one row of one KV head moves.
  std::int64_t row_bytes() const { return 2 * half_row_bytes_; }
  /// The same to attend to. All stand at position 0: what is in a slot and listed was chosen for
  /// the query.
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
