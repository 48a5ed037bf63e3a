/// This file bounds the device memory that a retriever needs to choose rows, before a request runs.
/// choosing_memory.h counts the memory it really takes.
#pragma once

#include <cstdint>

namespace quire {

class RetrievalHead;

/// Holds what a request's memory need depends on besides its options and its length.
struct RetrieveShape {
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t num_contexts = 0;
  const RetrievalHead* head = nullptr;  ///< null: none is loaded
};

/// Upper bound of device memory as a linear function of the number of rows.
struct ChoosingNeed {
  std::int64_t fixed_bytes = 0, row_bytes = 0;  ///< bytes per request, and per row of it
  std::int64_t bytes(std::int64_t rows) const { return fixed_bytes + rows * row_bytes; }
  ChoosingNeed& operator+=(const ChoosingNeed& other) {
    fixed_bytes += other.fixed_bytes;
    row_bytes += other.row_bytes;
    return *this;
  }
};

/// Returns the capacity, in values, of a growable buffer that must hold `n` values. The slack
/// avoids a synchronization with the device on every decode step.
constexpr std::int64_t with_room(std::int64_t n) { return n + n / 8 + 64; }
/// Bounds the bytes of such a buffer that holds `per_row` values for each row and `fixed` further
/// values.
constexpr ChoosingNeed need_with_room(std::int64_t per_row, std::int64_t fixed,
                                      std::int64_t value_bytes) {
  return {(with_room(fixed) + 1) * value_bytes, (per_row + (per_row + 7) / 8) * value_bytes};
}

}  // namespace quire
