/// This file declares the vectorized body of transposed_scores() for blocks [begin, end) of a
/// checked call.
#pragma once

#include <cstdint>

#include "kernels/choice/transposed_rows.h"

namespace quire::cpu {

void transposed_scores_blocks(const TransposedScoresArgs& args, std::int64_t begin,
                              std::int64_t end);

}  // namespace quire::cpu
