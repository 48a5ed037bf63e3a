/// From times of single questions to the rates of a replica (server/capacity/rates.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "server/capacity/rates.h"

namespace quire {

/// Where the contexts of a measured question were.
enum class RateTier : std::uint8_t { kDram, kDisk, kRemote, kComputed };

/// RateSample is the time to the first token of questions of one kind, each alone on its machine.
struct RateSample {
  RateTier tier = RateTier::kDram;
  double contexts = 1, tokens = 0;  ///< tokens of all contexts together
  double question_tokens = 1;
  double ttft_ms = 0;
};

/// StoredSample is what a context takes where it is stored.
struct StoredSample {
  double tokens = 0, bytes = 0;
};

/// Fills in the stored bytes, by least squares; bytes_per_token comes before. Without samples that
/// tell more, what is stored is KV alone.
void fit_stored(const std::vector<StoredSample>& samples, capacity::Rates& rates);

/// Fills in request, question, prefill, dram, disk and remote. What a question costs besides its
/// contexts, and what a context costs that is in memory, are the least squares of relative errors
/// over samples from memory; the others are what is left. No cost is below 0. Errors:
/// kFailedPrecondition (too few samples, or all alike).
Status fit_rates(const std::vector<RateSample>& samples, capacity::Rates& rates);

}  // namespace quire
