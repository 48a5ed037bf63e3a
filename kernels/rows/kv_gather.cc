#include "kernels/rows/kv_gather.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/index.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

constexpr std::int64_t kFetchAhead = 16;       // moves
constexpr std::int64_t kBytesEach = 64 << 10;  // bytes per piece of work of one core

template <class View>
auto* row_of(const View& kv, std::int32_t head, std::int64_t row) {
  using Byte = std::conditional_t<std::is_same_v<View, KvView>, const std::byte, std::byte>;
  return static_cast<Byte*>(kv.pages[row / kPageTokens]) + head * kv.head_stride +
         row % kPageTokens * kv.token_stride;
}

/// Copies a multiple of 16 bytes: head_dim is a multiple of 8 and an element has at least two
/// bytes.
void copy_pieces(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) std::memcpy(to + i, from + i, 64);
  for (; i < bytes; i += 16) std::memcpy(to + i, from + i, 16);
}

/// Copies rows that lie in one page on both sides.
void copy_run(const KvGatherArgs& a, std::int32_t head, std::int64_t from, std::int64_t to,
              std::int64_t rows, std::int64_t row_bytes) {
  const std::byte* const source = row_of(a.src, head, from);
  std::byte* const target = row_of(a.dst, head, to);
  const bool whole = a.src.token_stride == row_bytes && a.dst.token_stride == row_bytes;
  // K and V of a whole page are one piece
  if (whole && a.src.kv_stride == rows * row_bytes && a.dst.kv_stride == rows * row_bytes) {
    std::memcpy(target, source, to_size(2 * rows * row_bytes));
    return;
  }
  for (int kv = 0; kv < 2; ++kv) {
    const std::byte* s = source + kv * a.src.kv_stride;
    std::byte* t = target + kv * a.dst.kv_stride;
    if (whole && rows > 1) {
      std::memcpy(t, s, to_size(rows * row_bytes));
      continue;
    }
    for (std::int64_t r = 0; r < rows; ++r)
      copy_pieces(t + r * a.dst.token_stride, s + r * a.src.token_stride, row_bytes);
  }
}

/// Copies K and V of one row.
template <std::int64_t kRowBytes>
void copy_row(const std::byte* from, std::int64_t from_kv, std::byte* to, std::int64_t to_kv,
              std::int64_t row_bytes) {
  const std::int64_t bytes = kRowBytes > 0 ? kRowBytes : row_bytes;
  copy_pieces(to, from, bytes);
  copy_pieces(to + to_kv, from + from_kv, bytes);
}

/// Moves single rows, which are scattered, and prefetches the next ones. The arguments are copies,
/// because to the compiler a store through bytes may alias anything.
template <std::int64_t kRowBytes>
void copy_single_rows(const KvView src, const MutableKvView dst, const KvMove* moves,
                      std::int64_t n, std::int64_t row_bytes) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (i + kFetchAhead < n) {
      const std::byte* const next = row_of(src, moves[i + kFetchAhead].head,
                                           moves[i + kFetchAhead].from);
      for (std::int64_t at = 0; at < (kRowBytes > 0 ? kRowBytes : row_bytes); at += 64) {
        __builtin_prefetch(next + at);
        __builtin_prefetch(next + src.kv_stride + at);
      }
    }
    copy_row<kRowBytes>(row_of(src, moves[i].head, moves[i].from), src.kv_stride,
                        row_of(dst, moves[i].head, moves[i].to), dst.kv_stride, row_bytes);
  }
}

void copy_moves(const KvGatherArgs& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t row_bytes = a.src.head_dim *
                                 static_cast<std::int64_t>(dtype_bytes(a.src.dtype));
  if (a.most_rows == 1) {
    const auto copy = row_bytes == 128   ? copy_single_rows<128>
                      : row_bytes == 256 ? copy_single_rows<256>
                                         : copy_single_rows<0>;
    copy(a.src, a.dst, a.moves + begin, end - begin, row_bytes);
    return;
  }
  for (std::int64_t i = begin; i < end; ++i) {
    const KvMove& move = a.moves[i];
    for (std::int64_t done = 0; done < move.rows;) {
      const std::int64_t from = move.from + done, to = move.to + done;
      const std::int64_t run = std::min(
          {move.rows - done, kPageTokens - from % kPageTokens, kPageTokens - to % kPageTokens});
      copy_run(a, move.head, from, to, run, row_bytes);
      done += run;
    }
  }
}

}  // namespace

Status kv_gather(const KvGatherArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_gather(a));
  for (std::int64_t i = 0; i < a.num_moves; ++i) {
    const KvMove& m = a.moves[i];
    const bool fits = m.head >= 0 && m.head < a.src.num_kv_heads && m.rows >= 1 &&
                      m.rows <= a.most_rows && m.from >= 0 && m.to >= 0 &&
                      m.from <= a.src.num_rows - m.rows && m.to <= a.dst.num_rows - m.rows;
    if (!fits)
      return Status::invalid(
          "moves", "move " + std::to_string(i) + " of " + std::to_string(m.rows) + " rows from " +
                       std::to_string(m.from) + " to " + std::to_string(m.to) + " of KV head " +
                       std::to_string(m.head) + " is outside the caches");
  }
  const std::int64_t move_bytes = 2 * std::int64_t{a.most_rows} * a.src.head_dim *
                                  static_cast<std::int64_t>(dtype_bytes(a.src.dtype));
  parallel_for(a.num_moves, 1 + kBytesEach / std::max<std::int64_t>(1, move_bytes),
               [&](std::int64_t begin, std::int64_t end) { copy_moves(a, begin, end); });
  return {};
}

}  // namespace quire
