/// Puts the kept blocks of one context into a working cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/cache/working_cache.h"
#include "engine/pipeline/kv_layout.h"
#include "engine/select/selection.h"
#include "kernels/base/status.h"
#include "kernels/rope.h"

namespace quire {

struct PlacementInput {
  const KvLayout* layout = nullptr;
  const Selection* selection = nullptr;
  std::int32_t context = 0;                              ///< in the selection
  std::span<const std::int32_t> block_position;          ///< assembled position of each block's first token
  const RopeTable* rope = nullptr;
  /// Bytes of a value. Called only for kept (block, group of a layer that keeps it), from kernel threads.
  std::function<std::span<const std::byte>(std::int32_t block, std::int32_t group)> value;
};

/// Appends rows to every layer that keeps blocks, rotated to their positions. Errors: kCorruption (a value has
/// the wrong length; nothing was added), kResourceExhausted (the cache may hold some of the rows), kInvalidArgument.
Status place_context(const PlacementInput& input, WorkingCache& cache);

/// Writes the kept blocks of a context that is already placed into its rows again, from other values. Layers must be sorted. Errors: kCorruption
/// (a value has the wrong length; nothing was written), kInternal (a block has no rows).
Status replace_context(const PlacementInput& input, WorkingCache& cache);

}  // namespace quire
