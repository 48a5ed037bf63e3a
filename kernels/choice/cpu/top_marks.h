/// This file declares the vectorized body of mark_top_k().
#pragma once

#include <cstdint>

namespace quire::cpu {

std::int64_t mark_top_k(const float* x, std::int64_t n, std::int64_t k, std::uint64_t* bits);

}  // namespace quire::cpu
