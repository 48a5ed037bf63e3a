/// What of a device's memory goes where: chosen once, when the weights are loaded, from what is
/// actually free.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/model/config.h"

namespace quire {

/// Nothing here depends on the device but how much it has left.
struct MemoryWishes {
  ModelConfig model;
  std::int64_t window = 0;        ///< positions that are used
  std::int64_t kv_row_bytes = 0;  ///< K and V of one token in one layer
  std::int64_t cache_bytes = 0;   ///< of all working caches; 0: what is left
  /// Of what retrievers keep; 0: no limit, and nothing kept free for it; -1: chosen
  std::int64_t retrieved_bytes = -1;
  std::int32_t chunk_tokens = 0;  ///< of a prompt's piece; 0: chosen
};

struct MemoryPlan {
  std::int64_t left_bytes = 0;    ///< free behind the weights, less a reserve
  std::int32_t chunk_tokens = 0;  ///< of the largest piece of a prompt
  std::int32_t decode_rows = 0;   ///< of the largest decode step: queries that run at once
  /// Activations, logits, partial results and copies on their way, at those sizes
  std::int64_t compute_bytes = 0;
  std::int64_t means_bytes = 0;  ///< block means of documents (resident_means.h)
  /// For what retrievers keep of caches whose layers left the device, and to choose by; 0: no limit
  std::int64_t retrieved_bytes = 0;
  std::int64_t cache_bytes = 0;  ///< of all working caches, as far as they lie on the device
};

/// The largest piece that computing needs no more than an eighth of the memory for (4096 tokens at
/// most), then the largest step with which it stays within a sixth (64 rows at most), then a 64th
/// for block means (1 GiB at most), a quarter for what retrievers keep, and the rest for caches. A
/// size asked for is taken as it is; where caches of a size asked for leave less, pieces and steps
/// become smaller, and means and what retrievers keep go. Where retrievers have a size that is
/// asked for, caches whose size is not get what is left. Errors: kResourceExhausted (field
/// model.working_cache_bytes: what is asked for does not fit, or not even the smallest sizes do).
Result<MemoryPlan> plan_memory(std::int64_t left_bytes, const MemoryWishes& wishes);

/// What computing takes at most with pieces and steps of these sizes. Grows with both.
std::int64_t compute_bytes(const MemoryWishes& wishes, std::int32_t chunk_tokens,
                           std::int32_t decode_rows);

}  // namespace quire
