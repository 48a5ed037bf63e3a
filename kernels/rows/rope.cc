#include "kernels/rows/rope.h"

#include "kernels/parallel.h"
#include "kernels/rows/cpu/rows.h"
#include "kernels/rows/kv_checks.h"

namespace quire {

Status rope_rotate(const RopeTable& table, const RopeRotateArgs& args) {
  if (args.rows < 0 || args.num_heads < 0) return Status::invalid("rows", "must not be negative");
  const std::int32_t dim = table.config().head_dim;
  if (args.rows == 0 || args.num_heads == 0) return {};
  if (args.ldx < args.num_heads * dim || args.ldo < args.num_heads * dim) {
    return Status::invalid("ldx", "row strides must be at least num_heads * head_dim");
  }
  if (args.x == nullptr || args.out == nullptr)
    return Status::invalid("x", "rope_rotate needs non-null buffers");
  QUIRE_RETURN_IF_ERROR(internal::check_table(table, dim, args.positions, args.rows));
  const std::int64_t grain = 1 + 16384 / (args.num_heads * dim);
  parallel_for(args.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    cpu::rope_rows(table, args, begin, end);
  });
  return {};
}

}  // namespace quire
