/// This file declares the vectorized bodies of page_bounds() and page_scores() for pages [begin,
/// end) of a checked call.
#pragma once

#include <cstdint>

#include "kernels/choice/page_bounds.h"

namespace quire::cpu {

void page_bounds_pages(const PageBoundsArgs& args, std::int64_t begin, std::int64_t end);
void page_scores_pages(const PageScoresArgs& args, std::int64_t begin, std::int64_t end);

}  // namespace quire::cpu
