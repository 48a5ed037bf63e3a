#include "engine/compute/linear_ops.h"

#include "engine/compute/compute.h"

namespace quire {

Status LinearOps::feed_forward(const FeedForwardArgs& a) {
  const std::int64_t k = a.gate_up->k(), dim = a.down->k(), n = a.down->n();
  const DType dtype = input_dtype(*a.down, a.rows);
  QUIRE_RETURN_IF_ERROR(product({.weights = a.gate_up,
                                 .x = a.x,
                                 .rows = a.rows,
                                 .ldx = k,
                                 .bias = a.gate_up_bias,
                                 .y = a.gate_up_scratch,
                                 .ldy = 2 * dim,
                                 .x_dtype = a.x_dtype}));
  QUIRE_RETURN_IF_ERROR(
      swiglu({.gate_up = a.gate_up_scratch, .out = a.activated_scratch, .rows = a.rows, .dim = dim},
             dtype));
  return add_product({.weights = a.down,
                      .x = a.activated_scratch,
                      .rows = a.rows,
                      .ldx = dim,
                      .bias = a.down_bias,
                      .y = a.y,
                      .ldy = n,
                      .x_dtype = dtype},
                     a.scratch);
}

}  // namespace quire
