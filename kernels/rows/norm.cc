#include "kernels/rows/norm.h"

#include "kernels/parallel.h"
#include "kernels/rows/cpu/rows.h"

namespace quire {

Status rms_norm(const RmsNormArgs& args) {
  if (args.rows < 0) return Status::invalid("rows", "rms_norm needs rows >= 0");
  if (args.dim <= 0) return Status::invalid("dim", "rms_norm needs dim >= 1");
  if (args.rows == 0) return {};
  if (args.x == nullptr || args.weight == nullptr || args.out == nullptr)
    return Status::invalid("x", "rms_norm needs non-null buffers");
  const std::int64_t grain = 1 + 32768 / args.dim;
  parallel_for(args.rows, grain,
               [&](std::int64_t begin, std::int64_t end) { cpu::rms_norm_rows(args, begin, end); });
  return {};
}

Status layer_norm(const LayerNormArgs& args) {
  if (args.rows < 0) return Status::invalid("rows", "layer_norm needs rows >= 0");
  if (args.dim <= 0) return Status::invalid("dim", "layer_norm needs dim >= 1");
  if (args.rows == 0) return {};
  if (args.x == nullptr || args.weight == nullptr || args.bias == nullptr || args.out == nullptr)
    return Status::invalid("x", "layer_norm needs non-null buffers");
  const std::int64_t grain = 1 + 32768 / args.dim;
  parallel_for(args.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    cpu::layer_norm_rows(args, begin, end);
  });
  return {};
}

}  // namespace quire
