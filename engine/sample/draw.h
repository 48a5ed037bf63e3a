/// How the next token comes out of a row of logits, for whoever draws it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

/// Temperature, top-k, top-p and min-p, in this order, given a uniform number.
struct DrawRule {
  float temperature = 0;   ///< 0: the largest logit
  std::int32_t top_k = 0;  ///< 0: all
  float top_p = 1, min_p = 0;
  double uniform = 0;  ///< in [0, 1)
};

/// Buffers of draw_token(), kept between calls.
struct DrawScratch {
  struct Candidate {
    float logit;
    std::int32_t id;
    std::uint64_t weight;
  };
  std::vector<Candidate> candidates;
};

/// The first id at which the running sum of what is left, in order of ids, exceeds uniform * total.
/// Weights are exp((logit - largest) / temperature) in f32, counted in whole units of 2^-40, so
/// that no sum depends on its order: a device that gathers them in another order
/// (kernels/cuda/sampling.cuh) draws the same token wherever its exponential has the same bits.
/// Ties of top-k and top-p go to lower ids. Logits that are NaN or -inf are never drawn; the first
/// +inf always; 0 when there is nothing.
std::int32_t draw_token(std::span<const float> logits, const DrawRule& rule, DrawScratch& scratch);

}  // namespace quire
