/// This file samples the next token from a row of logits, on the host or a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

/// Parameters of sampling: temperature, top-k, top-p and min-p apply in this order, given a uniform
/// random number.
struct SampleRule {
  float temperature = 0;   ///< 0: greedy
  std::int32_t top_k = 0;  ///< 0: all
  float top_p = 1, min_p = 0;
  double uniform = 0;  ///< in [0, 1)
};

/// Buffers of sample_token(), kept between calls.
struct SampleScratch {
  struct Candidate {
    float logit;
    std::int32_t id;
    std::uint64_t weight;
  };
  std::vector<Candidate> candidates;
};

/// Samples a token: the first id at which the running sum of the remaining weights, in order of
/// ids, exceeds uniform * total. Weights are exp((logit - largest) / temperature) in f32, rounded
/// to whole units of 2^-40, so that no sum depends on its order. A device that sums in another
/// order (kernels/cuda/choice/sampling.cuh) samples the same token if its exponential has the same
/// bits. Ties of top-k and top-p go to lower ids. Logits that are NaN or -inf are never sampled,
/// the first +inf always is; without any valid logit the result is 0.
std::int32_t sample_token(std::span<const float> logits, const SampleRule& rule,
                          SampleScratch& scratch);

}  // namespace quire
