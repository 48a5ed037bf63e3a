#include "kernels/rows/activation.h"

#include "kernels/parallel.h"
#include "kernels/rows/cpu/rows.h"

namespace quire {

Status swiglu(const SwigluArgs& args) {
  if (args.rows < 0 || args.dim < 0)
    return Status::invalid("rows", "swiglu needs rows >= 0 and dim >= 0");
  if (args.rows == 0 || args.dim == 0) return {};
  if (args.gate_up == nullptr || args.out == nullptr)
    return Status::invalid("gate_up", "swiglu needs non-null buffers");
  const std::int64_t grain = 1 + 16384 / args.dim;
  parallel_for(args.rows, grain,
               [&](std::int64_t begin, std::int64_t end) { cpu::swiglu_rows(args, begin, end); });
  return {};
}

void gelu(float* x, std::int64_t n) {
  parallel_for(n, 16384,
               [&](std::int64_t begin, std::int64_t end) { cpu::gelu_range(x, begin, end); });
}

void add_inplace(float* x, const float* y, std::int64_t n) {
  parallel_for(n, 65536,
               [&](std::int64_t begin, std::int64_t end) { cpu::add_range(x, y, begin, end); });
}

Status column_sums(const ColumnSumsArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.dim <= 0 || a.ldx < a.dim)
    return Status::invalid("ldx", "must be at least dim, which is at least 1");
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * a.ldx;
    for (std::int64_t c = 0; c < a.dim; ++c) a.sums[c] += x[c];
  }
  return {};
}

}  // namespace quire
