#include "kernels/rows/kv.h"

#include "kernels/parallel.h"
#include "kernels/rows/cpu/rows.h"
#include "kernels/rows/kv_checks.h"

namespace quire {

Status kv_place(const RopeTable& table, const KvPlaceArgs& args) {
  const std::int64_t rows = args.src.num_rows;
  if (rows < 0) return Status::invalid("src.num_rows", "must not be negative");
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(args.dst.num_kv_heads, args.dst.head_dim));
  if (!internal::is_raw_kv_dtype(args.src.dtype) || !internal::is_kv_dtype(args.dst.dtype))
    return Status::invalid("dtype", "KV is f32, f16 or bf16, and in pages also f8");
  if (rows == 0) return {};
  if (args.src.data == nullptr || args.dst.pages == nullptr)
    return Status::invalid("src", "kv_place needs non-null data and pages");
  QUIRE_RETURN_IF_ERROR(internal::check_table(table, args.dst.head_dim, args.positions, rows));
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = args.dst_rows != nullptr ? args.dst_rows[i] : args.first_dst_row + i;
    if (row < 0 || row >= args.dst.num_rows) {
      return Status::invalid("dst_rows", "row " + std::to_string(row) +
                                             " is outside the cache of " +
                                             std::to_string(args.dst.num_rows) + " rows");
    }
  }
  const std::int64_t grain = 1 + 16384 / (std::int64_t{args.dst.num_kv_heads} * args.dst.head_dim);
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    cpu::kv_place_rows(table, args, begin, end);
  });
  return {};
}

Status kv_pack(const KvPackArgs& args) {
  if (args.rows < 0) return Status::invalid("rows", "must not be negative");
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(args.num_kv_heads, args.head_dim));
  if (!internal::is_raw_kv_dtype(args.dtype))
    return Status::invalid("dtype", "KV is f32, f16 or bf16");
  const std::int64_t width = std::int64_t{args.num_kv_heads} * args.head_dim;
  if (args.rows == 0) return {};
  if (args.ldk < width || args.ldv < width)
    return Status::invalid("ldk", "row strides must be at least num_kv_heads * head_dim");
  if (args.k == nullptr || args.v == nullptr || args.out == nullptr)
    return Status::invalid("k", "kv_pack needs non-null buffers");
  parallel_for(args.rows, 1 + 16384 / width,
               [&](std::int64_t begin, std::int64_t end) { cpu::kv_pack_rows(args, begin, end); });
  return {};
}

}  // namespace quire
