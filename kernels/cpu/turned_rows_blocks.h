/// The vectorised body of turned_scores(): blocks [begin, end) of a checked call.
#pragma once

#include <cstdint>

#include "kernels/turned_rows.h"

namespace quire::cpu {

void turned_scores_blocks(const TurnedScoresArgs& args, std::int64_t begin, std::int64_t end);

}  // namespace quire::cpu
