/// plan_memory() divides a device's memory once, when the weights are loaded, by the memory that is
/// actually free.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/model/config.h"

namespace quire {

/// MemoryRequest is the input of plan_memory(). Nothing in it depends on the device.
struct MemoryRequest {
  ModelConfig model;
  std::int64_t window = 0;        ///< positions in use
  std::int64_t kv_row_bytes = 0;  ///< K and V of one token in one layer
  std::int64_t cache_bytes = 0;   ///< of all working caches; 0: the rest
  /// Bytes for retrievers; 0: no limit and no reservation; -1: chosen by the plan.
  std::int64_t retrieved_bytes = -1;
  std::int32_t chunk_tokens = 0;  ///< tokens of a prompt's chunk; 0: chosen by the plan
  std::int64_t devices = 1;       ///< that matrices are cut over; this is the first one
  bool split_kv = false;          ///< KV is cut over them, too
};

struct MemoryPlan {
  std::int64_t left_bytes = 0;    ///< free after loading the weights, less a reserve
  std::int32_t chunk_tokens = 0;  ///< tokens of a prompt's largest chunk
  std::int32_t decode_rows = 0;   ///< queries of the largest decode step, which run at once
  /// Activations, logits, partial results and copies in flight, at those sizes.
  std::int64_t compute_bytes = 0;
  std::int64_t means_bytes = 0;  ///< block means of documents (resident_means.h)
  /// Bytes for retrievers: rows of caches whose layers left the device, and data for choosing; 0:
  /// no limit.
  std::int64_t retrieved_bytes = 0;
  std::int64_t cache_bytes = 0;  ///< of all working caches, as far as they lie on the device
};

/// Plans the device's memory in a fixed order. It takes the largest chunk whose computation needs
/// at most an eighth of the memory (at most 4096 tokens), then the largest step that stays within a
/// sixth (at most 64 rows). Block means get a 64th (at most 1 GiB), retrievers a quarter, and
/// caches the rest. A requested size is taken as it is; if requested caches leave less, chunks and
/// steps shrink, and means and the retrievers' part become 0. If only the retrievers' size is
/// requested, caches get the rest. Errors: kResourceExhausted (field model.working_cache_bytes: the
/// requested sizes do not fit, or not even the smallest sizes do).
Result<MemoryPlan> plan_memory(std::int64_t left_bytes, const MemoryRequest& wishes);

/// Returns the upper bound of the bytes that computing takes with chunks and steps of these sizes.
/// It grows with both.
std::int64_t compute_bytes(const MemoryRequest& wishes, std::int32_t chunk_tokens,
                           std::int32_t decode_rows);

}  // namespace quire
