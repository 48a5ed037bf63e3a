#include "kernels/rows/kv_gather.h"

#include <cstddef>
#include <cstring>

#include "base/index.h"

namespace quire {

Status kv_gather_reference(const KvGatherArgs& a) {
  const std::size_t row_bytes = to_size(a.src.head_dim) * dtype_bytes(a.src.dtype);
  for (const KvMove* move = a.moves; move != a.moves + a.num_moves; ++move) {
    for (std::int64_t i = 0; i < move->rows; ++i) {
      for (std::int64_t kv = 0; kv < 2; ++kv) {
        const std::int64_t from = move->from + i, to = move->to + i;
        const auto* source = static_cast<const std::byte*>(a.src.pages[from / kPageTokens]) +
                             move->head * a.src.head_stride + kv * a.src.kv_stride +
                             from % kPageTokens * a.src.token_stride;
        auto* target = static_cast<std::byte*>(a.dst.pages[to / kPageTokens]) +
                       move->head * a.dst.head_stride + kv * a.dst.kv_stride +
                       to % kPageTokens * a.dst.token_stride;
        std::memcpy(target, source, row_bytes);
      }
    }
  }
  return {};
}

}  // namespace quire
