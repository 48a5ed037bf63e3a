#include "engine/compute/cpu_kv.h"

#include <algorithm>
#include <cstring>

#include "base/index.h"
#include "kernels/parallel.h"
#include "kernels/rows/block_summary.h"
#include "kernels/rows/fusion.h"
#include "kernels/rows/raw_rows.h"

namespace quire {
namespace {

template <class T>
void reserve(std::vector<T>& values, std::int64_t n) {
  if (values.size() < static_cast<std::size_t>(n)) values.resize(to_size(n));
}

}  // namespace

/// Rounds rows as a store round trip would, then places them with K rotated.
Status CpuKv::round_and_place(const RopeTable& table, const NewRows& n, DType raw_dtype,
                              const MutableKvView& dst) {
  const std::int64_t kv_dim = std::int64_t{dst.num_kv_heads} * dst.head_dim;
  const auto size = static_cast<std::int64_t>(dtype_bytes(raw_dtype)),
             row_stride = dst.head_dim * size;
  reserve(raw_, n.rows * 2 * kv_dim * size);
  QUIRE_RETURN_IF_ERROR(kv_pack({.k = n.k,
                                 .v = n.v,
                                 .rows = n.rows,
                                 .ldk = n.ld,
                                 .ldv = n.ld,
                                 .num_kv_heads = dst.num_kv_heads,
                                 .head_dim = dst.head_dim,
                                 .dtype = raw_dtype,
                                 .out = raw_.data()}));
  const RawKvView raw{.data = raw_.data(),
                      .num_rows = n.rows,
                      .dtype = raw_dtype,
                      .head_stride = 2 * n.rows * row_stride,
                      .kv_stride = n.rows * row_stride,
                      .row_stride = row_stride};
  return kv_place(table, {.src = raw,
                          .dst = dst,
                          .positions = n.positions.data(),
                          .dst_rows = n.dst_rows.data(),
                          .first_dst_row = 0});
}

Status CpuKv::write_rows(const RopeTable& table, const WriteRowsArgs& a) {
  const auto n = count_of(a.from);
  if (n == 0) return {};
  NewRows rows{a.k, a.v, n, a.ld, a.positions, a.dst_rows};
  // The rows are scattered: gather those to write.
  if (a.from.front() != 0 || a.from.back() + 1 != n) {
    const std::int64_t kv_dim = std::int64_t{a.dst.num_kv_heads} * a.dst.head_dim;
    gather_new(a, kv_dim);
    rows.k = gathered_.data();
    rows.v = rows.k + kv_dim;
    rows.ld = 2 * kv_dim;
  }
  return round_and_place(table, rows, a.raw_dtype, a.dst);
}

void CpuKv::gather_new(const WriteRowsArgs& a, std::int64_t kv_dim) {
  reserve(gathered_, count_of(a.from) * 2 * kv_dim);
  const auto bytes = to_size(kv_dim) * sizeof(float);
  float* to = gathered_.data();
  for (const std::int32_t row : a.from) {
    std::memcpy(to, a.k + row * a.ld, bytes);
    std::memcpy(to + kv_dim, a.v + row * a.ld, bytes);
    to += 2 * kv_dim;
  }
}

Status CpuKv::place(const RopeTable& table, const MutableKvView& dst,
                    std::span<const StoredRows> rows) {
  for (const StoredRows& r : rows)
    QUIRE_RETURN_IF_ERROR(kv_place(table, {.src = r.raw,
                                           .dst = dst,
                                           .positions = r.positions.data(),
                                           .dst_rows = r.dst_rows.data(),
                                           .first_dst_row = 0}));
  return {};
}

Status CpuKv::blend_stored(const BlendStoredArgs& a) {
  const auto width = to_size(a.num_kv_heads) * to_size(a.head_dim);
  struct Row {
    const RawKvView* raw;
    std::int64_t index;
  };
  std::vector<Row> old;
  for (const RawKvView& piece : a.stored) {
    for (std::int64_t i = 0; i < piece.num_rows; ++i) old.push_back({&piece, i});
  }
  parallel_for(count_of(old), 8, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> stored(2 * width);
    const std::span<const float> before(stored);
    for (std::int64_t i = begin; i < end; ++i) {
      const Row& row = old[at(i)];
      load_raw_row(*row.raw, row.index, a.num_kv_heads, a.head_dim, stored.data(),
                   stored.data() + width);
      const std::span fresh_k(a.k + i * a.ld, width), fresh_v(a.v + i * a.ld, width);
      const auto stored_k = before.first(width), stored_v = before.last(width);
      fuse(fresh_k, stored_k, fusion_weight(fresh_k, stored_k));
      fuse(fresh_v, stored_v, fusion_weight(fresh_v, stored_v));
    }
  });
  return {};
}

Status CpuKv::block_means(const RopeTable& table, const BlockMeansArgs& a) {
  for (std::int64_t first = 0, block = 0; first < a.raw.num_rows;
       first += a.block_tokens, ++block) {
    BlockSummaryArgs args{};
    args.raw = raw_rows(a.raw, first, std::min(a.block_tokens, a.raw.num_rows - first));
    args.num_kv_heads = a.num_kv_heads;
    args.head_dim = a.head_dim;
    args.first_position = static_cast<std::int32_t>(a.first_position + first);
    args.mean = a.means + block * a.num_kv_heads * a.head_dim;
    QUIRE_RETURN_IF_ERROR(block_summary(table, args));
  }
  return {};
}

}  // namespace quire
