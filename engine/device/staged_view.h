/// staged_view() and staged_gather() upload the pages and positions of caches for kernels. Internal
/// to engine/device.
#pragma once

#include <span>

#include "base/index.h"
#include "engine/device/device_memory.h"
#include "kernels/cuda/args.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/kv_gather.h"

namespace quire {

/// kRowsRoom is the extra room, in rows, of arrays that grow with a cache. It keeps the arguments
/// of most decode steps equal to those of the previous step (step_recording.h).
inline constexpr std::int64_t kRowsRoom = cuda::kDecodeChunk;

/// Returns the view with pages and positions at addresses that kernels read. Call it between
/// stage.begin() and stage.send(). Errors: kResourceExhausted, kDeviceLost.
inline Result<KvView> staged_view(ArgumentStage& stage, KvView kv) {
  const std::int64_t pages = (kv.num_rows + kPageTokens - 1) / kPageTokens;
  QUIRE_ASSIGN_OR_RETURN(
      kv.pages, stage.put(std::span<const void* const>(kv.pages, to_size(pages)),
                          kRowsRoom / kPageTokens * static_cast<std::int64_t>(sizeof(void*))));
  QUIRE_ASSIGN_OR_RETURN(kv.positions,
                         stage.put(std::span(kv.positions, to_size(kv.num_rows)),
                                   kRowsRoom * static_cast<std::int64_t>(sizeof(std::int32_t))));
  return kv;
}

/// Uploads the moves of a gather and the pages that they touch, a separate list for each side in
/// the order of the moves, with the stage's begin() and send(). Errors: those of check_gather(),
/// kResourceExhausted, kDeviceLost.
Result<KvGatherArgs> staged_gather(ArgumentStage& stage, const KvGatherArgs& args);

}  // namespace quire
