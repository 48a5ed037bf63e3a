/// What choosing takes of the device that computes at most, known before a request runs
/// (choosing_memory.h counts what it does take).
#pragma once

#include <cstdint>

namespace quire {

class RetrievalHead;

/// What a request's need depends on beside its options and its length.
struct RetrieveShape {
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t num_contexts = 0;
  const RetrievalHead* head = nullptr;  ///< null: none is loaded
};

/// A bound that no length passes.
struct ChoosingNeed {
  std::int64_t fixed_bytes = 0, row_bytes = 0;  ///< of a request, and of each of its rows
  std::int64_t bytes(std::int64_t rows) const { return fixed_bytes + rows * row_bytes; }
  ChoosingNeed& operator+=(const ChoosingNeed& other) {
    fixed_bytes += other.fixed_bytes;
    row_bytes += other.row_bytes;
    return *this;
  }
};

/// Values that a buffer takes which has to hold n: growing waits for the device, and answers grow
/// by a row a step.
constexpr std::int64_t with_room(std::int64_t n) { return n + n / 8 + 64; }
/// What such a buffer needs at most whose values are `per_row` for each row, and `fixed` of them
/// beside.
constexpr ChoosingNeed need_with_room(std::int64_t per_row, std::int64_t fixed,
                                      std::int64_t value_bytes) {
  return {(with_room(fixed) + 1) * value_bytes, (per_row + (per_row + 7) / 8) * value_bytes};
}

}  // namespace quire
