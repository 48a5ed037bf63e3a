/// Rows of random keys and queries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace quire::testing {

/// Returns n values of the standard normal distribution, equal for equal seeds.
inline std::vector<float> random_row(std::uint32_t seed, std::size_t n) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

}  // namespace quire::testing
